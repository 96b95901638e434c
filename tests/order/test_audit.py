from __future__ import annotations

import numpy as np

from shardloader.order.audit import Tally, tally


def counted(reads: list[int], num_samples: int, pads: tuple[int, ...] = ()) -> Tally:
    index = np.array([*reads, *pads], dtype=np.int64)
    valid = np.array([True] * len(reads) + [False] * len(pads), dtype=bool)
    half = len(index) // 2
    return tally([(index[:half], valid[:half]), (index[half:], valid[half:])], num_samples)


def test_every_sample_once_is_exact_whatever_the_order_and_the_pads():
    found = counted([2, 0, 3, 1], 4, pads=(0, 0, 2))
    assert found.is_exact
    assert (found.samples, found.distinct, found.pads) == (4, 4, 3)
    assert found.missing.size == found.repeated.size == found.unknown.size == 0


def test_what_is_missing_repeated_or_unknown_is_named_once_and_ascending():
    found = counted([4, 1, 4, 7, 4, 9, -1, 9, 1], 6, pads=(0,))
    assert not found.is_exact
    assert (found.samples, found.distinct, found.pads) == (9, 2, 1)
    assert found.missing.tolist() == [0, 2, 3, 5]
    assert found.repeated.tolist() == [1, 4]
    assert found.unknown.tolist() == [-1, 7, 9]


def test_each_fault_alone_is_inexact():
    assert not counted([0], 2).is_exact
    assert not counted([0, 1, 1], 2).is_exact
    assert not counted([0, 1, 2], 2).is_exact


def test_a_sample_read_only_as_a_pad_is_missing():
    assert counted([0], 2, pads=(1,)).missing.tolist() == [1]


def test_nothing_read_of_nothing_is_exact():
    found = counted([], 0)
    assert found.is_exact
    assert (found.samples, found.distinct, found.pads) == (0, 0, 0)


def test_slots_may_come_in_any_shape():
    index = np.array([[0, 1], [2, 0]])
    found = tally([(index, np.array([[True, True], [True, False]]))], 3)
    assert found.is_exact
    assert found.pads == 1
