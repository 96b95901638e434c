"""How far apart in training do samples come that are neighbours on disk?

Those are samples i and i+1 of one shard. Measured on the integers of a plan, no shard is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardloader.order.grid import Places
from shardloader.order.window import shuffled
from shardloader.planning.lanes import block, lane_positions
from shardloader.planning.looking import BLOCKS, Measured, affordable, is_small, spread_evenly
from shardloader.planning.perfect import mean_distance, median_distance, same_batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.order.epoch import PassOrder
    from shardloader.planning.planned import Plan

PAIRS_OF_A_STRETCH = 20_000  # pairs of neighbours looked at in one place
_OFFSETS_AT_ONCE = 1 << 20


class _Apart(NamedTuple):
    """Of pairs of neighbours on disk: places between them in training, and whether in one step."""

    places: NDArray[np.int64]
    in_one_step: NDArray[np.bool_]


def neighbours(plan: Plan, most_work: int) -> dict[str, Measured]:
    """The distances of neighbours on disk, in the pass that the plan's position lies in.

    Steps are those of the plan's topology, also before its position.
    """
    order, dealing = plan.schedule.order, plan.dealing
    total = order.num_samples
    found = _all_pairs(plan) if is_small(plan, most_work) else _some(plan, most_work)
    size, num_looked_at = max(1, total), len(found.places)
    mean = median = together = None
    if num_looked_at:
        mean, median = float(found.places.mean()) / size, float(np.median(found.places)) / size
        together = float(found.in_one_step.mean())
    seen = {
        "num_looked_at": num_looked_at,
        "num_all": int(np.maximum(order.counts - 1, 0).sum()),
    }
    return {
        "mean_distance": Measured(plan=mean, perfect=mean_distance(total) / size, **seen),
        "median_distance": Measured(plan=median, perfect=median_distance(total) / size, **seen),
        "same_batch": Measured(plan=together, perfect=same_batch(total, dealing.step_size), **seen),
    }


def _pass_number(plan: Plan) -> int:
    return (plan.dealing.first + plan.dealing.consumed) // max(1, plan.schedule.order.num_samples)


def _apart(plan: Plan, left: NDArray[np.int64], right: NDArray[np.int64]) -> _Apart:
    """How far apart positions of one pass come."""
    dealing = plan.dealing
    before = _pass_number(plan) * plan.schedule.order.num_samples
    begun = (dealing.first + dealing.consumed - before) % dealing.step_size
    steps = ((at - begun) // dealing.step_size for at in (left, right))
    return _Apart(np.abs(left - right), np.equal(*steps))


def _all_pairs(plan: Plan) -> _Apart:
    """Every pair of neighbours."""
    order = plan.schedule.order
    one_pass = plan.schedule.one_pass(_pass_number(plan))
    position = np.arange(order.num_samples, dtype=np.int64)  # at each place; right in the tail
    grid = order.grid
    for rank, worker in np.ndindex(grid.ranks, grid.workers):
        if not order.lanes.num_batches:
            break
        for first in range(0, order.lanes.longest, _OFFSETS_AT_ONCE):
            drawn = _drawn(one_pass, rank, worker, first, first + _OFFSETS_AT_ONCE)
            position[drawn.place] = drawn.position
    turn_ends = one_pass.line.starts[1:-1]
    is_pair = np.ones(max(0, order.num_samples - 1), dtype=bool)
    ends = turn_ends[(turn_ends > 0) & (turn_ends < order.num_samples)]
    is_pair[ends - 1] = False
    left = np.flatnonzero(is_pair)
    return _apart(plan, position[left], position[left + 1])


def _some(plan: Plan, most_work: int) -> _Apart:
    """Pairs of neighbours in some stretches of some lanes, all that lie there."""
    order, grid = plan.schedule.order, plan.schedule.order.grid
    one_pass = plan.schedule.one_pass(_pass_number(plan))
    margin = 2 * block(order)  # a sample travels less
    reach = min(order.lanes.longest, PAIRS_OF_A_STRETCH + 2 * margin)
    wanted = affordable(reach + BLOCKS * block(order), most_work)
    stretches = -(-order.lanes.longest // PAIRS_OF_A_STRETCH)
    found = [_Apart(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool))]
    for number in spread_evenly(grid.ranks * grid.workers * stretches, wanted):
        lane, stretch = divmod(number, stretches)
        first = stretch * PAIRS_OF_A_STRETCH
        stop = first + PAIRS_OF_A_STRETCH
        drawn = _drawn(
            one_pass, *divmod(lane, grid.workers), max(0, first - margin), stop + margin + 1
        )
        by_place = np.argsort(drawn.place)
        place, position = drawn.place[by_place], drawn.position[by_place]
        turn = np.searchsorted(one_pass.line.starts, place, side="right")
        left = place[:-1] - drawn.start
        is_pair = (np.diff(place) == 1) & (np.diff(turn) == 0) & (first <= left) & (left < stop)
        found.append(_apart(plan, position[:-1][is_pair], position[1:][is_pair]))
    return _Apart(*(np.concatenate(column) for column in zip(*found, strict=True)))


class _Drawn(NamedTuple):
    """Places of the line and the positions that take their samples; where the lane starts."""

    place: NDArray[np.int64]
    position: NDArray[np.int64]
    start: int


def _drawn(one_pass: PassOrder, rank: int, worker: int, first: int, stop: int) -> _Drawn:
    """What the offsets first .. stop-1 of lane (rank, worker) draw, as far as the lane goes."""
    lanes = one_pass.lanes
    lane = np.array([rank], dtype=np.int64), np.array([worker], dtype=np.int64)
    start, length = (int(each[0]) for each in lanes.extents(*lane))
    offset = np.arange(min(first, length), min(stop, length), dtype=np.int64)
    same = np.zeros_like(offset)
    position = lane_positions(lanes.grid, same + rank, same + worker, offset)
    place = start + offset
    if one_pass.window is not None:
        places = Places(same + start, same + start + length, place)
        place = shuffled(places, window=one_pass.window, longest=lanes.longest, key=one_pass.key)
    return _Drawn(place, position, start)
