"""Shuffle quality: formulas against every permutation, measures against a count by hand."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

import shardloader as sl
from shardloader.planning import neighbours, perfect
from shardloader.planning.looking import spread_evenly
from shardloader.planning.perfect import (
    distinct_shards,
    mean_distance,
    median_distance,
    same_batch,
)
from shardloader.planning.quality import MEASURES, quality

COUNTS = (7, 0, 12, 30, 1, 22)


@pytest.mark.parametrize("counts", [(1, 2, 3), (4, 0, 2), (6,), (1, 1, 1, 1, 1)])
@pytest.mark.parametrize("drawn", [0, 1, 2, 4, 6, 9])
def test_distinct_shards_are_the_mean_over_every_set_of_samples(counts, drawn):
    shard_of = np.repeat(np.arange(len(counts)), counts)
    sets = list(combinations(shard_of.tolist(), min(drawn, len(shard_of))))
    expected = np.mean([len(set(each)) for each in sets])
    assert distinct_shards(np.array(counts), drawn) == pytest.approx(expected)


@pytest.mark.parametrize(("limit", "tolerance"), [(1, 1e-2), (5, 1e-2), (20, 1e-12)])
def test_distinct_shards_do_not_depend_on_which_product_is_taken(limit, tolerance, monkeypatch):
    counts = np.array([3, 90, 90, 4, 17])
    of_table = distinct_shards(counts, 20)
    monkeypatch.setattr(perfect, "_LARGEST_TABLE", limit)
    assert distinct_shards(counts, 20) == pytest.approx(of_table, rel=tolerance)


def test_distinct_shards_of_millions_of_samples_are_told():
    assert distinct_shards(np.full(100, 10**8), 10**7) == pytest.approx(100)
    huge = np.full(2, 2**60)  # of so many samples a few millions nearly always come from both
    assert distinct_shards(huge, 10**7) == pytest.approx(2)
    assert distinct_shards(huge, 1) == pytest.approx(1)


@pytest.mark.parametrize("num", [2, 3, 4, 5, 6])
def test_distances_are_those_over_every_permutation(num):
    orders = [np.argsort(order) for order in permutations(range(num))]
    distances = [abs(int(at[1] - at[0])) for at in orders]
    assert mean_distance(num) == pytest.approx(np.mean(distances))
    at_most = [sum(each <= d for each in distances) for d in range(num)]
    assert median_distance(num) == next(d for d in range(num) if 2 * at_most[d] >= len(distances))
    for size in (1, 2, 3, 10):
        together = np.mean([at[0] // size == at[1] // size for at in orders])
        assert same_batch(num, size) == pytest.approx(together)


def test_fewer_than_two_samples_have_no_distance():
    for num in (0, 1):
        assert (mean_distance(num), median_distance(num), same_batch(num, 4)) == (0, 0, 0)


def test_the_median_distance_of_many_is_their_share_of_one_minus_the_root_of_a_half():
    assert median_distance(10**12) / 10**12 == pytest.approx(1 - 0.5**0.5, abs=1e-9)


@pytest.mark.parametrize("window", [None, 1, 3, 10, 1000])
@pytest.mark.parametrize(("grid", "epoch"), [((2, 2, 3), 0), ((3, 1, 2), 2), ((1, 1, 6), 1)])
def test_a_measure_is_what_is_counted_by_hand(window, grid, epoch):
    plan = sl.plan(
        COUNTS,
        batch_size=3,
        world_size=2,
        epoch=epoch,
        shuffle=sl.Shuffle(window=window) if window else False,
        grid=sl.Grid(ranks=grid[0], workers=grid[1], batch=grid[2]),
    )
    found = quality(plan)
    position = plan.schedule.one_pass(epoch).locate(np.arange(72)).index
    place = np.argsort(position)
    shard_of = np.repeat(np.arange(len(COUNTS)), COUNTS)
    pairs = [(i, i + 1) for i in range(71) if shard_of[i] == shard_of[i + 1]]
    apart = np.array([abs(place[i] - place[j]) for i, j in pairs])
    assert found.mean_distance.plan == pytest.approx(apart.mean() / 72)
    assert found.median_distance.plan == pytest.approx(np.median(apart) / 72)
    assert found.same_batch.plan == pytest.approx(
        np.mean([place[i] // 6 == place[j] // 6 for i, j in pairs])
    )
    assert found.same_batch.num_looked_at == found.same_batch.num_all == len(pairs)
    batches = [
        [set(plan.batch(step, rank).shard.tolist()) for rank in (0, 1)] for step in range(12)
    ]
    each = [len(batch) for of_step in batches for batch in of_step]
    assert found.shards_a_rank_batch.plan == pytest.approx(np.mean(each))
    assert found.shards_a_global_batch.plan == pytest.approx(
        np.mean([len(first | second) for first, second in batches])
    )
    assert (found.run_steps, found.shards_a_run.plan, found.shards_a_run.perfect) == (12, 5, 5)


@pytest.mark.parametrize("window", [1, 4, 50, 5000])
def test_some_pairs_are_pairs_of_neighbours_and_none_is_looked_at_twice(window, monkeypatch):
    monkeypatch.setattr(neighbours, "PAIRS_OF_A_STRETCH", 37)
    plan = sl.plan(
        [50] * 40,
        batch_size=5,
        world_size=2,
        num_workers=2,
        shuffle=sl.Shuffle(window=window),
    )
    every = neighbours._all_pairs(plan)
    some = neighbours._some(plan, 10**9)
    # All that stretches can hold: pairs that no border of a lane cuts.
    cut = len(every.places) - len(some.places)
    assert 0 <= cut <= 3
    assert abs(int(every.places.sum()) - int(some.places.sum())) <= cut * 2000
    values, times = np.unique(some.places, return_counts=True)
    of_all = dict(zip(*np.unique(every.places, return_counts=True), strict=True))
    assert all(often <= of_all[value] for value, often in zip(values, times, strict=True))


def test_what_is_too_much_is_measured_in_part_and_says_so():
    plan = sl.plan(
        [1000] * 40, batch_size=8, world_size=4, num_workers=2, shuffle=sl.Shuffle(window=50)
    )
    whole, part = quality(plan), quality(plan, most_work=20_000)
    assert 0 < part.mean_distance.num_looked_at < part.mean_distance.num_all == 40 * 999
    assert part.mean_distance.plan == pytest.approx(whole.mean_distance.plan, rel=0.05)
    assert part.shards_a_global_batch.num_looked_at < 200
    assert part.shards_a_global_batch.perfect == whole.shards_a_global_batch.perfect
    nothing = quality(plan, most_work=10)
    assert nothing.mean_distance.plan is None
    assert nothing.shards_a_run.plan is None
    assert nothing.shards_a_run.num_looked_at == 0


def test_a_lane_of_all_samples_shuffled_whole_is_a_perfect_shuffle_on_average():
    counts, found = [40] * 25, []
    for seed in range(8):
        shuffle = sl.Shuffle(window=1000)
        found.append(quality(sl.plan(counts, batch_size=10, seed=seed, shuffle=shuffle)))
    for name in ("shards_a_rank_batch", "mean_distance", "median_distance"):
        plans = [getattr(each, name).plan for each in found]
        perfect = getattr(found[0], name).perfect
        assert np.mean(plans) == pytest.approx(perfect, rel=0.02)


def test_an_endless_epoch_is_measured_across_its_passes():
    plan = sl.plan([10, 20], batch_size=4, epoch=1, steps_per_epoch=11)
    found = quality(plan)
    assert found.shards_a_global_batch.num_looked_at == 11
    assert found.shards_a_run.plan == 2
    assert found.mean_distance.num_looked_at == 28


@pytest.mark.parametrize("counts", [[], [0], [1], [0, 3]])
def test_a_dataset_of_next_to_nothing_is_measured(counts):
    found = quality(sl.plan(counts, batch_size=4))
    assert found.shards_a_global_batch.plan is None
    assert found.mean_distance.num_all == max(0, sum(counts) - 1)


def test_numbers_are_chosen_without_chance_and_each_once():
    chosen = spread_evenly(10**6, 200)
    assert chosen == spread_evenly(10**6, 200)
    assert len(set(chosen)) == 200
    assert 0 <= min(chosen) < max(chosen) < 10**6
    assert max(np.diff([0, *chosen, 10**6])) < 2 * 10**6 / 100


def test_progress_is_told_of_every_measure():
    told: list[int] = []
    quality(sl.plan([10], batch_size=2), advance=told.append)
    assert sum(told) == MEASURES
