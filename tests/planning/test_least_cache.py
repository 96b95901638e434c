"""The least cache of a topology: what its readers need at one time, and no loader with less."""

from __future__ import annotations

import gzip
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardloader as sl
from shardloader.cli import main
from shardloader.order.reach import Reach
from shardloader.planning.least_cache import LeastCache, reach_of, readers_a_node
from shardloader.reading.cached_sizes import INDEX_BYTES, cached_bytes
from shardloader.reading.catalog import open_catalog
from tests.contract.test_remote_sources import upload
from tests.corpora import each_once, kept_corpus, loader_of, loaders_of, raises_in_worker, valid_of
from tests.reading.http_store import HttpStore
from tests.shards import tar_bytes

COUNTS = (20, 20, 3, 20, 20, 20)
REACH = Reach(
    readers=1,
    lanes=1,
    samples=1,
    tail=3,
    is_shared=False,
    is_shuffled=True,
    rows=1,
    rows_ahead=8,
    steps=10,
)


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


def index_bytes(folder):
    return np.array([path.stat().st_size for path in sorted(folder.glob("*.index"))])


def test_shards_of_a_store_count_unpacked_and_with_their_indexes_once_these_are_here(
    packed, tmp_path
):
    cache = sl.Cache(tmp_path / "cache", max_bytes="1MB")
    sizes = open_catalog(kept_corpus(COUNTS)).manifest.sizes
    packed_sizes = open_catalog(packed, cache=cache).manifest.sizes
    for folder, known in ((kept_corpus(COUNTS), sizes), (packed, packed_sizes)):
        with HttpStore.of(folder) as store:
            cache = sl.Cache(tmp_path / folder.name, max_bytes="1MB")
            catalog = open_catalog(store.url, cache=cache)
            assert (cached_bytes(catalog) >= known + index_bytes(folder)).all()
            list(loader_of(store.url, batch_size=9, cache=cache))
            assert cached_bytes(catalog).tolist() == (sizes + index_bytes(folder)).tolist()


NAMES = {
    "short": lambda number: f"{number}",
    "long": lambda number: f"{'d' * 140}/{number:090d}",  # as a plain header just holds
}


@pytest.mark.parametrize("num_samples", [0, 1, 3, 400])
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("num_fields", [1, 7, 40])
def test_an_index_that_is_not_here_is_not_larger_than_was_told(
    tmp_path, num_samples, names, num_fields
):
    """Of members without a byte, of which a tar holds the most."""
    members = [
        (f"{NAMES[names](number)}.{field:04d}", b"")
        for number in range(num_samples)
        for field in range(num_fields)
    ]
    folder = tmp_path / "corpus"
    folder.mkdir()
    for shard in range(2):
        (folder / f"{shard}.tar").write_bytes(tar_bytes(members))
    open_catalog(folder)
    url = upload(folder, f"memory://least/{tmp_path.name}")
    catalog = open_catalog(url, cache=sl.Cache(tmp_path / "cache", max_bytes="1GB"))
    real = catalog.manifest.sizes + index_bytes(folder)
    told = cached_bytes(catalog)
    assert (told >= real).all()
    # Most of that is names that might be longer, and what an index has besides its samples.
    assert (told <= 2 * real + INDEX_BYTES).all()


def reach_of_loader(catalog, *, world_size=1, num_workers=0, **options):
    """The figure for ranks of one node."""
    options = {"shuffle": sl.Shuffle(window=2), "batch_size": 1, **options}
    made = sl.plan(catalog.manifest, world_size=world_size, num_workers=num_workers, **options)
    reach = reach_of(made.schedule, num_workers=num_workers, ranks_per_node=world_size)
    return LeastCache.of(cached_bytes(catalog), catalog.manifest.counts, reach)


def test_it_is_no_larger_where_shards_turn_out_to_be_smaller():
    """As they do once their indexes are known: what was enough before is enough then."""
    rng = np.random.Generator(np.random.PCG64(0))
    for _ in range(300):
        counts = rng.integers(1, 12, 24)
        sizes = rng.integers(1, 1000, 24)
        smaller = sizes - rng.integers(0, sizes // 8 + 1)
        reach = replace(REACH, lanes=int(rng.integers(1, 4)), samples=int(rng.integers(1, 60)))
        least, of_smaller = (LeastCache.of(each, counts, reach) for each in (sizes, smaller))
        assert of_smaller.least_bytes <= least.least_bytes


@pytest.mark.parametrize("num_workers", [0, 2])
def test_that_figure_is_enough_for_tiny_shards_of_a_store(tmp_path, num_workers):
    """Whose indexes are nearly as large as they are, so that counting them makes the difference."""
    counts = (1, 2, 1, 2) * 8
    url = upload(kept_corpus(counts), f"memory://least/{tmp_path.name}")
    catalog = open_catalog(url, cache=sl.Cache(tmp_path / "c", max_bytes="1MB"))
    found = reach_of_loader(catalog, num_workers=num_workers)
    least = found.least_bytes
    assert least < found.all_bytes
    enough = sl.Cache(tmp_path / "enough", max_bytes=least)
    options = {"multiprocessing_context": "fork", "timeout": 120} if num_workers else {}
    options |= {"batch_size": 1, "num_workers": num_workers, "shuffle": sl.Shuffle(window=2)}
    loader = loader_of(url, cache=enough, **options)
    for _ in range(2):
        assert each_once(valid_of(loader), sum(counts))
    smaller = sl.Cache(tmp_path / "smaller", max_bytes=least - 1)
    with pytest.raises(sl.CacheError, match=f"here {least} bytes"):
        next(iter(loader_of(url, cache=smaller, **options)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_smaller_cache_is_refused_with_that_figure_before_the_first_batch(
    packed, tmp_path, num_workers
):
    catalog = open_catalog(packed, cache=sl.Cache(tmp_path / "c", max_bytes="1MB"))
    shuffle = sl.Shuffle(window=2)
    least = reach_of_loader(catalog, num_workers=num_workers).least_bytes
    small = sl.Cache(tmp_path / "small", max_bytes=least - 1)
    words = rf"here {least} bytes for {max(1, num_workers)} .*holds at most {least - 1}: raise"
    options: Any = {"cache": small, "shuffle": shuffle, "batch_size": 1}
    with pytest.raises(sl.CacheError, match=words) as caught:
        next(iter(loader_of(packed, num_workers=num_workers, **options)))
    assert "cache=None" not in str(caught.value)  # compressed shards need one
    if num_workers == 0:
        with raises_in_worker(sl.CacheError, words):
            list(sl.ShardDataset(packed, **options))
    assert not Path(small.folder).exists()


def test_that_figure_is_enough_for_ranks_and_workers_that_read_side_by_side(
    packed, tmp_path, monkeypatch
):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    catalog = open_catalog(packed, cache=sl.Cache(tmp_path / "c", max_bytes="1MB"))
    least = reach_of_loader(catalog, world_size=2, num_workers=2).least_bytes
    enough = sl.Cache(tmp_path / "enough", max_bytes=least)
    options = {"batch_size": 1, "cache": enough, "num_workers": 2, "timeout": 120}
    options["shuffle"] = sl.Shuffle(window=2)
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
    words = ["plan", str(packed), "--batch-size", "1", "--world-size", "4", "--num-workers", "1"]
    words += ["--window", "2"]
    # Four in part, at the ends of a lane and of the tail; the small one whole, and one sample more.
    of_one = sum(sizes[:4]) + sizes[-1] + -(-sizes[0] // 20)
    for more, readers, least in (((), 4, sum(sizes)), (("--ranks-per-node", "1"), 1, of_one)):
        assert main([*words, *more]) == 0
        told = capsys.readouterr().out
        assert f"({least:,} bytes a node, for {readers} reader" in told
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert main(words) == 0
    assert f"({sum(sizes[:6]):,} bytes a node, for 3 readers)" in capsys.readouterr().out
    assert main(["plan", str(kept_corpus(COUNTS)), "--batch-size", "2"]) == 0
    assert "least cache" not in capsys.readouterr().out
