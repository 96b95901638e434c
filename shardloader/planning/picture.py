"""Which ranks and workers read which shards when, as a raster of few rows and columns?

Columns are steps, rows are shards in the order of reading; where either are many, several share a
row or a column. Where several readers read, the columns show them in turn, in proportion to what
each reads. A plan of few samples is carried out sample by sample. Of a larger one the raster shows
where a reader may be: its place in its lane and two windows to each side, farther than which no
sample travels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardloader.errors import UsageError
from shardloader.planning.lanes import block, ragged
from shardloader.planning.looking import GOLDEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardloader.planning.planned import Plan

MOST_ROWS = 600
MOST_COLUMNS = 600
MOST_EXACT = 8_000_000  # samples that are looked at one by one
MOST_POSITIONS = 16_000_000  # that are looked at where a reader may be
MOST_RANKS = 1 << 14  # each takes a millisecond or so
NOBODY = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """Who reads what when.

    rank, worker: the readers, int64 [rows, columns], NOBODY where nothing is read. columns: the
    steps at which columns begin, and the end, int64 [columns + 1], counted from the epoch's start;
    rows: the same for rows, in shards in the order of reading, pass after pass. changes: steps at
    which the topology changes. is_exact: whether every sample was looked at.
    """

    rank: NDArray[np.int64]
    worker: NDArray[np.int64]
    columns: NDArray[np.int64]
    rows: NDArray[np.int64]
    changes: tuple[int, ...]
    is_exact: bool


class _Cells(NamedTuple):
    """Cells of the raster with a reader and how much it reads there: int64 [cells]."""

    row: NDArray[np.int64]
    column: NDArray[np.int64]
    worker: NDArray[np.int64]
    amount: NDArray[np.int64]


def picture(
    stretches: Sequence[Plan],
    *,
    most_exact: int = MOST_EXACT,
    most_columns: int = MOST_COLUMNS,
    advance: Callable[[int], object] = int,
) -> Picture:
    """Look at the stretches of one epoch, which follow one another.

    `advance` is told of each rank that is done, in each stretch.

    Raises UsageError for a plan without steps, and for one of too many ranks or whose steps are too
    large to be looked at.
    """
    left = sum(plan.dealing.length - plan.dealing.consumed for plan in stretches)
    is_exact = left <= most_exact
    most_columns = _affordable_columns(stretches, most_columns, is_exact=is_exact)
    num_steps = sum(plan.steps for plan in stretches)
    first_pass, num_passes = _passes(stretches)
    turns = num_passes * len(stretches[0].schedule.order.counts)
    rows = _edges(turns, MOST_ROWS)
    parts, columns = [], [np.array([stretches[0].first_step], dtype=np.int64)]
    for plan in stretches:
        at_most = (most_columns - len(stretches)) * plan.steps // num_steps
        # In a column each worker has a turn, so that what one of them reads is no broken line.
        edges = _edges(plan.steps, max(1, min(at_most, plan.steps // _together(plan))))
        places = _Places(plan, first_pass, rows)
        parts.append(_raster(places, edges, advance, is_exact=is_exact))
        columns.append(columns[-1][-1] + edges[1:])
    return Picture(
        rank=np.concatenate([rank for rank, _ in parts], axis=1),
        worker=np.concatenate([worker for _, worker in parts], axis=1),
        columns=np.concatenate(columns),
        rows=rows,
        changes=tuple(int(each[-1]) for each in columns[1:-1]),
        is_exact=is_exact,
    )


def _affordable_columns(stretches: Sequence[Plan], wanted: int, *, is_exact: bool) -> int:
    """How many columns can be drawn; raises UsageError where that is none."""
    if not any(plan.steps for plan in stretches):
        raise UsageError("a plot shows steps, and nothing is left of this epoch: plan another")
    most_ranks = max(plan.dealing.world_size for plan in stretches)
    if most_ranks > MOST_RANKS:
        raise UsageError(
            f"a plot shows {MOST_RANKS:,} ranks at most, and the plan has {most_ranks:,}: plot a "
            "plan of fewer ranks and as much less data"
        )
    if is_exact:
        return wanted
    wanted = min(wanted, MOST_POSITIONS // max(map(_a_column, stretches)))
    if wanted < len(stretches):
        raise UsageError(
            f"a plot looks at {MOST_POSITIONS:,} positions at most, and some steps of this "
            "topology hold more: plot fewer ranks, or a smaller batch"
        )
    return wanted


def _edges(num: int, most: int) -> NDArray[np.int64]:
    """The borders of at most so many parts of 0 .. num-1, as equal as can be."""
    parts = min(num, most)
    return np.arange(parts + 1, dtype=np.int64) * num // parts


def _together(plan: Plan) -> int:
    """Steps in a row after which every worker has had its turn in every lane."""
    return max(1, plan.num_workers, plan.schedule.order.grid.workers)


def _a_column(plan: Plan) -> int:
    return plan.dealing.step_size * min(max(1, plan.steps), _together(plan))


def _passes(stretches: Sequence[Plan]) -> tuple[int, int]:
    """The first pass that the stretches read, and how many there are."""
    begin, end = stretches[0].dealing, stretches[-1].dealing
    num_samples = stretches[0].schedule.order.num_samples
    first = (begin.first + begin.consumed) // num_samples
    return first, (end.first + end.length - 1) // num_samples - first + 1


def _raster(
    places: _Places,
    edges: NDArray[np.int64],
    advance: Callable[[int], object],
    *,
    is_exact: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rank and worker that each cell shows, [rows, columns]."""
    shape, found = (places.num_rows, len(edges) - 1), []
    workers = places.num_workers
    for rank in range(places.num_ranks):
        looked = places.read(rank, edges) if is_exact else places.may_read(rank, edges)
        for cells in looked:
            cell = np.ravel_multi_index((cells.row, cells.column), shape)
            found.append((cell, rank * workers + cells.worker, cells.amount))
        advance(1)
    reader = np.full(shape, NOBODY, dtype=np.int64)
    if found:
        _show(reader.ravel(), *(np.concatenate(column) for column in zip(*found, strict=True)))
    return np.floor_divide(reader, workers), np.where(reader == NOBODY, NOBODY, reader % workers)


def _show(
    shown: NDArray[np.int64],
    cell: NDArray[np.int64],
    reader: NDArray[np.int64],
    amount: NDArray[np.int64],
) -> None:
    """Choose a reader for each cell, int64 [cells]: a quantile that differs from cell to cell.

    The quantiles are multiples of the golden section, so that neighbouring columns show readers in
    proportion to their amounts.
    """
    order = np.lexsort((reader, cell))
    cell, reader, amount = cell[order], reader[order], amount[order]
    begin = np.flatnonzero(np.diff(cell, prepend=-1))
    below = np.cumsum(amount)
    before = below[begin] - amount[begin]
    total = np.diff(np.append(before, below[-1]))
    wanted = before + (cell[begin] * GOLDEN % 1 * total).astype(np.int64)
    shown[cell[begin]] = reader[np.searchsorted(below, wanted, side="right")]


class _Places:
    """Where the readers of one plan are."""

    def __init__(self, plan: Plan, first_pass: int, rows: NDArray[np.int64]) -> None:
        self._plan, self._first_pass, self._rows = plan, first_pass, rows
        self._num_shards = len(plan.schedule.order.counts)
        self.num_rows, self.num_ranks = len(rows) - 1, plan.dealing.world_size
        self.num_workers = max(1, plan.num_workers)

    def read(self, rank: int, edges: NDArray[np.int64]) -> Iterator[_Cells]:
        """What a rank reads, sample by sample, all its steps at once."""
        plan = self._plan
        reader, num_batches = plan.schedule.reader(rank), plan.dealing.num_batches(rank)
        num_columns, keys = len(edges) - 1, []
        at_once = plan.schedule.steps_at_once(1)
        place = np.arange(plan.dealing.batch_size)
        for first in range(0, num_batches, at_once):
            steps = np.arange(first, min(first + at_once, num_batches), dtype=np.int64)
            read = reader.steps(steps)
            row = self._row(read.passes, self._turns(read.passes, read.shard))
            column = np.searchsorted(edges, steps, side="right") - 1
            key = (row * num_columns + column[:, None]) * self.num_workers
            key += (steps % self.num_workers)[:, None]
            keys.append(key[place < read.size[:, None]])
        if keys:
            different, amount = np.unique(np.concatenate(keys), return_counts=True)
            cell, worker = np.divmod(different, self.num_workers)
            yield _Cells(*np.divmod(cell, num_columns), worker, amount)

    def may_read(self, rank: int, edges: NDArray[np.int64]) -> Iterator[_Cells]:
        """Where a rank may be reading at the start of each column, as stretches of rows."""
        plan, together = self._plan, _together(self._plan)
        margin = 2 * block(plan.schedule.order)
        starts = edges[:-1]
        steps = ragged(starts, np.minimum(together, np.diff(edges)))
        steps = steps[steps < plan.dealing.num_batches(rank)]
        if not len(steps):
            return
        slots = plan.dealing.slots(steps, rank)
        for number in np.unique(slots.number).tolist():
            at_step, at_slot = np.nonzero(slots.number == number)
            places = plan.schedule.order.lanes.places(slots.position[at_step, at_slot])
            step = steps[at_step]
            # Neighbouring slots of a step lie in few lanes: one stretch for each of those.
            is_first = np.diff(places.lane_start, prepend=-1) != 0
            is_first |= np.diff(step, prepend=-1) != 0
            begin = np.flatnonzero(is_first)
            lo = np.minimum.reduceat(places.at, begin)
            hi = np.maximum.reduceat(places.at, begin) + 1
            lo = np.maximum(lo - margin, places.lane_start[begin])
            hi = np.minimum(hi + margin, places.lane_stop[begin])
            yield self._stretches(number, step[begin], lo, hi, edges)

    def _stretches(
        self,
        number: int,
        step: NDArray[np.int64],
        lo: NDArray[np.int64],
        hi: NDArray[np.int64],
        edges: NDArray[np.int64],
    ) -> _Cells:
        """The cells of places lo .. hi-1 of the line of pass `number`."""
        starts = self._plan.schedule.one_pass(number).line.starts
        first = self._row(number, np.searchsorted(starts, lo, side="right") - 1)
        last = self._row(number, np.searchsorted(starts, hi - 1, side="right") - 1)
        lengths = last - first + 1
        column = np.searchsorted(edges, step, side="right") - 1
        return _Cells(
            ragged(first, lengths),
            np.repeat(column, lengths),
            np.repeat(step % self.num_workers, lengths),
            np.repeat((hi - lo) // lengths + 1, lengths),
        )

    def _turns(self, passes: NDArray[np.int64], shard: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which shard of its pass's order of reading each shard is."""
        turn = np.empty_like(shard)
        for number in np.unique(passes).tolist():
            turn_of = np.argsort(self._plan.schedule.one_pass(number).line.shards)
            inside = passes == number
            turn[inside] = turn_of[shard[inside]]
        return turn

    def _row(self, number: NDArray[np.int64] | int, turn: NDArray[np.int64]) -> NDArray[np.int64]:
        place = (number - self._first_pass) * self._num_shards + turn
        return np.searchsorted(self._rows, place, side="right") - 1
