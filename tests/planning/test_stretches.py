"""A change of topology: the stretches together read what is left of the epoch, each sample once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardloader as sl
from shardloader.planning.stretches import Change, stretches
from shardloader.planning.topology import MOST_RANKS
from tests.property.order_cases import COUNTS, EPOCHS, GRIDS, SEEDS, WINDOWS, read_by

TOPOLOGIES = st.tuples(st.integers(1, 7), st.integers(0, 3), st.integers(1, 6))


def valid_samples(plan):
    found = []
    for rank in range(plan.dealing.world_size if plan.steps else 0):
        read = read_by(plan.schedule, rank)
        found += read.index[read.valid].tolist()
    return found


@given(data=st.data())
def test_stretches_together_read_every_sample_once(data):
    counts, grid, window = data.draw(COUNTS), data.draw(GRIDS), data.draw(WINDOWS)
    world_size, num_workers, batch_size = data.draw(TOPOLOGIES)
    plan = sl.plan(
        counts,
        batch_size=batch_size,
        world_size=world_size,
        num_workers=num_workers,
        seed=data.draw(SEEDS),
        epoch=data.draw(EPOCHS),
        shuffle=sl.Shuffle(window=window) if window else False,
        even=data.draw(st.sampled_from(["pad", "join"])),
        grid=sl.Grid(ranks=grid[0], workers=grid[1], batch=grid[2]),
    )
    parts = [plan]
    while parts[-1].steps > 1 and data.draw(st.booleans()):
        *done, last = parts
        step = data.draw(st.integers(1, last.steps - 1))
        ranks, workers, batch = data.draw(TOPOLOGIES)
        rest = last.change(step=step, world_size=ranks, num_workers=workers, batch_size=batch)
        parts = [*done, last.before(step), rest]
    assert sorted(index for part in parts for index in valid_samples(part)) == list(
        range(sum(counts))
    )
    assert all(part.dealing.num_pads == part.dealing.num_omitted == 0 for part in parts[:-1])


def test_what_is_left_after_a_change_is_what_a_loader_goes_on_with():
    plan = sl.plan([30, 50, 21], batch_size=3, world_size=4, num_workers=2, seed=4, epoch=2)
    rest = plan.change(step=5, world_size=3, num_workers=1, batch_size=2)
    state = plan.checkpoint.to_state() | {"consumed": 5 * 12}
    resumed = sl.plan([30, 50, 21], batch_size=2, world_size=3, num_workers=1, state=state)
    assert rest.checkpoint == resumed.checkpoint
    assert (rest.steps, rest.num_workers) == (resumed.steps, resumed.num_workers)
    for step in range(rest.steps):
        for rank in range(3):
            assert rest.batch(step, rank).index.tolist() == resumed.batch(step, rank).index.tolist()


def test_the_steps_before_a_change_are_the_plans_own():
    plan = sl.plan([30, 50, 21], batch_size=3, world_size=2)
    before = plan.before(5)
    assert before.steps == 5
    for step in range(5):
        assert before.batch(step, 1).index.tolist() == plan.batch(step, 1).index.tolist()
    assert plan.before(0).steps == 0
    assert plan.before(plan.steps) is plan


def test_what_is_not_given_stays():
    plan = sl.plan([100], batch_size=3, world_size=2, num_workers=4)
    rest = plan.change(step=1, world_size=5)
    assert (rest.dealing.batch_size, rest.num_workers, rest.dealing.world_size) == (3, 4, 5)


def test_changes_count_their_steps_over_all_stretches():
    plan = sl.plan([100], batch_size=5, world_size=2)
    parts = stretches(plan, [Change(4, world_size=1), Change(6, batch_size=10)])
    assert [part.steps for part in parts] == [4, 2, 5]
    assert [part.dealing.step_size for part in parts] == [10, 5, 10]
    assert stretches(plan, []) == (plan,)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((10,), "before the epoch's end at step 10, and a change at step 10 does not"),
        ((0,), "step of a change must be at least 1"),
        ((4, 4), "after step 4"),
        ((4, 3), "after step 4"),
        ((4, 10), "before the epoch's end at step 10"),
    ],
)
def test_changes_at_steps_that_are_not_there_are_refused(steps, words):
    plan = sl.plan([100], batch_size=5, world_size=2)
    with pytest.raises(sl.UsageError, match=words):
        stretches(plan, [Change(step) for step in steps])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": 0}, "step must be at least 1"),
        ({"step": 10}, "step must be less than 10"),
        ({"step": 1, "world_size": 0}, "world_size must be at least 1"),
        ({"step": 1, "world_size": MOST_RANKS + 1}, "a plan looks at 1,048,576 ranks at most"),
        ({"step": 1, "num_workers": -1}, "num_workers must be at least 0"),
        ({"step": 1, "batch_size": 1.5}, "batch_size must be an integer"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(change: dict[str, Any], words):
    with pytest.raises(sl.UsageError, match=words):
        sl.plan([100], batch_size=5, world_size=2).change(**change)


def test_a_plan_of_one_step_can_not_change():
    with pytest.raises(sl.UsageError, match="plan with the other topology instead"):
        sl.plan([5], batch_size=5).change(step=1)


@pytest.mark.parametrize("steps", [-1, 11])
def test_more_steps_than_there_are_can_not_come_before(steps):
    with pytest.raises(sl.UsageError, match="step must be"):
        sl.plan([100], batch_size=5, world_size=2).before(steps)


def test_more_ranks_than_anyone_has_are_refused():
    grid = sl.Grid(ranks=2**31 - 1, workers=1, batch=1)
    for options in ({"world_size": 2**31 - 1}, {"grid": grid}):
        with pytest.raises(sl.UsageError, match="a plan looks at 1,048,576 ranks at most"):
            sl.plan([100], batch_size=5, **options)
