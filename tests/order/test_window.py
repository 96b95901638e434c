from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import UsageError
from shardloader.order import window as rules
from shardloader.order.grid import Grid, Lanes, Places
from shardloader.order.permutation import random_words
from shardloader.order.window import DEFAULT_WINDOW, BlockMemo, Shuffle, shuffled
from tests.order.reference import WINDOW_FIRST, WINDOW_SECOND, shuffled_lane, words_of


def one_lane(length: int) -> Places:
    at = np.arange(length)
    return Places(np.zeros_like(at), np.full_like(at, length), at)


def shuffle_of(length: int, *, window: int, key: tuple[int, int] = (0, 0)) -> list[int]:
    places = one_lane(length)
    return list(map(int, shuffled(places, window=window, longest=length, key=key)))


def test_shuffle_says_what_the_argument_means():
    assert Shuffle.of(True) == Shuffle() == Shuffle(window=DEFAULT_WINDOW)
    assert Shuffle.of(False) is None
    assert Shuffle.of(None) is None
    given = Shuffle(window=np.int64(3))  # type: ignore[arg-type]  # numpy's integers are as good
    assert Shuffle.of(given) is given
    assert type(given.window) is int


@pytest.mark.parametrize("value", [1000, 1, 0, "yes", 3.5])
def test_a_bare_number_is_no_shuffle_and_the_way_out_is_named(value):
    with pytest.raises(UsageError, match=r"was .*: for a window of that size write Shuffle\(wind"):
        Shuffle.of(value)


@pytest.mark.parametrize("window", [0, -1, True, 2.0, None, 2**63])
def test_a_window_is_a_whole_number_of_at_least_one(window):
    with pytest.raises(UsageError, match=r"^Shuffle\(window=\) must be "):
        Shuffle(window=window)


def test_a_window_of_one_shuffles_nothing():
    assert shuffle_of(10, window=1) == list(range(10))


def test_no_places_are_no_places():
    assert shuffle_of(0, window=5) == []


@pytest.mark.parametrize("window", [2, 3, 4, 7, 10, 49, 99])
def test_a_lane_is_permuted_and_no_sample_travels_more_than_two_windows(window):
    order = shuffle_of(100, window=window)
    assert sorted(order) == list(range(100))
    assert order != list(range(100))
    assert max(abs(place - sample) for place, sample in enumerate(order)) <= 2 * window


@pytest.mark.parametrize("window", [2, 3, 4, 5, 8, 9, 16, 24, 25])
@pytest.mark.parametrize("start", [0, 3, 1000])
def test_a_lane_is_shuffled_as_the_reference_shuffles_it(window, start):
    length, key = 25, (11, 4)
    lane = list(range(start, start + length))
    words = tuple(words_of(key, stream, start + length) for stream in (WINDOW_FIRST, WINDOW_SECOND))
    at = np.array(lane)
    places = Places(np.full_like(at, start), np.full_like(at, start + length), at)
    got = shuffled(places, window=window, longest=length, key=key)
    assert got.tolist() == shuffled_lane(lane, (words[0], words[1]), window, min(window, length))


def test_samples_cross_the_borders_of_the_windows():
    crossed = [
        sample
        for seed in range(20)
        for place, sample in enumerate(shuffle_of(40, window=8, key=(seed, 0)))
        if place // 8 != sample // 8
    ]
    # Two of every three borders a sample meets: a third at the least crosses one.
    assert len(crossed) > 20 * 40 / 3


def test_a_window_of_the_lanes_length_or_more_shuffles_the_whole_lane_alike():
    whole = shuffle_of(50, window=50)
    assert whole == shuffle_of(50, window=51) == shuffle_of(50, window=10**9)
    assert max(abs(place - sample) for place, sample in enumerate(whole)) > 25


def test_a_lane_within_the_window_beside_a_longer_one_is_one_block():
    # 3 batches for 2 workers: lanes of 8 and of 4 places; a window of 4 cuts only the first.
    lanes = Lanes(grid=Grid(ranks=2, workers=2, batch=4), num_samples=24)
    positions = np.arange(24)
    places = lanes.places(positions)
    short = places.lane_stop - places.lane_start == 4
    together = shuffled(places, window=4, longest=8, key=(1, 2))
    apart = np.empty_like(together)
    for lane in np.unique(places.lane_start):
        inside = places.lane_start == lane
        apart[inside] = shuffled(
            Places(*(each[inside] for each in places)), window=4, longest=8, key=(1, 2)
        )
    assert (together == apart).all()
    assert short.any()
    assert not short.all()
    assert sorted(together.tolist()) == list(range(24))


@pytest.mark.parametrize("at_once", [1, 7, 20, 50])
def test_how_many_blocks_are_sorted_together_changes_nothing(monkeypatch, at_once):
    whole = shuffle_of(100, window=7)
    monkeypatch.setattr(rules, "WORDS_AT_ONCE", at_once)
    assert shuffle_of(100, window=7) == whole


@pytest.mark.parametrize("window", [4, 1000])
def test_every_order_of_a_short_lane_is_about_as_likely_as_any_other(window):
    epochs = 4800
    found = Counter(tuple(shuffle_of(4, window=window, key=(9, epoch))) for epoch in range(epochs))
    assert len(found) == 24
    chi_square = sum((count - epochs / 24) ** 2 for count in found.values()) / (epochs / 24)
    assert chi_square < 49.73  # the 99.9th percentile with 23 degrees of freedom


def test_lanes_beside_one_another_are_shuffled_in_different_ways():
    lanes = Lanes(grid=Grid(ranks=50, workers=1, batch=8), num_samples=400)
    positions = np.arange(400)
    places = lanes.places(positions)
    inside = shuffled(places, window=8, longest=8, key=(0, 0)) - places.lane_start
    assert len({tuple(row) for row in inside.reshape(50, 8).tolist()}) > 45


def test_seed_and_epoch_key_the_windows_as_a_pair():
    orders = [tuple(shuffle_of(60, window=10, key=key)) for key in [(0, 1), (1, 0), (0, 0), (1, 1)]]
    assert len(set(orders)) == 4


@pytest.fixture
def words_drawn(monkeypatch):
    """How many random words were drawn, call by call."""
    drawn: list[int] = []

    def counting(key, stream, start, stop):
        drawn.append(stop - start)
        return random_words(key, stream, start, stop)

    monkeypatch.setattr(rules, "random_words", counting)
    return drawn


@pytest.mark.parametrize("window", [1500, 4000])
def test_whoever_goes_along_a_lane_sorts_each_block_once(words_drawn, window):
    length, memo = 20_000, BlockMemo()
    places, parts = one_lane(length), []
    for start in range(0, length, 700):
        some = Places(*(each[start : start + 700] for each in places))
        parts.append(shuffled(some, window=window, longest=length, key=(3, 4), memo=memo))
    assert sum(words_drawn) <= 2 * (length + 2 * window)
    whole = shuffled(places, window=window, longest=length, key=(3, 4))
    assert np.array_equal(np.concatenate(parts), whole)


@given(
    window=st.sampled_from([1024, 1500, 4096]),
    calls=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 9999), st.integers(1, 3000)), max_size=12
    ),
)
def test_a_memo_changes_nothing_wherever_and_in_whichever_pass_one_looks(window, calls):
    memo = BlockMemo()
    places = one_lane(10_000)
    for number, start, size in calls:
        some = Places(*(each[start : start + size] for each in places))
        where = {"window": window, "longest": 10_000, "key": (7, number)}
        assert np.array_equal(shuffled(some, **where, memo=memo), shuffled(some, **where))


@pytest.mark.parametrize(
    "lanes",
    [
        [(2000, 9000, 1024), (2000, 9000, 1500)],
        [(2000, 9000, 1500), (2000, 4000, 1500)],  # blocks that begin alike, and end elsewhere
    ],
)
def test_a_memo_changes_nothing_where_lanes_and_windows_change(lanes):
    memo, at = BlockMemo(), np.arange(2000, 4000)
    for start, stop, window in [*lanes, lanes[0]]:
        lane = Places(np.full_like(at, start), np.full_like(at, stop), at)
        with_memo = shuffled(lane, window=window, longest=9000, key=(7, 1), memo=memo)
        assert np.array_equal(with_memo, shuffled(lane, window=window, longest=9000, key=(7, 1)))


def test_places_that_are_lanes_of_their_own_cost_no_block(words_drawn):
    at = np.arange(100)
    tail = Places(at, at + 1, at)
    assert np.array_equal(shuffled(tail, window=1 << 40, longest=1 << 30, key=(0, 0)), at)
    assert words_drawn == []


def test_what_is_remembered_takes_four_bytes_a_place_for_a_few_blocks():
    length, window, memo = 400_000, 50_000, BlockMemo()
    places = one_lane(length)
    tracemalloc.start()
    try:
        for start in range(0, length, 10_000):
            some = Places(*(each[start : start + 10_000] for each in places))
            shuffled(some, window=window, longest=length, key=(3, 4), memo=memo)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 5 * 4 * window + 100_000
    assert peak < 40 * window + 1_000_000
