"""What did the ranks really read, was it every sample once, and was it what the plan says?

Joins what `loader.log_samples` wrote (`sample_log`) to the attempts that led to the final model
(`attempts`), to what need not be read (`stretches`), and, where the dataset is at hand, to the
plan (`placement`). The dataset's manifest is enough: no shard is read.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardloader.errors import DataError, UsageError
from shardloader.format.manifest import Manifest
from shardloader.order.audit import tally
from shardloader.order.grid import Lanes
from shardloader.planning.attempts import Attempts
from shardloader.planning.excused import Ranges, left_out, skipped
from shardloader.planning.grown import check_is_one, manifests_of
from shardloader.planning.history import EpochAudit, Fault, History
from shardloader.planning.log_reader import LogReader
from shardloader.planning.placement import compared
from shardloader.reading.catalog import Catalog, open_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from os import PathLike

    from numpy.typing import NDArray

    from shardloader.planning.log_reader import Logged
    from shardloader.planning.placement import Placement
    from shardloader.planning.sample_log import Start

    # Called with what is being done, in which unit, and how much there is of it; gives what is
    # called with how much was done.
    Watch = Callable[[str, str, int], AbstractContextManager[Callable[[int], Any]]]

MAX_GAP = 1000  # epochs without a record, before logs are taken for those of different runs


def _unwatched(_what: str, _unit: str, _total: int) -> AbstractContextManager[Callable[[int], Any]]:
    return nullcontext(lambda _done: None)


def audit_logs(
    folder: str | PathLike[str],
    source: str | PathLike[str] | Catalog | Manifest | Sequence[Any] | None = None,
    *,
    watch: Watch = _unwatched,
) -> History:
    """Audit the logs in a folder.

    source: where the dataset lies, or its Catalog or Manifest, to compare every row with the plan;
    without it samples are counted only. Where shards were appended meanwhile, rows are compared
    with what the dataset was then, which a Manifest alone can't tell. watch: makes a progress bar,
    from what is done, its unit and total.
    Raises UsageError for a folder without logs, with those of different datasets or of another
    one than `source`; DataError for a line that is no record (a last line without its end is what
    a kill leaves, and is left out).
    """
    paths = sorted(Path(folder).glob("rank-*-of-*.jsonl"))
    if not paths:
        raise UsageError(
            f"an audit reads the files rank-*.jsonl that loader.log_samples(folder) wrote, and "
            f"{folder} holds none"
        )
    logged = _read(paths, watch)
    if not logged.starts:
        raise UsageError(f"the logs in {folder} are empty: no rank has received a batch")
    check_is_one(logged.starts, folder)
    placement = None
    if source is not None:
        known = source if isinstance(source, Manifest | Catalog) else _opened(source)
        manifests = manifests_of(logged.starts, known, folder)
        with watch("comparing", "sample", len(logged.index)) as tell:
            counts = {digest: manifest.counts for digest, manifest in manifests.items()}
            placement = compared(logged, counts, tell)
    return _history(logged, placement)


def _opened(source: Any) -> Catalog:
    return open_catalog(source, may_index=False)


def _read(paths: list[Path], watch: Watch) -> Logged:
    reader = LogReader()
    with watch("reading", "B", sum(path.stat().st_size for path in paths)) as tell:
        for path in paths:
            reader.read(path, tell)
    return reader.logged()


def _history(logged: Logged, placement: Placement | None) -> History:
    attempts = Attempts(logged.starts)
    rows = attempts.final_rows(logged)
    first = min(logged.starts, key=lambda start: start.place)
    reached = attempts.reached(logged, rows)
    return History(
        attempts=len(attempts),
        superseded=len(logged.start) - len(rows),
        num_samples=max(start.num_samples for start in logged.starts),
        is_compared=placement is not None,
        counts_passes=first.steps_per_epoch is not None,
        may_be_empty=first.even == "drop" and first.num_samples < first.step_size,
        epochs=() if reached is None else tuple(_epochs(logged, placement, rows, reached=reached)),
        run_faults=(*_without_log(logged, rows), *_superseded(logged, placement, rows)),
    )


class _Slots(NamedTuple):
    """The slots of some rows, by pass, and in a pass as the rows are.

    at: which slot of the log; number: its pass; valid; step: the number of the step among the
    rows; is_passed: whether the step lies before the position that every rank has passed.
    """

    at: NDArray[np.int64]
    number: NDArray[np.int64]
    valid: NDArray[np.bool_]
    step: NDArray[np.int64]
    is_passed: NDArray[np.bool_]

    @classmethod
    def of(cls, logged: Logged, rows: NDArray[np.int64], reached: int) -> _Slots:
        sizes = logged.sizes[rows]
        starts = np.cumsum(sizes) - sizes
        place = np.arange(int(sizes.sum()), dtype=np.int64) - np.repeat(starts, sizes)
        at = np.repeat(logged.offsets[:-1][rows], sizes) + place
        virtual = logged.virtual()[rows]
        is_next = np.diff(logged.epoch[rows], prepend=-1) != 0
        is_next |= np.diff(logged.consumed[rows], prepend=-1) != 0
        slots = cls(
            at=at,
            number=logged.number[at],
            valid=place < np.repeat(logged.valid[rows], sizes),
            step=np.repeat(np.cumsum(is_next), sizes),
            is_passed=np.repeat(virtual < reached, sizes),
        )
        if (np.diff(slots.number) >= 0).all():
            return slots
        by_pass = np.argsort(slots.number, kind="stable")
        return slots.taken(by_pass)

    def of_pass(self, number: int) -> _Slots:
        """Those of one pass."""
        first, stop = np.searchsorted(self.number, [number, number + 1])
        return self.taken(slice(int(first), int(stop)))

    def taken(self, which: slice | NDArray[np.int64]) -> _Slots:
        """Some of them."""
        return _Slots(
            at=self.at[which],
            number=self.number[which],
            valid=self.valid[which],
            step=self.step[which],
            is_passed=self.is_passed[which],
        )


def _epochs(
    logged: Logged, placement: Placement | None, rows: NDArray[np.int64], *, reached: int
) -> Iterator[EpochAudit]:
    """Audit epoch by epoch, or pass by pass, also those in between that nobody read."""
    attempts = Attempts(logged.starts)
    first = min(logged.starts, key=lambda start: start.place)
    is_endless = first.steps_per_epoch is not None
    stride = first.num_samples if is_endless else first.stride
    begin = first.virtual(first.place)
    slots = _Slots.of(logged, rows, reached)
    first_pass = begin // stride if stride else first.epoch
    last_pass = int(slots.number.max(initial=first_pass))
    _check_gap(slots.number, first_pass, last_pass)
    jumps = list(skipped(logged, attempts))
    excused = [(first_pass * stride, begin), *jumps, *left_out(logged, attempts, rows)]
    if is_endless:
        excused.append((reached, (last_pass + 1) * stride))
    may_lack, jumped = Ranges(excused), Ranges(jumps)
    wrong = _Wrong(logged, placement, rows)
    num_samples = first.num_samples
    for number in range(first_pass, last_pass + 1):
        of_pass = slots.of_pass(number)
        num_samples = _most_samples(logged, of_pass.at, before=num_samples)
        start, stop = number * stride, number * stride + num_samples
        index = logged.index[of_pass.at]
        read = index[of_pass.valid]
        passed = min(max(reached, start), stop)
        read_in_passed = int(np.count_nonzero(of_pass.valid & of_pass.is_passed))
        yield EpochAudit(
            epoch=number,
            tally=tally([(index, of_pass.valid)], num_samples),
            bad=np.sort(index[np.isin(of_pass.at, logged.bad)]),
            refused=np.sort(index[np.isin(of_pass.at, logged.refused)]),
            steps=len(np.unique(of_pass.step)),
            may_lack=may_lack.within(start, stop),
            skipped=jumped.within(start, stop),
            lost=max(0, passed - start - may_lack.within(start, passed) - read_in_passed),
            out_of_place=wrong.out_of_place(of_pass.at, number),
            mismarked=wrong.mismarked(of_pass.at),
            order=hashlib.blake2b(read.tobytes(), digest_size=16).digest(),
            order_bits=_order_bits(_start_of(logged, of_pass.at), read.size),
        )


def _most_samples(logged: Logged, slots: NDArray[np.int64], *, before: int) -> int:
    """How many samples the dataset had that some slots were read from; as before without slots."""
    if not slots.size or len({start.num_samples for start in logged.starts}) == 1:
        return before
    rows = np.unique(np.searchsorted(logged.offsets, slots, side="right") - 1)
    starts: list[int] = np.unique(logged.start[rows]).tolist()
    return max(logged.starts[start].num_samples for start in starts)


def _check_gap(numbers: NDArray[np.int64], first: int, last: int) -> None:
    if last - first > len(np.unique(numbers)) + MAX_GAP:
        raise DataError(
            f"the logs begin in epoch {first} and reach epoch {last}, with nothing between: keep "
            "each run's logs in a folder of their own"
        )


def _start_of(logged: Logged, slots: NDArray[np.int64]) -> Start | None:
    """The start that the first of some slots follows."""
    if not slots.size:
        return None
    row = int(np.searchsorted(logged.offsets, slots[0], side="right")) - 1
    return logged.starts[int(logged.start[row])]


def _order_bits(start: Start | None, num_read: int) -> float:
    """About how many orders so many samples of an epoch can have, as a power of two.

    What the windows can make of it, or the shards, whichever is more.
    """
    if start is None or start.window is None:
        return 0.0
    grid, lanes = start.grid, Lanes(grid=start.grid, num_samples=start.num_samples)
    bits = 0.0
    if lanes.num_batches:
        num_lanes = grid.ranks * min(grid.workers, lanes.num_batches)
        in_lane = min(num_read, lanes.tail_start) // num_lanes
        block = min(start.window, lanes.longest)
        blocks, more = divmod(in_lane, block)
        bits = num_lanes * (blocks * _bits_of_orders(block) + _bits_of_orders(more))
    # However the samples left out lie, at least so many shards were read from.
    shards = start.num_shards - (start.num_samples - num_read)
    return max(bits, _bits_of_orders(max(0, shards)))


def _bits_of_orders(number: int) -> float:
    """The orders of so many things, as a power of two.

    >>> _bits_of_orders(1), round(2 ** _bits_of_orders(4))
    (0.0, 24)
    """
    return math.lgamma(number + 1) / math.log(2)


class _Wrong:
    """The faults of a placement by pass; none without a placement."""

    def __init__(
        self, logged: Logged, placement: Placement | None, rows: NDArray[np.int64]
    ) -> None:
        self._logged = logged
        self._placement = placement
        if placement is not None:
            self._is_among = np.isin(placement.lacking_row, rows)

    def out_of_place(self, slots: NDArray[np.int64], number: int) -> NDArray[np.int64]:
        """Samples at some slots of a pass that are elsewhere, and those that rows of it lack."""
        if self._placement is None:
            return np.zeros(0, dtype=np.int64)
        lacks = self._is_among & (self._placement.lacking_number == number)
        elsewhere = self._logged.index[slots[self._placement.is_elsewhere[slots]]]
        return np.concatenate([elsewhere, self._placement.lacking[lacks]])

    def mismarked(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Samples at some slots that are valid and should be pads, or the other way round."""
        if self._placement is None:
            return np.zeros(0, dtype=np.int64)
        return self._logged.index[slots[self._placement.is_mismarked[slots]]]


def _superseded(
    logged: Logged, placement: Placement | None, rows: NDArray[np.int64]
) -> Iterator[Fault]:
    """What differs from the plan in rows that were rolled back."""
    others = np.setdiff1d(np.arange(len(logged.start)), rows)
    if placement is None or not others.size:
        return
    slots, wrong = _Slots.of(logged, others, 0), _Wrong(logged, placement, others)
    for number in np.unique(slots.number).tolist():
        at = slots.of_pass(number).at
        for kind, found in (
            ("out_of_place", wrong.out_of_place(at, number)),
            ("mask", wrong.mismarked(at)),
        ):
            if found.size:
                yield Fault(kind, number, found, is_superseded=True)


def _without_log(logged: Logged, rows: NDArray[np.int64]) -> Iterator[Fault]:
    """Launches of which some rank left no file; those that were rolled back whole don't count."""
    seen: set[int] = set()
    starts, first = np.unique(logged.start[rows], return_index=True)
    for number, row in zip(starts.tolist(), rows[first].tolist(), strict=True):
        start = logged.starts[number]
        launch = start.attempt[0]
        there = logged.ranks[launch]
        if launch not in seen and len(there) < start.world_size:
            ranks = np.setdiff1d(np.arange(start.world_size), list(there))
            yield Fault("no_log", int(logged.epoch[row]), ranks, launch=launch)
        seen.add(launch)
