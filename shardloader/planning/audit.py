"""What did the ranks really read, and was it every sample once?

Reads what `loader.log_samples` wrote. Training that is killed and resumed has a history of
attempts; what an earlier attempt read at or after the start of a later one was rolled back with
the model, and is superseded. What is left is the history that led to the final model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shardloader.errors import DataError, UsageError
from shardloader.order.audit import Tally, tally

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    from numpy.typing import NDArray

SAMPLES_TO_COMPARE = 16  # two shuffles of so many agree once in 2e13
MAX_GAP = 1000  # epochs without a record, before logs are taken for those of different runs

MAX_SAMPLES = 1 << 33  # a count for each sample must fit in memory

LOG_VERSION = 1  # of the lines that loader.log_samples writes and this module reads

Attempt = tuple[int, int]
Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One rank's start of an attempt.

    place: (epoch, consumed); first_pass, first_position: the same as a pass over the data and a
    position in it, which differ from place with `steps_per_epoch`.
    """

    attempt: Attempt
    rank: int
    step_size: int
    dataset: str
    num_samples: int
    shuffled: bool
    even: str
    endless: bool
    place: Place
    first_pass: int
    first_position: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Received:
    """One batch that one rank received: samples of its slots, the first `valid` of them valid.

    passes: the pass over the data that each slot belongs to, int64 of index's shape.
    """

    attempt: Attempt
    rank: int
    place: Place
    index: NDArray[np.int64]
    valid: int
    passes: NDArray[np.int64]


# What can be wrong with a history.
FAULTS: Final = {
    "missing": "samples that were never read",
    "repeated": "samples that were read as valid more than once",
    "unknown": "samples that were read and the dataset does not hold",
    "same_order": "an epoch in the order of an earlier one",
    "nothing": "no rank received a batch",
}


class Fault(NamedTuple):
    """One fault of one epoch; kind: a word of FAULTS.

    numbers: the samples' dataset numbers, int64, or the earlier epoch of "same_order".
    """

    kind: str
    epoch: int
    numbers: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochAudit:
    """What the history read in one epoch; with `steps_per_epoch`, in one pass over the data.

    tally: counts; steps: steps received; order: the valid samples in the order of training,
    rank after rank within a step, int64; may_lack: samples that need not be there, because
    even="drop" leaves them out, logging began behind them, or an endless order has yet to come
    to them.
    """

    epoch: int
    tally: Tally
    steps: int
    order: NDArray[np.int64]
    may_lack: int

    def faults(self, *, unfinished: bool = False) -> Iterator[Fault]:
        """What is wrong; in an epoch that is `unfinished` any number may be missing yet."""
        tally = self.tally
        if tally.missing.size > self.may_lack and not unfinished:
            yield Fault("missing", self.epoch, tally.missing)
        if tally.repeated.size:
            yield Fault("repeated", self.epoch, tally.repeated)
        if tally.unknown.size:
            yield Fault("unknown", self.epoch, tally.unknown)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """The audit of a run.

    attempts: launches and loads seen; superseded: batches that were rolled back; epochs: in
    order, without a gap. The last epoch may be one that training has not finished.
    """

    attempts: int
    superseded: int
    num_samples: int
    counts_passes: bool
    epochs: tuple[EpochAudit, ...]
    repeated_orders: tuple[tuple[int, int], ...]

    def faults(self, *, unfinished: bool = False) -> tuple[Fault, ...]:
        """What is wrong, epoch by epoch; `unfinished` if the last one is still being read."""
        found: list[Fault] = []
        for each in self.epochs:
            found += each.faults(unfinished=unfinished and each is self.epochs[-1])
        found += [
            Fault("same_order", second, np.array([first])) for first, second in self.repeated_orders
        ]
        if not self.epochs:
            found.append(Fault("nothing", 0, np.zeros(0, dtype=np.int64)))
        return tuple(found)

    @property
    def is_exact(self) -> bool:
        """Every sample once in every epoch, and no two epochs in the same order."""
        return not self.faults()


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
    first = min(log.starts, key=lambda start: start.place)
    epochs = tuple(_epochs(final, first, {start.attempt: start for start in log.starts}))
    return History(
        attempts=len(attempts),
        superseded=len(log.received) - len(final),
        num_samples=num_samples,
        counts_passes=first.endless,
        epochs=epochs,
        repeated_orders=_repeated_orders(epochs) if first.shuffled else (),
    )


def _epochs(
    received: list[Received], first: Start, starts: dict[Attempt, Start]
) -> Iterator[EpochAudit]:
    """Audit epoch by epoch, or pass by pass, also those in between that nobody read."""
    received.sort(key=lambda each: (each.place, each.attempt, each.rank))
    by_number: dict[int, list[Received]] = {}
    for each in received:
        for number in np.unique(each.passes).tolist():
            by_number.setdefault(number, []).append(each)
    last = max(by_number, default=first.first_pass - 1)
    if last - first.first_pass > len(by_number) + MAX_GAP:
        raise DataError(
            f"the logs begin in epoch {first.first_pass} and reach epoch {last}, with nothing "
            "between: keep each run's logs in a folder of their own"
        )
    for number in range(first.first_pass, last + 1):
        batches = by_number.get(number, [])
        may_lack = first.first_position if number == first.first_pass else 0
        if first.endless:
            may_lack = first.num_samples if number == last else may_lack
        elif batches:
            may_lack += _dropped(starts[max(each.attempt for each in batches)], number)
        yield _epoch(number, batches, first.num_samples, may_lack)


def _dropped(start: Start, epoch: int) -> int:
    """Samples that even="drop" left out of an epoch that the attempt of `start` read last."""
    if start.even != "drop":
        return 0
    consumed = start.place[1] if start.place[0] == epoch else 0
    return (start.num_samples - consumed) % start.step_size


def _epoch(number: int, batches: list[Received], num_samples: int, may_lack: int) -> EpochAudit:
    parts = []
    for each in batches:
        inside = each.passes == number
        valid = np.arange(len(each.index)) < each.valid
        parts.append((each.index[inside], valid[inside]))
    empty = np.zeros(0, dtype=np.int64)
    return EpochAudit(
        epoch=number,
        tally=tally(parts, num_samples),
        steps=len({each.place for each in batches}),
        order=np.concatenate([empty, *(index[valid] for index, valid in parts)]),
        may_lack=may_lack,
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
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise DataError(
                f"{path}, line {number}: a line is one record of loader.log_samples, and this one "
                f"is not ({error}): {line[:80]!r}"
            ) from error


def _start(record: dict[str, Any]) -> Start:
    if record["version"] != LOG_VERSION:
        raise ValueError(f"a log of version {record['version']}, and this release reads 1")
    launch, loads = record["attempt"]
    start = Start(
        attempt=(int(launch), int(loads)),
        rank=int(record["rank"]),
        step_size=int(record["world_size"]) * int(record["batch_size"]),
        dataset=str(record["dataset"]),
        num_samples=int(record["num_samples"]),
        shuffled=bool(record["shuffled"]),
        even=str(record["even"]),
        endless=record["steps_per_epoch"] is not None,
        place=(int(record["epoch"]), int(record["consumed"])),
        first_pass=int(record["pass"]),
        first_position=int(record["position"]),
    )
    if not 0 <= start.num_samples <= MAX_SAMPLES:
        raise ValueError(f"a dataset of {start.num_samples} samples")
    if min(*start.place, start.step_size - 1) < 0 or not 0 <= start.first_pass < 2**62:
        raise ValueError("an epoch before the first")
    return start


def _received(record: dict[str, Any], start: Start | None) -> Received:
    if start is None:
        raise ValueError("a batch before its attempt's start")
    index = np.asarray(record["index"], dtype=np.int64).reshape(-1)
    passes = np.asarray(record.get("pass", record["epoch"]), dtype=np.int64)
    return Received(
        attempt=start.attempt,
        rank=start.rank,
        place=(int(record["epoch"]), int(record["consumed"])),
        index=index,
        valid=int(record["valid"]),
        passes=np.broadcast_to(passes, index.shape),
    )
