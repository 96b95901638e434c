"""The least cache of a topology: what its readers have open at once, and no loader with less."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardloader as sl
from shardloader.cli import main
from shardloader.planning.least_cache import check_cache, least_cache_bytes, readers_a_node
from shardloader.reading.cached_sizes import INDEX_BYTES_A_SAMPLE, cached_bytes
from shardloader.reading.catalog import open_catalog
from tests.corpora import each_once, kept_corpus, loader_of, loaders_of, raises_in_worker, valid_of
from tests.reading.http_store import HttpStore

COUNTS = (20, 20, 3, 20, 20, 20)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 8))
def test_it_is_the_most_that_so_many_readers_can_have_open(sizes, num_readers):
    num_open = min(num_readers, len(sizes))
    worst = max(sum(each) for each in itertools.combinations(sizes, num_open))
    assert least_cache_bytes(np.array(sizes), num_readers=num_readers) == worst


def test_a_node_has_its_ranks_workers_as_readers():
    assert readers_a_node(world_size=16, num_workers=4, ranks_per_node=8) == 32
    assert readers_a_node(world_size=4, num_workers=0, ranks_per_node=8) == 4
    assert readers_a_node(world_size=4, num_workers=0, ranks_per_node=None) == 4


@pytest.fixture
def packed(tmp_path):
    folder = tmp_path / "packed"
    folder.mkdir()
    for path in kept_corpus(COUNTS).glob("*.tar"):
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    return folder


def test_compressed_shards_count_unpacked_and_plain_local_ones_not_at_all(packed, tmp_path):
    plain = open_catalog(kept_corpus(COUNTS))
    assert cached_bytes(plain).tolist() == [0] * 6
    cache = sl.Cache(tmp_path / "cache", max_bytes="1MB", copy_local=True)
    for catalog in (open_catalog(packed, cache=cache), open_catalog(plain.root, cache=cache)):
        assert cached_bytes(catalog).tolist() == plain.manifest.sizes.tolist()


def test_shards_of_a_store_count_with_their_indexes_and_unpacked_once_that_is_known(
    packed, tmp_path
):
    cache = sl.Cache(tmp_path / "cache", max_bytes="1MB")
    sizes = open_catalog(kept_corpus(COUNTS)).manifest.sizes
    indexes = np.array(COUNTS) * INDEX_BYTES_A_SAMPLE
    with HttpStore.of(kept_corpus(COUNTS)) as store:
        told = cached_bytes(open_catalog(store.url, cache=cache))
        assert told.tolist() == (sizes + indexes).tolist()
        assert all(
            path.stat().st_size >= indexes[0] for path in kept_corpus(COUNTS).glob("*0.index")
        )
    packed_sizes = open_catalog(packed, cache=cache).manifest.sizes
    with HttpStore.of(packed) as store:
        catalog = open_catalog(store.url, cache=sl.Cache(tmp_path / "other", max_bytes="1MB"))
        assert cached_bytes(catalog).tolist() == (packed_sizes + indexes).tolist()
        list(loader_of(store.url, batch_size=9, cache=catalog.cache))
        assert cached_bytes(catalog).tolist() == (sizes + indexes).tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_smaller_cache_is_refused_with_that_figure_before_the_first_batch(
    packed, tmp_path, num_workers
):
    sizes = open_catalog(packed, cache=sl.Cache(tmp_path / "c", max_bytes="1MB"))
    least = least_cache_bytes(cached_bytes(sizes), num_readers=max(1, num_workers))
    small = sl.Cache(tmp_path / "small", max_bytes=least - 1)
    words = rf"here {least} bytes for {max(1, num_workers)} .*holds at most {least - 1}: raise"
    loader = loader_of(packed, batch_size=4, cache=small, num_workers=num_workers)
    with pytest.raises(sl.CacheError, match=words):
        next(iter(loader))
    if num_workers == 0:
        with raises_in_worker(sl.CacheError, words):
            list(sl.ShardDataset(packed, cache=small, batch_size=4))
    assert not Path(small.folder).exists()


def test_that_figure_is_enough_for_ranks_and_workers_that_read_side_by_side(packed, tmp_path):
    catalog = open_catalog(packed, cache=sl.Cache(tmp_path / "c", max_bytes="1MB"))
    least = least_cache_bytes(cached_bytes(catalog), num_readers=4)
    enough = sl.Cache(tmp_path / "enough", max_bytes=least)
    check_cache(open_catalog(packed, cache=enough), num_readers=4)
    options = {"batch_size": 4, "cache": enough, "num_workers": 2, "timeout": 120}
    loaders = loaders_of(packed, 2, multiprocessing_context="fork", **options)
    given_out = [iter(loader) for loader in loaders]
    numbers = []
    for turn in itertools.zip_longest(*given_out):
        numbers += valid_of([batch for batch in turn if batch is not None])
    assert each_once(numbers, sum(COUNTS))


def test_the_plan_tells_it_for_the_ranks_of_a_node(packed, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    sizes = sorted(open_catalog(kept_corpus(COUNTS)).manifest.sizes.tolist(), reverse=True)
    open_catalog(packed)
    words = ["plan", str(packed), "--batch-size", "2", "--world-size", "4", "--num-workers", "1"]
    for more, readers in (((), 4), (("--ranks-per-node", "2"), 2)):
        assert main([*words, *more]) == 0
        told = capsys.readouterr().out
        assert f"({sum(sizes[:readers]):,} bytes a node, for {readers} readers)" in told
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert main(words) == 0
    assert f"({sum(sizes[:3]):,} bytes a node, for 3 readers)" in capsys.readouterr().out
    assert main(["plan", str(kept_corpus(COUNTS)), "--batch-size", "2"]) == 0
    assert "least cache" not in capsys.readouterr().out
