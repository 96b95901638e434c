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

MAX_SAMPLES = 1 << 32  # a count of four bytes for each sample must fit in memory

LOG_VERSION = 1  # of the lines that loader.log_samples writes and this module reads

Attempt = tuple[int, int]
Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One rank's start of an attempt.

    place: (epoch, consumed); first_pass, first_position: the same as a pass over the data and a
    position in it, which differ from place with `steps_per_epoch`; closed: the epoch and position
    that a loaded state left, having no step there.
    """

    attempt: Attempt
    rank: int
    world_size: int
    step_size: int
    dataset: str
    num_samples: int
    shuffled: bool
    even: str
    endless: bool
    place: Place
    first_pass: int
    first_position: int
    closed: Place | None


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
    "lost": "samples of steps that every rank has passed, and that are in no log",
    "repeated": "samples that were read as valid more than once",
    "unknown": "samples that were read and the dataset does not hold",
    "same_order": "an epoch in the order of an earlier one",
    "nothing": "no rank received a batch",
}


class Fault(NamedTuple):
    """One fault of one epoch; kind: a word of FAULTS.

    numbers: the samples' dataset numbers, int64; of "lost" how many they are; of "same_order" the
    earlier epoch.
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
    to them; lost: samples of steps that every rank has passed and not all ranks logged.
    """

    epoch: int
    tally: Tally
    steps: int
    order: NDArray[np.int64]
    may_lack: int
    lost: int

    def faults(self, *, unfinished: bool = False) -> Iterator[Fault]:
        """What is wrong; in an epoch that is `unfinished` any number may be missing yet."""
        tally = self.tally
        if tally.missing.size > self.may_lack and not unfinished:
            yield Fault("missing", self.epoch, tally.missing)
        elif self.lost:
            yield Fault("lost", self.epoch, np.array([self.lost]))
        if tally.repeated.size:
            yield Fault("repeated", self.epoch, tally.repeated)
        if tally.unknown.size:
            yield Fault("unknown", self.epoch, tally.unknown)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """The audit of a run.

    attempts: launches and loads seen; superseded: batches that were rolled back; may_be_empty:
    whether the data make no whole step, and "drop" leaves them out; epochs: in order, without a
    gap. The last epoch may be one that training has not finished.
    """

    attempts: int
    superseded: int
    num_samples: int
    counts_passes: bool
    may_be_empty: bool
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
        if not self.epochs and not self.may_be_empty:
            found.append(Fault("nothing", 0, np.zeros(0, dtype=np.int64)))
        return tuple(found)

    @property
    def is_exact(self) -> bool:
        """Every sample once in every epoch, and no two epochs in the same order."""
        return not self.faults()


class Skipped(NamedTuple):
    """Positions that training left out on purpose."""

    attempt: Attempt
    place: Place
    num_positions: int


@dataclass(slots=True)
class _Log:
    starts: list[Start] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    skipped: set[Skipped] = field(default_factory=set)


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

    def is_final(each: Received | Skipped) -> bool:
        limit = rolled_back[each.attempt]
        return limit is None or each.place < limit

    final = list(filter(is_final, log.received))
    skipped: dict[int, int] = {}
    for jump in filter(is_final, log.skipped):  # every rank tells of it: a set holds it once
        skipped[jump.place[0]] = skipped.get(jump.place[0], 0) + jump.num_positions
    first = min(log.starts, key=lambda start: start.place)
    epochs = tuple(_epochs(final, first, log.starts, skipped))
    return History(
        attempts=len(attempts),
        superseded=len(log.received) - len(final),
        num_samples=num_samples,
        counts_passes=first.endless,
        may_be_empty=first.even == "drop" and num_samples < first.step_size,
        epochs=epochs,
        repeated_orders=_repeated_orders(epochs) if first.shuffled else (),
    )


def _epochs(
    received: list[Received], first: Start, starts: list[Start], skipped: dict[int, int]
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
        may_lack += skipped.get(number, 0)
        lost = 0
        if first.endless:
            may_lack = first.num_samples if number == last or skipped else may_lack
        elif batches:
            latest = max(each.attempt for each in batches)
            start = next(start for start in starts if start.attempt == latest)
            lost = _lost(batches, start, may_lack)
            may_lack += _dropped(start, number, starts)
        yield _epoch(number, batches, first.num_samples, may_lack=may_lack, lost=lost)


def _dropped(start: Start, epoch: int, starts: list[Start]) -> int:
    """Samples that even="drop" left out of an epoch that the attempt of `start` read last."""
    closed = [each.closed[1] for each in starts if each.closed and each.closed[0] == epoch]
    if closed:  # by a later load, whose topology had no step left there
        return start.num_samples - closed[-1]
    if start.even != "drop":
        return 0
    consumed = start.place[1] if start.place[0] == epoch else 0
    return (start.num_samples - consumed) % start.step_size


def _lost(batches: list[Received], start: Start, unlogged: int) -> int:
    """Valid samples that are missing below the position that every rank has passed.

    start: of the attempt that read last; unlogged: positions that training took before any log.
    """
    epoch = batches[0].place[0]
    reached: dict[int, int] = {}
    for each in batches:
        if each.attempt == start.attempt:
            reached[each.rank] = max(each.place[1], reached.get(each.rank, 0))
    if len(reached) == start.world_size:
        passed = min(min(reached.values()) + start.step_size, start.num_samples)
    else:  # a rank has not received a batch yet
        passed = start.place[1] if start.place[0] == epoch else 0
    read = sum(each.valid for each in batches if each.place[1] < passed)
    return max(0, passed - unlogged - read)


def _epoch(
    number: int, batches: list[Received], num_samples: int, *, may_lack: int, lost: int
) -> EpochAudit:
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
        lost=lost,
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
            if "skipped" in record:
                log.skipped.add(_skipped(record, start))
                continue
            log.received.append(_received(record, start))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
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
        world_size=int(record["world_size"]),
        step_size=int(record["world_size"]) * int(record["batch_size"]),
        dataset=str(record["dataset"]),
        num_samples=int(record["num_samples"]),
        shuffled=bool(record["shuffled"]),
        even=str(record["even"]),
        endless=record["steps_per_epoch"] is not None,
        place=(int(record["epoch"]), int(record["consumed"])),
        first_pass=int(record["pass"]),
        first_position=int(record["position"]),
        closed=_place(record["closed"]),
    )
    if not 0 <= start.num_samples <= MAX_SAMPLES:
        raise ValueError(f"a dataset of {start.num_samples} samples")
    if min(*start.place, start.step_size - 1) < 0 or not 0 <= start.first_pass < 2**62:
        raise ValueError("an epoch before the first")
    return start


def _place(closed: Any) -> Place | None:
    if closed is None:
        return None
    epoch, consumed = closed
    return int(epoch), int(consumed)


def _skipped(record: dict[str, Any], start: Start | None) -> Skipped:
    if start is None:
        raise ValueError("a jump before its attempt's start")
    place = (int(record["epoch"]), int(record["consumed"]))
    return Skipped(start.attempt, place, int(record["skipped"]))


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
