"""Which samples may fill a batch of which nothing is good."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import UsageError
from shardloader.order.epoch import Order
from shardloader.order.grid import Grid, Lanes
from shardloader.order.schedule import Schedule
from shardloader.order.substitutes import candidates, followers

GRIDS = st.builds(Grid, ranks=st.integers(1, 4), workers=st.integers(1, 3), batch=st.integers(1, 4))


@given(grid=GRIDS, num_samples=st.integers(1, 120), data=st.data())
def test_the_rest_of_the_lane_comes_first_and_every_other_position_is_tried(
    grid, num_samples, data
):
    lanes = Lanes(grid=grid, num_samples=num_samples)
    position = data.draw(st.integers(0, num_samples - 1))
    found = np.concatenate([*followers(lanes, position), np.zeros(0, dtype=np.int64)])
    assert set(found.tolist()) == set(range(num_samples)) - {position}
    everything = np.arange(num_samples, dtype=np.int64)
    lane_of = lanes.lane_numbers(everything)
    behind = everything[(lane_of == lane_of[position]) & (everything > position)]
    assert found[: len(behind)].tolist() == behind.tolist()


def test_positions_come_few_at_first_and_then_many():
    lanes = Lanes(grid=Grid(ranks=1, workers=1, batch=1), num_samples=100_000)
    sizes = [len(each) for each in followers(lanes, 0)]
    assert sizes[:3] == [32, 128, 512]
    assert max(sizes) == 8192


def test_a_position_outside_is_refused():
    lanes = Lanes(grid=Grid(ranks=1, workers=1, batch=1), num_samples=3)
    with pytest.raises(UsageError, match="position"):
        next(followers(lanes, 3))


@pytest.mark.parametrize("even", ["pad", "join"])
def test_candidates_follow_the_last_slot_of_the_batch_in_its_own_pass(even):
    order = Order(
        counts=np.array([10]), seed=0, window=None, grid=Grid(ranks=1, workers=1, batch=4)
    )
    schedule = Schedule.of(order, epoch=2, consumed=0, world_size=1, batch_size=4, even=even)
    first = next(candidates(schedule, 0, 1))
    assert first.number == 2
    behind = [each.samples.index.tolist() for each in candidates(schedule, 0, 1)]
    assert behind == [[8, 9], [0, 1, 2, 3, 4, 5, 6]]
    of_last = [each.samples.index.tolist() for each in candidates(schedule, 0, 2)]
    assert of_last == [list(range(9))]
