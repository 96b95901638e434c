"""What every way to name a dataset keeps: a folder, a pattern, a list, indexes elsewhere.

Stores of other kinds will have to pass the same suite.
"""

from __future__ import annotations

import pytest

import shardloader as sl
from shardloader.errors import ManifestError
from shardloader.reading.catalog import open_catalog
from shardloader.reading.pool import ShardPool
from tests.shards import write_shard

COUNTS = (3, 0, 5, 2)


@pytest.fixture(params=["folder", "pattern", "list", "indexes elsewhere"])
def named(request, tmp_path):
    """A source and the options to open it with."""
    folder = tmp_path / "corpus"
    first = 0
    for number, count in enumerate(COUNTS):
        write_shard(folder / f"{number:03d}.tar", count, first=first)
        first += count
    return {
        "folder": (folder, {}),
        "pattern": (f"{folder}/{{000..003}}.tar", {}),
        "list": (sorted(folder.glob("*.tar")), {}),
        "indexes elsewhere": (folder, {"index_dir": tmp_path / "indexes"}),
    }[request.param]


def everything(catalog):
    """Key and fields of every sample, in the manifest's order."""
    with ShardPool(catalog) as pool:
        return [
            (pool[shard].key(sample), {k: bytes(v) for k, v in pool[shard].fields(sample).items()})
            for shard in range(catalog.num_shards)
            for sample in range(pool[shard].num_samples)
        ]


def test_its_shards_are_listed_with_their_counts_in_byte_order(named):
    source, options = named
    manifest = open_catalog(source, **options).manifest
    assert manifest.counts.tolist() == list(COUNTS)
    assert [name.rpartition("/")[2] for name in manifest.names] == sorted(
        f"{number:03d}.tar" for number in range(len(COUNTS))
    )


def test_every_sample_reads_as_it_was_written(named):
    source, options = named
    read = everything(open_catalog(source, **options))
    assert [key for key, _ in read] == [f"{number:06d}" for number in range(sum(COUNTS))]
    assert all(fields for _, fields in read)


def test_opening_again_gives_the_same_dataset_and_changes_nothing(named, tmp_path):
    source, options = named
    first = open_catalog(source, **options)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    again = open_catalog(source, **options, may_index=False)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert again.manifest.digest == first.manifest.digest
    assert everything(again) == everything(first)
    assert after == before


def test_a_shard_that_goes_or_changes_is_named(named, tmp_path):
    source, options = named
    catalog = open_catalog(source, **options)
    shard = tmp_path / "corpus" / "002.tar"
    shard.write_bytes(shard.read_bytes()[:-512])
    with pytest.raises(ManifestError, match=r"002\.tar"), ShardPool(catalog) as pool:
        pool[2]


def test_it_is_read_whole_by_two_ranks_in_the_order_of_its_plan(named):
    source, options = named
    plan = sl.plan(open_catalog(source, **options).manifest, batch_size=2, world_size=2)
    read = []
    for rank in range(2):
        topology = sl.Topology(rank=rank, world_size=2)
        dataset = sl.ShardDataset(source, topology=topology, fields=(), **options)
        for step, batch in enumerate(sl.ShardLoader(dataset, batch_size=2)):
            assert batch["__index__"].tolist() == plan.batch(step, rank).index.tolist()
            read += batch["__index__"][batch["__valid__"]].tolist()
    assert sorted(read) == list(range(sum(COUNTS)))
