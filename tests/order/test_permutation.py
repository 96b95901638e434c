from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.random import Philox

from shardloader.order import permutation as rules
from shardloader.order.permutation import permutation, random_words, sample_bits, sorting_order
from tests.order.reference import by_word, words_of


@pytest.mark.parametrize("start", [0, 1, 2, 3, 4, 5, 101])
def test_words_are_addressed_at_any_start_as_if_drawn_from_the_beginning(start):
    key = (7, 2**40)
    assert random_words(key, 1, start, start + 9).tolist() == words_of(key, 1, start + 9)[start:]


def test_no_words_are_no_words():
    assert random_words((0, 0), 0, 6, 6).tolist() == []


def test_streams_and_keys_share_no_words():
    streams = (rules.SHARDS, rules.WINDOW_FIRST, rules.WINDOW_SECOND, rules.SAMPLE)
    assert streams == (0, 1, 2, 3)
    drawn = [
        word
        for key in [(0, 0), (0, 1), (1, 0)]
        for stream in streams
        for word in random_words(key, stream, 0, 1000).tolist()
    ]
    assert len(set(drawn)) == len(drawn)


def test_a_samples_bits_are_keyed_by_seed_epoch_and_sample():
    drawn = [
        tuple(sample_bits(*of).random_raw(8).tolist())
        for of in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (2**63 - 1, 2**61, 2**61)]
    ]
    assert len(set(drawn)) == len(drawn)
    assert drawn[0] == tuple(sample_bits(0, 0, 0).random_raw(8).tolist())


def test_a_samples_bits_are_apart_from_the_orders_streams_and_from_its_neighbours():
    # The sample's number is the second word of the counter, so that each has 2**66 words.
    bits = sample_bits(5, 6, 7)
    same = Philox(
        key=np.array([5, 6], dtype=np.uint64),
        counter=np.array([0, 7, 0, rules.SAMPLE], dtype=np.uint64),
    )
    assert (bits.random_raw(5) == same.random_raw(5)).all()


@pytest.mark.parametrize("num", [0, 1, 2, 3, 4, 5, 8, 9, 1000])
def test_a_permutation_is_the_order_in_which_words_sort(num):
    got = permutation((3, 4), 2, num)
    assert got.dtype == np.int64
    assert got.tolist() == by_word(words_of((3, 4), 2, num), range(num), num)
    assert sorted(got.tolist()) == list(range(num))


@pytest.mark.parametrize("num", [2, 3, 4])
def test_every_permutation_is_about_as_likely_as_any_other(num):
    tries = 2400
    found = Counter(tuple(permutation((seed, 0), 0, num).tolist()) for seed in range(tries))
    kinds = [1, 1, 2, 6, 24][num]
    assert len(found) == kinds
    chi_square = sum((count - tries / kinds) ** 2 for count in found.values()) / (tries / kinds)
    # The 99.9th percentile of chi-square with 1, 5 and 23 degrees of freedom.
    assert chi_square < {2: 10.83, 6: 20.52, 24: 49.73}[kinds]


def test_equal_words_are_told_apart_by_their_column():
    words = np.zeros((2, 5), dtype=np.uint64)
    words[1] = 2**64 - 1
    order = sorting_order(words, np.zeros(2, np.int64), np.full(2, 5, np.int64))
    assert order.tolist() == [list(range(5))] * 2


def test_columns_outside_the_lane_stay_whatever_the_words_are():
    extremes = np.array([[0, 2**64 - 1, 0, 2**64 - 1, 0, 2**64 - 1]], dtype=np.uint64)
    words = np.concatenate([extremes, ~extremes, np.zeros_like(extremes), ~np.zeros_like(extremes)])
    first, stop = np.array([2, 0, 1, 3]), np.array([6, 4, 5, 3])
    order = sorting_order(words, first, stop)
    for row, lo, hi in zip(order.tolist(), first.tolist(), stop.tolist(), strict=True):
        assert row[:lo] == list(range(lo))
        assert row[hi:] == list(range(hi, 6))
        assert sorted(row[lo:hi]) == list(range(lo, hi))


@pytest.mark.parametrize(("width", "bits"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_only_as_many_low_bits_give_way_to_the_column_as_it_needs(width, bits):
    def order_of(words: list[int]) -> list[int]:
        array = np.array([words], dtype=np.uint64)
        return list(map(int, sorting_order(array, np.array([0]), np.array([width]))[0]))

    falling = list(range(width))[::-1]
    assert order_of([column << bits for column in falling]) == falling
    # Words that differ below those bits only are told apart by their column.
    assert order_of([column & ((1 << bits) - 1) for column in falling]) == falling[::-1]
