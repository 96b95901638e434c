"""Is each logged row what the plan has for its rank and step?

The plan of a row follows from its attempt's start and the samples a shard, and does not depend on
what was logged before: it is the loader's own arithmetic, evaluated for many steps of a rank at
once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardloader.errors import UsageError
from shardloader.order.epoch import Order
from shardloader.order.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from shardloader.order.grid import Grid
    from shardloader.planning.log_reader import Logged
    from shardloader.planning.sample_log import Start


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """Where logged rows differ from their plan.

    is_elsewhere: slots whose sample or pass is not the plan's; is_mismarked: slots that are valid
    and the plan has a pad there, or the other way round: bool [slots]. lacking_row, lacking,
    lacking_number: slots that the plan has and the row does not: the row, the plan's sample and
    its pass, int64.
    """

    is_elsewhere: NDArray[np.bool_]
    is_mismarked: NDArray[np.bool_]
    lacking_row: NDArray[np.int64]
    lacking: NDArray[np.int64]
    lacking_number: NDArray[np.int64]


class _Constants(NamedTuple):
    """What a plan follows from, besides the epoch and the position."""

    dataset: str
    seed: int
    window: int | None
    steps_per_epoch: int | None
    grid: Grid
    world_size: int
    batch_size: int
    even: str

    @classmethod
    def of(cls, start: Start) -> _Constants:
        return cls(*(getattr(start, name) for name in cls._fields))


class _Group(NamedTuple):
    """Rows of one rank in one epoch, a whole number of steps apart, and the schedule they follow.

    steps: the step of each row, counted from where the schedule starts; None for the schedule if
    the order has no such epoch.
    """

    schedule: Schedule | None
    rank: int
    rows: NDArray[np.int64]
    steps: NDArray[np.int64]


def compared(
    logged: Logged, counts: Mapping[str, NDArray[np.int64]], tell: Callable[[int], Any]
) -> Placement:
    """Compare every row with the plan for its dataset.

    counts: by a dataset's digest the samples a shard. tell: called with the number of slots
    compared since the last call.
    """
    slots = len(logged.index)
    found = _Found(np.ones(slots, dtype=bool), np.zeros(slots, dtype=bool), [])
    for group in _groups(logged, counts):
        if group.schedule is None:
            continue
        dealing = group.schedule.dealing
        batches = dealing.num_batches(group.rank) if group.rank < dealing.world_size else 0
        is_planned = group.steps < batches
        rows, steps = group.rows[is_planned], group.steps[is_planned]
        at_once = group.schedule.steps_at_once(1)
        for first in range(0, len(rows), at_once):
            chunk = slice(first, first + at_once)
            part = group._replace(rows=rows[chunk], steps=steps[chunk])
            tell(_compare(logged, part, found))
    lacking = [np.concatenate(parts) for parts in zip(*found.lacking, strict=True)]
    row, index, number = lacking or [np.zeros(0, dtype=np.int64)] * 3
    return Placement(
        is_elsewhere=found.is_elsewhere,
        is_mismarked=found.is_mismarked,
        lacking_row=row,
        lacking=index,
        lacking_number=number,
    )


class _Found(NamedTuple):
    """A Placement in the making; rows that nothing was said of are elsewhere."""

    is_elsewhere: NDArray[np.bool_]
    is_mismarked: NDArray[np.bool_]
    lacking: list[tuple[NDArray[np.int64], ...]]


def _groups(logged: Logged, counts: Mapping[str, NDArray[np.int64]]) -> Iterator[_Group]:
    numbers: dict[_Constants, int] = {}
    of_start = [numbers.setdefault(_Constants.of(each), len(numbers)) for each in logged.starts]
    constants, step_size = list(numbers), logged.of_start("step_size")
    # Steps that lie whole steps apart follow one schedule, which begins less than a step from the
    # epoch's start.
    steps, base = np.divmod(logged.consumed, step_size)
    keys = (
        np.array(of_start, dtype=np.int64)[logged.start],
        logged.epoch,
        base,
        logged.of_start("rank"),
    )
    order = np.lexsort((steps, *reversed(keys)))
    changes = np.zeros(max(0, len(order) - 1), dtype=bool)
    for key in keys:
        changes |= np.diff(key[order]) != 0
    schedule, known = None, None
    for rows in np.split(order, np.flatnonzero(changes) + 1):
        if not rows.size:
            continue
        number, epoch, consumed, rank = (int(key[rows[0]]) for key in keys)
        if known != (number, epoch, consumed):
            known = number, epoch, consumed
            known_counts = counts[constants[number].dataset]
            schedule = _schedule(constants[number], known_counts, epoch=epoch, consumed=consumed)
        yield _Group(schedule, rank, rows, steps[rows])


def _schedule(
    constants: _Constants, counts: NDArray[np.int64], *, epoch: int, consumed: int
) -> Schedule | None:
    try:
        order = Order(
            counts=counts,
            seed=constants.seed,
            window=constants.window,
            grid=constants.grid,
            steps_per_epoch=constants.steps_per_epoch,
        )
        return Schedule.of(
            order,
            epoch=epoch,
            consumed=consumed,
            world_size=constants.world_size,
            batch_size=constants.batch_size,
            even=constants.even,
        )
    except UsageError:  # no such order, epoch or position: nothing in the log can be in place
        return None


def _compare(logged: Logged, group: _Group, found: _Found) -> int:
    """Compare rows with their plan; returns the slots of the plan."""
    if group.schedule is None:
        raise AssertionError
    plan = group.schedule.reader(group.rank).steps(group.steps)
    place = np.arange(group.schedule.dealing.batch_size, dtype=np.int64)
    is_planned = place < plan.size[:, None]
    is_logged = place < logged.sizes[group.rows][:, None]
    both = is_planned & is_logged
    slot = (logged.offsets[group.rows][:, None] + place)[both]
    found.is_elsewhere[slot] = (logged.index[slot] != plan.index[both]) | (
        logged.number[slot] != plan.passes[both]
    )
    is_valid = place < logged.valid[group.rows][:, None]
    found.is_mismarked[slot] = is_valid[both] != plan.valid[both]
    lacking = is_planned & ~is_logged
    if lacking.any():
        row = np.broadcast_to(group.rows[:, None], lacking.shape)
        found.lacking.append((row[lacking], plan.index[lacking], plan.passes[lacking]))
    return is_planned.size
