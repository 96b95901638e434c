"""What indexing by columns takes."""

from __future__ import annotations

import tracemalloc
from dataclasses import asdict

from shardloader.format.ordinary import index_columns
from shardloader.format.tar_columns import files
from tests.shards import sample_members, tar_bytes


def peak_bytes(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def exhaust(iterator):
    for _ in iterator:
        pass


def test_what_is_read_at_a_time_does_not_grow_with_the_shard():
    small, large = (memoryview(tar_bytes(sample_members(count))) for count in (10_000, 40_000))
    peak = peak_bytes(lambda: exhaust(files(large)))
    assert peak <= 1.1 * peak_bytes(lambda: exhaust(files(small)))
    assert peak < 8 << 20


def test_an_index_is_made_in_less_than_twice_its_own_memory():
    shard = tar_bytes(sample_members(60_000))
    found = index_columns(shard)
    assert found is not None
    columns = asdict(found)
    own = sum(column.nbytes for name, column in columns.items() if name != "fields")
    assert peak_bytes(lambda: index_columns(shard)) < 2 * own + (4 << 20)
