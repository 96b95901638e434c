"""How many samples, batches and shards does each rank of a plan read?

Samples and batches have a closed form. Shards are counted by carrying the plan out on integers:
all of it where that is little work, else a few ranks, which the result says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardloader.cli.report import Spread, progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.order.dealing import Dealing
    from shardloader.planning.plan import Plan

# In positions, of which a second does two millions or so. Setting a rank up costs about as much
# as one position for every shard and some thousands besides.
MOST_EXACT = 50_000_000
MOST_SAMPLED = 24_000_000
_RANK_COSTS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardShares:
    """Shards opened by each rank and by each of its DataLoader workers.

    num_ranks, num_steps: how many ranks and steps were looked at; is_exact: whether all were.
    """

    a_rank: Spread
    a_worker: Spread
    num_ranks: int
    num_steps: int
    is_exact: bool


def batches_a_rank(dealing: Dealing) -> Spread:
    """How many batches the ranks get."""
    without = 0  # ranks that have no last batch
    if dealing.even == "join" and dealing.rest:
        without = max(0, dealing.world_size - dealing.rest)
    steps = dealing.num_steps
    return Spread.of([(steps - 1, without), (steps, dealing.world_size - without)])


def samples_a_rank(dealing: Dealing) -> Spread:
    """How many valid samples the ranks read."""
    full = dealing.num_full * dealing.batch_size
    dealt = 0 if dealing.even == "drop" else dealing.rest
    each, more = divmod(dealt, dealing.world_size)
    return Spread.of([(full + each, dealing.world_size - more), (full + each + 1, more)])


def shards_a_rank(
    plan: Plan, *, most_exact: int = MOST_EXACT, most_sampled: int = MOST_SAMPLED
) -> ShardShares | None:
    """Count the shards that ranks and workers open; a bar shows how far it is.

    None if one batch alone is too much.
    """
    dealing, order = plan.dealing, plan.schedule.order
    if dealing.batch_size > most_sampled:
        return None
    set_up = _RANK_COSTS + len(order.counts)
    a_rank = plan.steps * dealing.batch_size + set_up
    num_ranks, steps = dealing.world_size, plan.steps
    if a_rank * num_ranks > most_exact:
        num_ranks = max(1, min(num_ranks, most_sampled // a_rank))
        steps = min(steps, max(1, most_sampled // (num_ranks * dealing.batch_size)))
    ranks = np.unique(np.linspace(0, dealing.world_size - 1, num_ranks).astype(np.int64))
    opened_by_rank, opened_by_worker = [], []
    with progress(len(ranks) * steps, unit="step", what="counting shards") as bar:
        for rank in ranks.tolist():
            pairs = _opened(plan, rank, steps, bar)
            opened_by_rank.append((len(np.unique(pairs % max(1, len(order.counts)))), 1))
            opened_by_worker += _of_workers(plan, pairs)
    return ShardShares(
        a_rank=Spread.of(opened_by_rank),
        a_worker=Spread.of(opened_by_worker),
        num_ranks=len(ranks),
        num_steps=steps,
        is_exact=len(ranks) == dealing.world_size and steps == plan.steps,
    )


def _opened(plan: Plan, rank: int, steps: int, bar: Any) -> NDArray[np.int64]:
    """Distinct (worker, shard) of a rank's first `steps`, as worker * shards + shard, int64."""
    workers, num_shards = max(1, plan.num_workers), len(plan.schedule.order.counts)
    reader, at_once = plan.schedule.reader(rank), plan.schedule.steps_at_once(1)
    place = np.arange(plan.dealing.batch_size)
    steps = min(steps, plan.dealing.num_batches(rank))
    found = np.zeros(0, dtype=np.int64)
    for first in range(0, steps, at_once):
        numbers = np.arange(first, min(first + at_once, steps), dtype=np.int64)
        read = reader.steps(numbers)
        pairs = (numbers % workers)[:, None] * num_shards + read.shard
        found = np.union1d(found, pairs[place < read.size[:, None]])
        bar.update(len(numbers))
    return found


def _of_workers(plan: Plan, pairs: NDArray[np.int64]) -> list[tuple[int, int]]:
    """How many shards each worker of a rank opens, as (shards, workers)."""
    workers, num_shards = max(1, plan.num_workers), max(1, len(plan.schedule.order.counts))
    opened = np.bincount(pairs // num_shards, minlength=workers)
    values, times = np.unique(opened, return_counts=True)
    return list(zip(values.tolist(), times.tolist(), strict=True))
