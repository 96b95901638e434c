from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardloader.errors import UsageError
from shardloader.order.epoch import Order, sample_counts
from shardloader.order.grid import Grid

GRID = Grid(ranks=2, workers=2, batch=2)


def an_order(**changed: Any) -> Order:
    values: dict[str, Any] = {"counts": np.arange(10), "seed": 0, "window": 5, "grid": GRID}
    return Order(**{**values, **changed})


def whole_pass(order: Order, number: int) -> list[int]:
    return list(map(int, order.one_pass(number).locate(np.arange(order.num_samples)).index))


@pytest.mark.parametrize("counts", [[], (), np.zeros(0), np.zeros((0, 3))])
def test_no_shards_are_no_counts(counts):
    assert sample_counts(counts).shape == (0,)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64])
def test_counts_of_any_integer_type_become_int64_that_nobody_can_write(dtype):
    given = np.array([1, 0, 3], dtype=dtype)
    counts = sample_counts(given)
    assert counts.dtype == np.int64
    assert counts.tolist() == [1, 0, 3]
    with pytest.raises(ValueError, match="read-only"):
        counts[0] = 2
    given[0] = 9
    assert counts[0] == 1


@pytest.mark.parametrize("counts", [[1.0], [True], ["a"], 3, [[1, 2], [3, 4]], [2**70]])
def test_counts_are_one_whole_number_a_shard(counts):
    with pytest.raises(UsageError, match="one whole number of samples a shard, and were an array"):
        sample_counts(counts)


@pytest.mark.parametrize("counts", [[-1], [3, -2], [2**62], [2**61, 2**61], [2**63 - 1] * 9])
def test_counts_below_zero_or_beyond_int64_are_refused(counts):
    with pytest.raises(UsageError, match=r"at least 0 samples and a dataset fewer than 2\*\*62"):
        sample_counts(counts)


@pytest.mark.parametrize("seed", [-1, 2**63, True, 1.0, None, "0"])
def test_a_seed_is_a_whole_number_below_2_to_the_63(seed):
    with pytest.raises(UsageError, match=r"^seed must be "):
        an_order(seed=seed)


@pytest.mark.parametrize("window", [0, -3, True, 2.5])
def test_an_orders_window_is_at_least_one_sample(window):
    with pytest.raises(UsageError, match=r"^window must be "):
        an_order(window=window)


@pytest.mark.parametrize("steps", [0, -3, True, 2.5, 2**40])
def test_an_epochs_length_is_at_least_one_step(steps):
    with pytest.raises(UsageError, match=r"^steps_per_epoch must be "):
        an_order(steps_per_epoch=steps)


def test_numpys_integers_are_taken_and_held_as_pythons():
    order = an_order(seed=np.uint64(2**63 - 1), window=np.int8(3), steps_per_epoch=np.int64(4))
    held = (order.seed, order.window, order.steps_per_epoch, order.num_samples)
    assert held == (2**63 - 1, 3, 4, 45)
    assert all(type(value) is int for value in held)


def test_going_round_no_samples_is_refused_and_says_what_to_look_for():
    with pytest.raises(UsageError, match=r"steps_per_epoch=3 goes round .* look why the shards"):
        an_order(counts=np.zeros(4, dtype=int), steps_per_epoch=3)


def test_an_epoch_beyond_int64_is_refused():
    huge = Grid(ranks=2**30, workers=1, batch=2**10)
    assert an_order(grid=huge, steps_per_epoch=2**22 - 1).epoch_length < 2**62
    with pytest.raises(UsageError, match=r"fewer than 2\*\*62 samples, and steps_per_epoch=41943"):
        an_order(grid=huge, steps_per_epoch=2**22)


@pytest.mark.parametrize("epoch", [-1, 1.0, True, None, 2**62])
def test_an_epoch_is_a_whole_number_whose_positions_can_be_counted(epoch):
    with pytest.raises(UsageError, match=r"^epoch must be "):
        an_order().first_virtual(epoch)


def test_an_epoch_without_steps_is_a_pass_and_with_them_a_stretch_of_passes():
    assert an_order().epoch_length == 45
    assert an_order().first_virtual(3) == 135
    assert an_order(steps_per_epoch=100).epoch_length == 400
    assert an_order(steps_per_epoch=100).first_virtual(np.int64(3)) == 1200  # type: ignore[arg-type]


def test_an_empty_dataset_has_an_empty_pass():
    order = an_order(counts=[0, 0, 0])
    samples = order.one_pass(0).locate(np.zeros((0, 4), dtype=np.int64))
    assert samples.shard.shape == samples.sample.shape == samples.index.shape == (0, 4)


def test_empty_shards_hold_no_position():
    order = an_order(counts=[0, 2, 0, 0, 1, 0], window=None, grid=Grid(ranks=1, workers=1, batch=1))
    samples = order.one_pass(0).locate(np.arange(3))
    assert samples.shard.tolist() == [1, 1, 4]
    assert samples.sample.tolist() == [0, 1, 0]
    assert samples.index.tolist() == [0, 1, 2]


def test_shards_are_permuted_by_seed_plus_epoch_and_windows_by_the_pair():
    # Seed 0 in epoch 1 and seed 1 in epoch 0 have the same shards in turn, shuffled differently.
    one, other = an_order(seed=0, counts=[9] * 12), an_order(seed=1, counts=[9] * 12)
    assert (one.line(1).shards == other.line(0).shards).all()
    assert whole_pass(one, 1) != whole_pass(other, 0)
    orders = {tuple(one.line(epoch).shards.tolist()) for epoch in range(20)}
    assert len(orders) == 20


def test_every_epoch_has_an_order_of_its_own():
    order = an_order(counts=[30] * 4)
    assert len({tuple(whole_pass(order, epoch)) for epoch in range(10)}) == 10


def test_every_order_of_a_small_dataset_comes_about_equally_often():
    # One shard, one lane of four samples within the window: only the window shuffles.
    order = an_order(counts=[4], window=4, grid=Grid(ranks=1, workers=1, batch=2), seed=3)
    found: dict[tuple[int, ...], int] = {}
    epochs = 2400
    for epoch in range(epochs):
        seen = tuple(whole_pass(order, epoch))
        found[seen] = found.get(seen, 0) + 1
    assert len(found) == 24
    chi_square = sum((count - epochs / 24) ** 2 for count in found.values()) / (epochs / 24)
    assert chi_square < 49.73  # the 99.9th percentile with 23 degrees of freedom


def test_without_a_shuffle_every_epoch_is_the_datasets_own_order():
    order = an_order(window=None, grid=Grid(ranks=1, workers=1, batch=4))
    assert whole_pass(order, 0) == whole_pass(order, 7) == list(range(45))
