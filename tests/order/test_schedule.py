from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardloader.errors import UsageError
from shardloader.order.epoch import Order, PassOrder
from shardloader.order.grid import Grid
from shardloader.order.schedule import POSITIONS_AT_LEAST, POSITIONS_AT_MOST, Schedule

GRID = Grid(ranks=2, workers=2, batch=2)


def a_schedule(
    *,
    counts: list[int] | None = None,
    window: int | None = 5,
    steps_per_epoch: int | None = None,
    grid: Grid = GRID,
    **changed: Any,
) -> Schedule:
    order = Order(
        counts=np.array([7, 0, 5, 9] if counts is None else counts, dtype=np.int64),
        seed=3,
        window=window,
        grid=grid,
        steps_per_epoch=steps_per_epoch,
    )
    values: dict[str, Any] = {
        "epoch": 0,
        "consumed": 0,
        "world_size": 2,
        "batch_size": 2,
        "even": "pad",
    }
    return Schedule.of(order, **{**values, **changed})


def test_no_steps_are_read_as_no_steps():
    read = a_schedule().reader(1).steps(np.zeros(0, dtype=np.int64))
    assert read.shard.shape == read.sample.shape == read.index.shape == read.valid.shape == (0, 2)
    assert read.size.shape == read.global_valid.shape == (0,)


def test_what_is_read_is_int64_and_bool_by_step_and_slot():
    read = a_schedule().reader(0).steps(np.arange(6))
    for name in ("shard", "sample", "index"):
        assert getattr(read, name).dtype == np.int64
        assert getattr(read, name).shape == (6, 2)
    assert read.valid.dtype == bool
    assert read.size.tolist() == [2] * 6
    assert read.global_valid.tolist() == [4, 4, 4, 4, 4, 1]


def test_one_step_across_many_passes_reads_each_of_them_whole():
    schedule = a_schedule(counts=[2, 1], steps_per_epoch=4, world_size=1, batch_size=16)
    read = schedule.reader(0).steps(np.array([0]))
    for start in range(0, 15, 3):
        assert sorted(read.index[0, start : start + 3].tolist()) == [0, 1, 2]
    assert (np.array([0, 2])[read.shard] + read.sample == read.index).all()


def test_a_reader_sets_a_pass_up_once_and_keeps_two_of_them(monkeypatch):
    made: list[int] = []
    one_pass = Order.one_pass

    def counted(order: Order, number: int) -> PassOrder:
        made.append(number)
        return one_pass(order, number)

    monkeypatch.setattr(Order, "one_pass", counted)
    # Epochs of 32 positions over 5 samples: passes 0 to 6; four positions a step.
    schedule = a_schedule(counts=[5], steps_per_epoch=8, world_size=1, batch_size=4)
    reader = schedule.reader(0)
    for step in range(8):
        reader.steps(np.array([step]))
    assert sorted(made) == list(range(7))
    reader.steps(np.array([7]))
    assert sorted(made) == list(range(7))
    reader.steps(np.array([5]))  # pass 4 alone, which was let go
    assert sorted(made) == [0, 1, 2, 3, 4, 4, 5, 6]


@pytest.mark.parametrize("epoch", [-1, True, 0.5, 2**62])
def test_an_epoch_that_is_no_count_is_refused(epoch):
    with pytest.raises(UsageError, match=r"^epoch must be "):
        a_schedule(epoch=epoch)


def test_steps_at_once_hold_about_a_window_of_each_lane_within_bounds():
    counts = [10**9]
    grid = Grid(ranks=8, workers=4, batch=32)
    of: dict[str, Any] = {"counts": counts, "grid": grid, "world_size": 8, "batch_size": 32}
    # In the first topology a worker reads one lane, and remembers the blocks that it is in.
    assert a_schedule(window=10**6, **of).steps_at_once(4) == POSITIONS_AT_LEAST // 32
    assert a_schedule(window=100_000, **of).steps_at_once(1) == POSITIONS_AT_LEAST // 32
    # Windows of four lanes that are too large to be remembered.
    assert a_schedule(window=10**6, **of).steps_at_once(1) == POSITIONS_AT_MOST // 32
    few: dict[str, Any] = {**of, "world_size": 1, "batch_size": 8}
    assert a_schedule(window=1000, **few).steps_at_once(1) == 32_000 // 8
    assert a_schedule(window=10, **of).steps_at_once(4) == POSITIONS_AT_LEAST // 32
    assert a_schedule(window=None, **of).steps_at_once(4) == POSITIONS_AT_LEAST // 32
    huge: dict[str, Any] = {**of, "batch_size": 10**6}
    assert a_schedule(window=10, **huge).steps_at_once(4) == 1
    # More readers than lanes: still a lane each.
    assert a_schedule(window=10**6, **of).steps_at_once(64) == POSITIONS_AT_LEAST // 32
