"""The closed forms are what the plan deals out, counted slot by slot."""

from __future__ import annotations

import numpy as np
import pytest

from shardloader.planning.plan import plan
from shardloader.planning.shares import batches_a_rank, samples_a_rank, samples_a_worker
from shardloader.planning.spread import Spread
from tests.property.order_cases import read_by


@pytest.mark.parametrize("num_workers", [0, 2, 5])
@pytest.mark.parametrize("even", ["pad", "drop", "join"])
@pytest.mark.parametrize("world_size", [1, 3, 12])
@pytest.mark.parametrize("samples", [0, 5, 24, 96, 103])
def test_shares_are_what_the_plan_deals_out(even, world_size, samples, num_workers):
    made = plan([samples], batch_size=4, world_size=world_size, even=even, num_workers=num_workers)
    workers = max(1, num_workers)
    valid = np.zeros((world_size, workers), dtype=np.int64)
    for rank in range(world_size):
        for step, of_step in enumerate(read_by(made.schedule, rank).valid):
            valid[rank, step % workers] += of_step.sum()
    batches = [made.dealing.num_batches(rank) for rank in range(world_size)]
    assert batches_a_rank(made.dealing) == spread(batches)
    assert samples_a_rank(made.dealing) == spread(valid.sum(axis=1))
    assert samples_a_worker(made.dealing, num_workers) == spread(valid.ravel())


def spread(values):
    unique, times = np.unique(values, return_counts=True)
    found = Spread.of(zip(unique.tolist(), times.tolist(), strict=True))
    assert found.median == np.median(values)
    return found
