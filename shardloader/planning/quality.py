"""How well does a plan shuffle, beside a perfect shuffle?

Measured on integers, no shard is read. Two questions: do samples that are neighbours on disk come
far apart in training, and do samples that come together stem from many shards? Neighbours on disk
are samples i and i+1 of one shard. A perfect shuffle is a permutation of all samples of which each
is equally likely; what it gives on average is computed here from formulas.

Where all of it is too much work, some of it is looked at, chosen without chance and spread evenly;
`Measured.num_looked_at` says how much. What is not to be had at that cost is None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardloader.order.grid import Places
from shardloader.order.window import shuffled
from shardloader.planning.lanes import block, distinct, lane_positions

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from shardloader.order.epoch import Order, PassOrder
    from shardloader.order.schedule import Schedule
    from shardloader.planning.planned import Plan

MOST_WORK = 40_000_000  # words of the shuffle and positions, for each measure
MOST_RUNS = 200  # batches, or runs of batches, that are looked at
MEASURES = 4  # distances are one
STEPS_OF_A_RUN = 100
PAIRS_OF_A_STRETCH = 20_000  # pairs of neighbours looked at in one place

_BLOCKS = 3  # of the shuffle that a position needs
_WORK_A_SAMPLE = 5  # where every pair is looked at
_WORK_A_LANE = 2_000
_OFFSETS_AT_ONCE = 1 << 20
_LARGEST_TABLE = 1 << 22
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A figure of the plan, the same of a perfect shuffle, and how much was looked at.

    plan: None where it would be too much work; num_looked_at: of num_all batches, runs of steps or
    pairs of neighbours.
    """

    plan: float | None
    perfect: float
    num_looked_at: int
    num_all: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How well a plan shuffles.

    shards_a_rank_batch, shards_a_global_batch, shards_a_run: different shards, on average, in a
    full batch of a rank, of all ranks, and in `run_steps` steps in a row. mean_distance,
    median_distance: how far apart neighbours on disk come in the order of training, as a share of
    one pass over the data; same_batch: the share of them that come in one global batch.
    """

    shards_a_rank_batch: Measured
    shards_a_global_batch: Measured
    shards_a_run: Measured
    run_steps: int
    mean_distance: Measured
    median_distance: Measured
    same_batch: Measured


def quality(
    plan: Plan, *, most_work: int = MOST_WORK, advance: Callable[[int], object] = int
) -> Quality:
    """Measure a plan; each of MEASURES costs a few seconds at most, and `advance` is told of it."""
    dealing, counts = plan.dealing, plan.schedule.order.counts
    run_steps = max(1, min(STEPS_OF_A_RUN, dealing.num_full))
    shards = _all_shards(plan) if _is_small(plan, most_work) else None
    of_a_rank = _shards_a_rank_batch(plan, shards, most_work)
    advance(1)
    of_all = _shards_a_run(plan, shards, 1, most_work)
    advance(1)
    of_a_run = _shards_a_run(plan, shards, run_steps, most_work)
    advance(1)
    distances = _neighbours(plan, most_work)
    advance(1)
    return Quality(
        shards_a_rank_batch=Measured(
            perfect=distinct_shards(counts, dealing.batch_size), **of_a_rank
        ),
        shards_a_global_batch=Measured(
            perfect=distinct_shards(counts, dealing.step_size), **of_all
        ),
        shards_a_run=Measured(
            perfect=distinct_shards(counts, run_steps * dealing.step_size), **of_a_run
        ),
        run_steps=run_steps,
        **distances,
    )


def distinct_shards(counts: NDArray[np.int64], num_drawn: int) -> float:
    """Different shards that `num_drawn` samples of a perfect shuffle stem from, on average.

    Of N samples, b are drawn, each set of b equally likely. Those that avoid a shard of n samples
    are drawn from the N - n others: C(N-n, b) of C(N, b) sets. So a shard is among them with the
    probability 1 - C(N-n, b) / C(N, b), and the average number of shards is the sum of that over
    the shards. The ratio is the product of 1 - b / (N - i) over i = 0 .. n-1, and as well of
    1 - n / (N - i) over i = 0 .. b-1.
    """
    total = int(counts.sum())
    drawn = min(num_drawn, total)
    if drawn == 0:
        return 0.0
    sizes, times = np.unique(counts, return_counts=True)
    in_table = sizes <= _LARGEST_TABLE
    number = np.arange(int(sizes[in_table].max(initial=0)), dtype=np.float64)
    left = np.maximum(1 - drawn / (total - number), 0) if number.size else number
    avoids = np.concatenate([[1.0], np.cumprod(left)])
    found = float((times[in_table] * (1 - avoids[sizes[in_table]])).sum())
    for size, often in zip(sizes[~in_table].tolist(), times[~in_table].tolist(), strict=True):
        found += often * (1 - _avoided(total, size, drawn))
    return found


def _avoided(total: int, size: int, drawn: int) -> float:
    """C(total - size, drawn) / C(total, drawn), factor by factor of the shorter product."""
    if size + drawn > total:
        return 0.0
    few, many = sorted((size, drawn))
    if few <= _LARGEST_TABLE:
        logarithms = np.log1p(-many / (total - np.arange(few, dtype=np.float64)))
        return math.exp(float(logarithms.sum()))
    # Every factor as the middle one: of so many, these differ only where the product is 0.
    return math.exp(few * math.log1p(-many / (total - few / 2)))


def mean_distance(num_samples: int) -> float:
    """The average distance of two samples in a perfect shuffle of N, in places: (N + 1) / 3.

    Of the N (N - 1) / 2 pairs of places, N - d are d apart; the sum of d (N - d) over d is
    (N - 1) N (N + 1) / 6. Fewer than two samples have no distance; it is 0.
    """
    return (num_samples + 1) / 3 if num_samples > 1 else 0.0


def median_distance(num_samples: int) -> int:
    """The median distance of two samples in a perfect shuffle of N, in places.

    The least d such that half of the N (N - 1) / 2 pairs of places are at most d apart; those are
    d N - d (d + 1) / 2. For large N it is about N (1 - 1 / sqrt(2)).
    """
    low, high = 0, max(0, num_samples - 1)
    while low < high:
        middle = (low + high) // 2
        near = middle * num_samples - middle * (middle + 1) // 2
        if 4 * near >= num_samples * (num_samples - 1):
            high = middle
        else:
            low = middle + 1
    return low


def same_batch(num_samples: int, step_size: int) -> float:
    """The probability that two samples of a perfect shuffle of N come in one global batch.

    The steps hold G samples each and the last what is left; of the N (N - 1) ordered pairs of
    places, k (k - 1) lie in a step of k samples.
    """
    if num_samples < 2:
        return 0.0
    full, rest = divmod(num_samples, step_size)
    pairs = full * step_size * (step_size - 1) + rest * (rest - 1)
    return pairs / (num_samples * (num_samples - 1))


def spread_evenly(total: int, wanted: int) -> list[int]:
    """Some of the numbers 0 .. total-1, ascending: all if they are few, else spread without chance.

    Multiples of the golden section, which fall in step with no period of the plan (equal distances
    might meet one worker only).

    >>> spread_evenly(3, 5), spread_evenly(100, 4)
    ([0, 1, 2], [0, 23, 61, 85])
    """
    if total <= wanted:
        return list(range(total))
    return sorted({int(number * _GOLDEN % 1 * total) for number in range(wanted)})


def _cost(order: Order, num_positions: int, num_lanes: int) -> int:
    """Words of the shuffle that positions need, which lie close together in each of some lanes."""
    blocks = min(num_positions, num_lanes)
    return num_positions + _BLOCKS * blocks * block(order)


def _affordable(cost: int, most_work: int) -> int:
    return min(MOST_RUNS, most_work // max(1, cost))


def _looked_at(values: list[int], num_all: int | None) -> dict[str, Any]:
    """The mean of what was looked at; num_all: None for all of it."""
    mean = sum(values) / len(values) if values else None
    num_all = len(values) if num_all is None else num_all
    return {"plan": mean, "num_looked_at": len(values), "num_all": num_all}


def _is_small(plan: Plan, most_work: int) -> bool:
    """Whether every sample can be looked at."""
    grid, dealing = plan.schedule.order.grid, plan.dealing
    largest = max(plan.schedule.order.num_samples, dealing.length - dealing.consumed)
    set_up = (grid.ranks * grid.workers + dealing.world_size) * _WORK_A_LANE
    return largest * _WORK_A_SAMPLE + set_up <= most_work


def _all_shards(plan: Plan) -> NDArray[np.int32]:
    """The shards of all full steps, [steps, slots of all ranks]."""
    dealing, at_once = plan.dealing, plan.schedule.steps_at_once(1)
    found = np.empty((dealing.num_full, dealing.world_size, dealing.batch_size), dtype=np.int32)
    for rank in range(dealing.world_size):
        reader = plan.schedule.reader(rank)
        for first in range(0, dealing.num_full, at_once):
            steps = np.arange(first, min(first + at_once, dealing.num_full), dtype=np.int64)
            found[first : first + at_once, rank] = reader.steps(steps).shard
    return found.reshape(dealing.num_full, dealing.step_size)


def _different(rows: NDArray[np.int32]) -> NDArray[np.int64]:
    """How many different values each row holds."""
    found: NDArray[np.int64] = 1 + np.count_nonzero(np.diff(np.sort(rows, axis=1), axis=1), axis=1)
    return found


def _shards_a_rank_batch(
    plan: Plan, shards: NDArray[np.int32] | None, most_work: int
) -> dict[str, Any]:
    dealing, order = plan.dealing, plan.schedule.order
    if shards is not None:
        return _looked_at(_different(shards.reshape(-1, dealing.batch_size)).tolist(), None)
    lanes = -(-order.grid.ranks // dealing.world_size) + 1
    total = dealing.num_full * dealing.world_size
    found = []
    wanted = _affordable(_cost(order, dealing.batch_size, lanes), most_work)
    for number in spread_evenly(total, wanted):
        step, rank = divmod(number, dealing.world_size)
        found.append(len(distinct(plan.batch(step, rank).shard)))
    return _looked_at(found, total)


def _shards_a_run(
    plan: Plan, shards: NDArray[np.int32] | None, num_steps: int, most_work: int
) -> dict[str, Any]:
    dealing, order = plan.dealing, plan.schedule.order
    if shards is not None and num_steps == 1:
        return _looked_at(_different(shards).tolist(), None)
    total = max(0, dealing.num_full - num_steps + 1) if dealing.num_full else 0
    if shards is not None:
        runs = (shards[first : first + num_steps] for first in spread_evenly(total, MOST_RUNS))
        return _looked_at([int(_different(run.reshape(1, -1))[0]) for run in runs], total)
    grid, size = order.grid, num_steps * dealing.step_size
    starts_with_one = dealing.step_size == grid.step and dealing.consumed % grid.step == 0
    batches = min(grid.workers, -(-size // grid.step) + (not starts_with_one))  # canonical ones
    found = []
    wanted = _affordable(_cost(order, size, grid.ranks * batches), most_work)
    for step in spread_evenly(total, wanted):
        start = dealing.first + dealing.consumed + step * dealing.step_size
        found.append(len(distinct(_shards(plan.schedule, start, start + size))))
    return _looked_at(found, total)


def _shards(schedule: Schedule, start: int, stop: int) -> NDArray[np.int64]:
    """The shards of virtual positions start .. stop-1."""
    parts = []
    while start < stop:
        number, first = divmod(start, schedule.order.num_samples)
        last = min(first + stop - start, schedule.order.num_samples)
        positions = np.arange(first, last, dtype=np.int64)
        parts.append(schedule.one_pass(number).locate(positions).shard)
        start += last - first
    return np.concatenate(parts)


class _Apart(NamedTuple):
    """Of pairs of neighbours on disk: places between them in training, and whether in one step."""

    places: NDArray[np.int64]
    in_one_step: NDArray[np.bool_]


def _neighbours(plan: Plan, most_work: int) -> dict[str, Measured]:
    """The distances of neighbours on disk, in the pass that the plan's position lies in.

    Steps are those of the plan's topology, also before its position.
    """
    order, dealing = plan.schedule.order, plan.dealing
    total = order.num_samples
    found = _all_pairs(plan) if _is_small(plan, most_work) else _some(plan, most_work)
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
    wanted = _affordable(reach + _BLOCKS * block(order), most_work)
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
    even, extra = divmod(lanes.num_batches, lanes.grid.workers)
    batches = rank * lanes.num_batches + worker * even + min(worker, extra)
    start = batches * lanes.grid.batch
    length = (even + (worker < extra)) * lanes.grid.batch
    offset = np.arange(min(first, length), min(stop, length), dtype=np.int64)
    same = np.zeros_like(offset)
    position = lane_positions(lanes.grid, same + rank, same + worker, offset)
    place = start + offset
    if one_pass.window is not None:
        places = Places(same + start, same + start + length, place)
        place = shuffled(places, window=one_pass.window, longest=lanes.longest, key=one_pass.key)
    return _Drawn(place, position, start)
