from __future__ import annotations

import pytest

from shardloader.errors import UsageError
from shardloader.order.batching import Batch, Batching


@pytest.mark.parametrize("name", ["batch_size", "accumulate", "global_batch"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "4", 2**31])
def test_a_number_that_makes_no_sense_is_refused_by_its_name(name, value):
    with pytest.raises(UsageError, match=rf"^{name} must be"):
        Batching(**{name: value})


def test_without_a_global_batch_what_was_given_holds_on_any_number_of_ranks():
    assert Batching().on(7) == Batch(batch_size=1, accumulate=1)
    assert Batching(batch_size=4).on(7) == Batch(batch_size=4, accumulate=1)
    assert Batching(batch_size=4, accumulate=3).on(7) == Batch(batch_size=4, accumulate=3)


def test_steps_are_grouped_where_anything_says_what_a_group_is():
    assert not Batching(batch_size=4).is_grouped
    assert Batching(accumulate=1).is_grouped
    assert Batching(global_batch=1).is_grouped


def test_a_global_batch_is_shared_out_in_one_step_where_nothing_bounds_a_batch():
    assert Batching(global_batch=96).on(8) == Batch(batch_size=12, accumulate=1)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 8, 12, 24])
@pytest.mark.parametrize("most", [1, 2, 5, 8, 100])
def test_a_global_batch_takes_the_fewest_steps_that_its_bound_allows(world_size, most):
    batch = Batching(global_batch=24, batch_size=most).on(world_size)
    assert batch.batch_size * batch.accumulate * world_size == 24
    assert batch.batch_size <= most
    fewer = [n for n in range(1, batch.accumulate) if 24 // world_size % n == 0]
    assert all(24 // world_size // n > most for n in fewer)


def test_a_global_batch_in_so_many_steps_gives_the_batch():
    assert Batching(global_batch=96, accumulate=3).on(8) == Batch(batch_size=4, accumulate=3)
    three = Batching(global_batch=96, accumulate=3, batch_size=4)
    assert three.on(8) == Batch(batch_size=4, accumulate=3)


@pytest.mark.parametrize(
    ("asked", "world_size", "says"),
    [
        ({"global_batch": 100}, 8, r"100 samples are no multiple of 8 ranks: take 96 or 104$"),
        ({"global_batch": 3}, 8, r"3 samples are no multiple of 8 ranks: take 8$"),
        (
            {"global_batch": 96, "accumulate": 5},
            8,
            r"96 on 8 ranks is 12 samples a rank, no multiple of accumulate=5: take 80 or 120, or",
        ),
        (
            {"global_batch": 96, "accumulate": 2, "batch_size": 4},
            8,
            r"in accumulate=2 steps is 6 samples a batch, more than batch_size=4",
        ),
        (
            {"global_batch": 1016, "batch_size": 32},
            8,
            r"127 samples a rank, .* at most 32 divide only into 127 of 1: take 768 or 1024, or",
        ),
    ],
)
def test_what_does_not_divide_is_told_with_the_nearest_that_does(asked, world_size, says):
    with pytest.raises(UsageError, match=says):
        Batching(**asked).on(world_size)
