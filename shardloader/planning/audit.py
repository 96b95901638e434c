"""What did the ranks really read, and was it every sample once?

Reads what `loader.log_samples` wrote. Training that is killed and resumed has a history of
attempts; what an earlier attempt read at or after the start of a later one was rolled back with
the model, and is superseded. What is left is the history that led to the final model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardloader.errors import DataError, UsageError
from shardloader.order.audit import Tally, tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from os import PathLike

    from numpy.typing import NDArray

SAMPLES_TO_COMPARE = 16  # two shuffles of so many agree once in 2e13

Attempt = tuple[int, int]
Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One rank's start of an attempt: which, on how many ranks, from which (epoch, consumed)."""

    attempt: Attempt
    rank: int
    world_size: int
    dataset: str
    num_samples: int
    shuffled: bool
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Received:
    """One batch that one rank received: samples of its slots, the first `valid` of them valid."""

    attempt: Attempt
    rank: int
    place: Place
    index: NDArray[np.int64]
    valid: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochAudit:
    """What the history read of one epoch.

    tally: counts; steps: steps received; order: the valid samples in the order of training,
    rank after rank within a step, int64.
    """

    epoch: int
    tally: Tally
    steps: int
    order: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """The audit of a run.

    attempts: launches and loads seen; superseded: batches that were rolled back; epochs: in
    order. The last epoch may be one that training has not finished.
    """

    attempts: int
    superseded: int
    num_samples: int
    epochs: tuple[EpochAudit, ...]
    repeated_orders: tuple[tuple[int, int], ...]

    @property
    def is_exact(self) -> bool:
        """Every sample once in every epoch, and no two epochs in the same order."""
        exact = all(epoch.tally.is_exact for epoch in self.epochs)
        return bool(self.epochs) and exact and not self.repeated_orders


@dataclass(slots=True)
class _Log:
    starts: list[Start] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)


def audit_logs(folder: str | PathLike[str]) -> History:
    """Audit the logs in a folder.

    Raises UsageError for a folder without logs or with those of different datasets, DataError for
    a line that is no record (a last line without its end is what a kill leaves, and is left out).
    """
    paths = sorted(Path(folder).glob("rank-*-of-*.jsonl"))
    if not paths:
        raise UsageError(
            f"an audit reads the files rank-*.jsonl that loader.log_samples(folder) wrote, and "
            f"{folder} holds none"
        )
    log = _Log()
    for path in paths:
        _read(path, log)
    if not log.starts:
        raise UsageError(f"the logs in {folder} are empty: no rank has received a batch")
    datasets = {(start.dataset, start.num_samples) for start in log.starts}
    if len(datasets) > 1:
        raise UsageError(
            f"an audit is of one dataset, and the logs in {folder} are of {len(datasets)}: "
            f"{sorted(datasets)}: keep each run's logs in a folder of their own"
        )
    return _history(log)


def _history(log: _Log) -> History:
    num_samples = log.starts[0].num_samples
    begun: dict[Attempt, Place] = {}
    for start in log.starts:
        begun[start.attempt] = min(start.place, begun.get(start.attempt, start.place))
    attempts = sorted(begun)
    # The earliest start of any later attempt: what was read from there on was rolled back.
    rolled_back: dict[Attempt, Place | None] = {}
    earliest: Place | None = None
    for attempt in reversed(attempts):
        rolled_back[attempt] = earliest
        earliest = begun[attempt] if earliest is None else min(earliest, begun[attempt])
    final = []
    for each in log.received:
        limit = rolled_back[each.attempt]
        if limit is None or each.place < limit:
            final.append(each)
    epochs = tuple(_epochs(final, num_samples))
    return History(
        attempts=len(attempts),
        superseded=len(log.received) - len(final),
        num_samples=num_samples,
        epochs=epochs,
        repeated_orders=_repeated_orders(epochs) if log.starts[0].shuffled else (),
    )


def _epochs(received: Iterable[Received], num_samples: int) -> Iterator[EpochAudit]:
    by_epoch: dict[int, list[Received]] = {}
    for each in received:
        by_epoch.setdefault(each.place[0], []).append(each)
    for epoch, batches in sorted(by_epoch.items()):
        batches.sort(key=lambda each: (each.place, each.attempt, each.rank))
        index = np.concatenate([each.index for each in batches])
        valid = np.concatenate([np.arange(len(each.index)) < each.valid for each in batches])
        yield EpochAudit(
            epoch=epoch,
            tally=tally(index, valid, num_samples),
            steps=len({each.place for each in batches}),
            order=index[valid],
        )


def _repeated_orders(epochs: tuple[EpochAudit, ...]) -> tuple[tuple[int, int], ...]:
    """Pairs of epochs that read the same samples in the same order, too many for chance."""
    seen: dict[bytes, int] = {}
    pairs = []
    for each in epochs:
        if each.order.size < SAMPLES_TO_COMPARE:
            continue
        first = seen.setdefault(each.order.tobytes(), each.epoch)
        if first != each.epoch:
            pairs.append((first, each.epoch))
    return tuple(pairs)


def _read(path: Path, log: _Log) -> None:
    start: Start | None = None
    *lines, unfinished = path.read_bytes().split(b"\n")
    del unfinished  # nothing, or what a killed rank was writing
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if "attempt" in record:
                start = _start(record)
                log.starts.append(start)
                continue
            log.received.append(_received(record, start))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}, line {number}: a line is one record of loader.log_samples, and this one "
                f"is not ({error}): {line[:80]!r}"
            ) from error


def _start(record: dict[str, Any]) -> Start:
    launch, loads = record["attempt"]
    return Start(
        attempt=(int(launch), int(loads)),
        rank=int(record["rank"]),
        world_size=int(record["world_size"]),
        dataset=str(record["dataset"]),
        num_samples=int(record["num_samples"]),
        shuffled=bool(record["shuffled"]),
        place=(int(record["epoch"]), int(record["consumed"])),
    )


def _received(record: dict[str, Any], start: Start | None) -> Received:
    if start is None:
        raise ValueError("a batch before its attempt's start")
    return Received(
        attempt=start.attempt,
        rank=start.rank,
        place=(int(record["epoch"]), int(record["consumed"])),
        index=np.asarray(record["index"], dtype=np.int64).reshape(-1),
        valid=int(record["valid"]),
    )
