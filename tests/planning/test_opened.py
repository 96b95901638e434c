"""Shards and bytes that readers open: looked up or carried out, they are those of the batches."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.order.grid import Grid
from shardloader.order.window import Shuffle
from shardloader.planning.lanes import has_lanes_of_its_own
from shardloader.planning.opened import Look, opened
from shardloader.planning.plan import plan
from tests.property.order_cases import COUNTS, POLICIES, SEEDS, read_by


def divisors(number):
    return st.sampled_from([each for each in range(1, number + 1) if number % each == 0])


@st.composite
def plans_with_lanes_of_their_own(draw):
    """Plans whose workers read whole lanes, cut at a step, or from a step on, or whole."""
    ranks, workers, batch = (
        draw(st.integers(1, 6)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 3)),
    )
    world_size = draw(divisors(ranks))
    window = draw(st.sampled_from([None, 1, 2, 3, 9, 1000]))
    counts = draw(st.lists(COUNTS, min_size=1, max_size=3).map(lambda lists: sum(lists, ())))
    made = plan(
        counts,
        batch_size=batch * ranks // world_size,
        world_size=world_size,
        num_workers=draw(divisors(workers)),
        seed=draw(SEEDS),
        epoch=draw(st.integers(0, 3)),
        shuffle=Shuffle(window=window) if window else False,
        even=draw(POLICIES),
        grid=Grid(ranks=ranks, workers=workers, batch=batch),
    )
    if made.steps > 1:
        step = draw(st.integers(1, made.steps - 1))
        made = draw(st.sampled_from([made, made.before(step), made.change(step=step)]))
    return replace(made, sizes=np.array([1000 * count + 7 for count in counts], dtype=np.int64))


@given(plans_with_lanes_of_their_own())
def test_what_is_looked_up_is_what_is_read(made):
    look = Look.at(made, most_exact=0)
    assert look is not None
    assert has_lanes_of_its_own(made)
    assert look.by_lanes
    assert look.is_exact
    check_against_batches(made, look)


@pytest.mark.parametrize("even", ["pad", "join", "drop"])
@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("steps_per_epoch", [None, 40])
def test_what_is_carried_out_is_what_is_read(num_workers, even, steps_per_epoch):
    made = plan(
        [5, 0, 9, 30, 1, 8] * 4,
        batch_size=3,
        world_size=4,
        num_workers=num_workers,
        even=even,
        grid=Grid(ranks=3, workers=2, batch=4),
        steps_per_epoch=steps_per_epoch,
    )
    made = replace(made, sizes=np.arange(24, dtype=np.int64) * 100)
    look = Look.at(made)
    assert look is not None
    assert not look.by_lanes
    assert look.is_exact
    check_against_batches(made, look)


def check_against_batches(made, look):
    """Compare with sets made of the batches of every reader; estimates are told within one."""
    workers, counts = max(1, made.num_workers), made.schedule.order.counts
    mean = made.sizes / np.maximum(counts, 1)
    sets: list[list[set[int]]] = [
        [set() for _ in range(workers)] for _ in range(made.dealing.world_size)
    ]
    read = np.zeros((made.dealing.world_size, workers))
    for rank, of_rank in enumerate(sets):
        batches = read_by(made.schedule, rank)
        for step in range(made.dealing.num_batches(rank)):
            shards, valid = batches.shard[step, : batches.size[step]], batches.valid[step]
            of_rank[step % workers] |= set(shards.tolist())
            read[rank, step % workers] += mean[shards[valid[: len(shards)]]].sum()
    found = opened(made, look)
    by_worker = [each for of_rank in sets for each in of_rank]
    by_rank = [set.union(*of_rank) for of_rank in sets]
    for share, opens in ((found.a_worker, by_worker), (found.a_rank, by_rank)):
        assert share.shards.tolist() == [len(each) for each in opens]
        assert share.opened_bytes is not None
        assert share.opened_bytes.tolist() == [
            int(made.sizes[sorted(each)].sum()) for each in opens
        ]
    is_cut = made.dealing.consumed or made.dealing.length < made.schedule.order.num_samples
    if not look.by_lanes or not is_cut:  # inside of a lane the window moves some bytes
        assert np.abs(found.a_worker.read_bytes - read.ravel()).max() <= 1
        assert np.abs(found.a_rank.read_bytes - read.sum(axis=1)).max() <= 1
    readers = Counter(shard for each in by_worker for shard in each)
    assert found.num_opened == len(readers)
    assert found.by_several == sum(times > 1 for times in readers.values())
    shared = set()
    for of_rank in sets:
        times = Counter(shard for each in of_rank for shard in each)
        shared |= {shard for shard, often in times.items() if often > 1}
    assert found.by_workers_of_a_rank == len(shared)


def test_sample_bytes_of_all_ranks_are_the_datasets():
    made = plan([10, 0, 30, 7], batch_size=2, world_size=3, num_workers=2)
    made = replace(made, sizes=np.array([1000, 512, 9000, 70], dtype=np.int64))
    look = Look.at(made)
    assert look is not None
    read = opened(made, look).a_rank.read_bytes
    assert read is not None
    assert read.sum() == pytest.approx(10_070, abs=3)  # an empty shard has no sample


def test_counts_have_no_bytes():
    made = plan([10, 30], batch_size=2)
    look = Look.at(made)
    assert look is not None
    assert opened(made, look).a_rank.opened_bytes is None
    assert opened(made, look).a_worker.read_bytes is None


def test_too_much_work_is_cut_to_a_few_ranks_and_says_so():
    made = plan([100] * 100, batch_size=4, world_size=50, grid=Grid(ranks=7, workers=1, batch=9))
    some = Look.at(made, most_exact=1000, most_sampled=20_000)
    assert some is not None
    assert (len(some.ranks), some.num_steps, some.is_exact) == (3, 50, False)
    less = Look.at(made, most_exact=1000, most_sampled=100)
    assert less is not None
    assert (len(less.ranks), less.num_steps, less.is_exact) == (1, 25, False)
    assert len(opened(made, less).a_rank.shards) == 1
    assert Look.at(made, most_exact=1, most_sampled=3) is None


def test_lanes_of_too_many_ranks_are_looked_up_for_some():
    made = plan([100] * 100, batch_size=4, world_size=50, num_workers=2)
    some = Look.at(made, most_looked_up=20, most_exact=0)
    assert some is not None
    assert (len(some.ranks), some.by_lanes, some.is_exact) == (10, True, False)
    found = opened(made, some)
    whole = Look.at(made)
    assert whole is not None
    of_all = opened(made, whole).a_rank.shards
    assert found.a_rank.shards.tolist() == of_all[some.ranks].tolist()


def test_progress_is_told_of_every_step_of_every_rank_looked_at():
    for grid in (None, Grid(ranks=7, workers=1, batch=9)):
        made = plan([100] * 10, batch_size=4, world_size=5, grid=grid)
        look = Look.at(made)
        assert look is not None
        told: list[int] = []
        opened(made, look, told.append)
        assert sum(told) == len(look.ranks) * look.num_steps == 5 * 50
