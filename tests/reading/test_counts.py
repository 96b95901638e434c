"""Counts of reading grow by name, from any thread, and can lie in memory that others see."""

from __future__ import annotations

import os
import pickle
import threading

import numpy as np

from shardloader.reading.counts import NUM_COUNTS, CountRow, Counts
from tests.reading.origins import FORK


def test_counts_grow_by_name():
    row = CountRow()
    row.add(cache_hits=1)
    row.add(cache_hits=2, retries=1)
    row.add_field_bytes(10)
    row.add_field_bytes(5)
    assert row.now == Counts(field_bytes=15, cache_hits=3, retries=1)
    assert pickle.loads(pickle.dumps(row)).now == Counts()


def test_what_came_since_is_the_difference():
    earlier, now = Counts(retries=1, cache_hits=4), Counts(retries=3, cache_hits=4, field_bytes=9)
    assert now.minus(earlier) == Counts(retries=2, field_bytes=9)
    assert earlier.plus(now.minus(earlier)) == now


def test_a_row_in_memory_of_others_goes_on_from_what_is_there():
    memory = np.zeros(NUM_COUNTS, dtype=np.int64)
    CountRow(memory).add(store_requests=2)
    CountRow(memory).add(store_requests=3, store_received_bytes=7)
    assert Counts._make(memory.tolist()) == Counts(store_requests=5, store_received_bytes=7)


def test_threads_that_count_at_once_lose_nothing():
    row = CountRow()

    def count():
        for _ in range(2_000):
            row.add(store_requests=1, store_received_bytes=3)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert row.now == Counts(store_requests=8_000, store_received_bytes=24_000)


def test_a_child_that_was_forked_while_a_thread_counted_can_count():
    row = CountRow()
    with row._lock[1]:  # as if another thread were at it
        child = FORK.Process(target=_count_and_exit, args=(row,))
        child.start()
    child.join(60)
    assert child.exitcode == 7
    assert row.now == Counts()


def _count_and_exit(row):
    row.add(retries=7)
    os._exit(row.now.retries)
