from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardloader.errors import UsageError
from shardloader.order.grid import MAX_GRID, Grid, Lanes


def test_a_grid_takes_any_integers_and_holds_pythons():
    given: dict[str, Any] = {"ranks": np.int64(3), "workers": np.uint8(2), "batch": 4}
    grid = Grid(**given)
    assert grid == Grid(ranks=3, workers=2, batch=4)
    assert grid.to_list() == [3, 2, 4]
    assert all(type(value) is int for value in grid.to_list())
    assert grid.step == 12


@pytest.mark.parametrize("name", ["ranks", "workers", "batch"])
@pytest.mark.parametrize("value", [True, 2.0, "2", None, 0, -1, MAX_GRID, np.float32(1)])
def test_a_grid_refuses_what_is_no_count_and_says_which(name, value):
    values = {"ranks": 1, "workers": 1, "batch": 1, name: value}
    with pytest.raises(UsageError, match=rf"^Grid\({name}=\) must be "):
        Grid(**values)


def test_a_grid_of_too_many_places_is_refused():
    half = MAX_GRID - 1
    assert Grid(ranks=half, workers=1, batch=half).step == half**2
    with pytest.raises(UsageError, match=r"fewer than 2\*\*62 places, and Grid\(.*\) holds more"):
        Grid(ranks=half, workers=2, batch=half)


@pytest.mark.parametrize("make", [list, tuple])
def test_a_grid_comes_back_from_its_list(make):
    grid = Grid(ranks=5, workers=1, batch=7)
    assert Grid.from_list(make(grid.to_list())) == grid


@pytest.mark.parametrize("values", [[1, 2], [1, 2, 3, 4], "123", None, {1, 2, 3}, 3])
def test_a_grid_is_made_of_nothing_but_three_integers(values):
    with pytest.raises(UsageError, match=r"three integers \[ranks, workers, batch\], not "):
        Grid.from_list(values)


def test_lanes_lie_on_the_line_from_its_start_and_differ_by_one_batch_at_most():
    # 29 samples: 4 batches of 2 ranks * 3 samples, 3 workers, a tail of 5.
    lanes = Lanes(grid=Grid(ranks=2, workers=3, batch=3), num_samples=29)
    assert (lanes.num_batches, lanes.tail_start, lanes.longest) == (4, 24, 6)
    places = lanes.places(np.arange(29))
    stretches = sorted({*zip(places.lane_start.tolist(), places.lane_stop.tolist(), strict=True)})
    assert stretches[:6] == [(0, 6), (6, 9), (9, 12), (12, 18), (18, 21), (21, 24)]
    assert stretches[6:] == [(place, place + 1) for place in range(24, 29)]
    # The first step: batch 0 of worker 0 on both ranks. The second: worker 1.
    assert places.at[:12].tolist() == [0, 12, 1, 13, 2, 14, 6, 18, 7, 19, 8, 20]
    assert places.at[24:].tolist() == [24, 25, 26, 27, 28]
    assert lanes.lane_numbers(np.array([0, 3, 6, 9, 18, 24, 28])).tolist() == [0, 3, 1, 4, 0, 6, 6]


def test_fewer_samples_than_a_step_are_all_tail():
    lanes = Lanes(grid=Grid(ranks=4, workers=2, batch=8), num_samples=31)
    assert (lanes.num_batches, lanes.tail_start, lanes.longest) == (0, 0, 0)
    places = lanes.places(np.arange(31))
    assert places.at.tolist() == list(range(31))
    assert set(lanes.lane_numbers(np.arange(31)).tolist()) == {8}


def test_lanes_far_beyond_32_bits_are_exact():
    grid = Grid(ranks=1024, workers=8, batch=32)
    lanes = Lanes(grid=grid, num_samples=2**61 + 12_345)
    position = 2**61 - 999
    element, turn_in_round = divmod(position, 1024)
    rank = int(f"{turn_in_round:010b}"[::-1], 2)
    batch, place = divmod(element, 32)
    turn, worker = divmod(batch, 8)
    even, extra = divmod(lanes.num_batches, 8)
    start = 32 * (rank * lanes.num_batches + worker * even + min(worker, extra))
    places = lanes.places(np.array([position]))
    assert int(places.at[0]) == start + turn * 32 + place
    assert int(places.lane_start[0]) == start
    assert int(places.lane_stop[0]) == start + 32 * (even + (worker < extra))
