"""How well does a plan shuffle, beside a perfect shuffle?

Measured on integers, no shard is read. Two questions: do samples that are neighbours on disk come
far apart in training, and do samples that come together stem from many shards? What a perfect
shuffle gives on average is in `planning.perfect`. Where all of it is too much work, some of it is
looked at; what is not to be had at that cost is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardloader.planning.lanes import distinct
from shardloader.planning.looking import (
    MOST_RUNS,
    Measured,
    affordable,
    cost_of,
    is_small,
    spread_evenly,
)
from shardloader.planning.neighbours import neighbours
from shardloader.planning.perfect import distinct_shards

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from shardloader.order.schedule import Schedule
    from shardloader.planning.planned import Plan

MOST_WORK = 40_000_000  # words of the shuffle and positions, for each measure
MEASURES = 4  # distances are one
STEPS_OF_A_RUN = 100


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
    shards = _all_shards(plan) if is_small(plan, most_work) else None
    of_a_rank = _shards_a_rank_batch(plan, shards, most_work)
    advance(1)
    of_all = _shards_a_run(plan, shards, 1, most_work)
    advance(1)
    of_a_run = _shards_a_run(plan, shards, run_steps, most_work)
    advance(1)
    distances = neighbours(plan, most_work)
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


def _looked_at(values: list[int], num_all: int | None) -> dict[str, Any]:
    """The mean of what was looked at; num_all: None for all of it."""
    mean = sum(values) / len(values) if values else None
    num_all = len(values) if num_all is None else num_all
    return {"plan": mean, "num_looked_at": len(values), "num_all": num_all}


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
    wanted = affordable(cost_of(order, dealing.batch_size, lanes), most_work)
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
    wanted = affordable(cost_of(order, size, grid.ranks * batches), most_work)
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
