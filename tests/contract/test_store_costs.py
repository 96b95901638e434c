"""What reading costs in requests and bytes, counted where they arrive, and what `stats` says."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import shardloader as sl
from shardloader.format.manifest import Manifest
from shardloader.reading import by_ranges
from tests.contract.test_framed_ranges import pack
from tests.corpora import each_once, kept_corpus, loader_of, valid_of
from tests.servers.plan import Fault, Plan
from tests.servers.proxy import FaultProxy

COUNTS = (5, 0, 4, 7, 1, 6)
HANG_S = 60
NUM_MANY = 100_000


@pytest.fixture
def proxy(s3):
    pytest.importorskip("s3fs")
    with FaultProxy(s3.url) as running:
        yield running


def fetched(proxy, pattern):
    """How often each path of a pattern was asked for with GET."""
    return Counter(
        each.path for each in proxy.seen if each.method == "GET" and fnmatchcase(each.path, pattern)
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_node_fetches_each_shard_and_index_once_and_stats_say_what_it_took(
    s3, proxy, tmp_path, num_workers
):
    bucket = f"costs-{num_workers}"
    url = s3.put_folder(bucket, kept_corpus(COUNTS))
    proxy.follow(Plan(faults=(Fault(kind="status", path="*.tar", times=2),)))
    ranks = [
        loader_of(
            url,
            rank=rank,
            world_size=2,
            batch_size=2,
            num_workers=num_workers,
            timeout=HANG_S if num_workers else 0,
            cache=sl.Cache(tmp_path / "cache"),
            storage_options=s3.options(proxy.url),
        )
        for rank in range(2)
    ]
    for _ in range(2):  # epochs
        assert each_once((n for each in ranks for n in valid_of(each)), sum(COUNTS))
    files = [f"shard-{n:04d}.tar" for n, count in enumerate(COUNTS) if count]
    failed = [each.path for each in proxy.seen if each.status == 503]
    asked = fetched(proxy, "*.tar") - Counter(failed)
    assert len(failed) == 2
    assert asked == {f"{bucket}/corpus/{name}": 1 for name in files}
    assert fetched(proxy, "*.index") == {f"{bucket}/corpus/{name}.index": 1 for name in files}
    assert fetched(proxy, "*manifest.json").total() == 2  # each rank opens the dataset
    assert fetched(proxy, bucket).total() == 0  # no listing
    told = [loader.stats().reading for loader in ranks]
    both = told[0].plus(told[1])
    assert both.store_requests == proxy.counts()["requests"]
    assert both.store_received_bytes == proxy.counts()["bytes"]
    assert both.retries == len(failed)
    assert both.cache_misses <= len(files)  # the rest was fetched before it was needed
    assert ranks[0].stats().to_dict().items() >= told[0]._asdict().items()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("with_cache", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_what_came_by_ranges_counts_as_well(
    s3, proxy, tmp_path, num_workers, with_cache, packed, monkeypatch
):
    """Each request and each byte of it, as the server saw them."""
    monkeypatch.setattr(by_ranges, "LEAST_SHARD_BYTES", 0)
    folder = pack(tmp_path / "packed") if packed else kept_corpus(COUNTS)
    url = s3.put_folder(f"ranges-{num_workers}-{with_cache}-{packed}".lower(), folder)
    loader = loader_of(
        url,
        batch_size=2,
        num_workers=num_workers,
        timeout=HANG_S if num_workers else 0,
        multiprocessing_context="fork" if num_workers else None,
        cache=sl.Cache(tmp_path / "cache") if with_cache else None,
        storage_options=s3.options(proxy.url),
    )
    for _ in range(2):
        assert each_once(valid_of(loader), sum(COUNTS))
    told = loader.stats().reading
    assert told.store_requests == proxy.counts()["requests"]
    assert told.store_received_bytes == proxy.counts()["bytes"]


@pytest.mark.parametrize("by_range", [False, True])
def test_a_shard_that_is_opened_again_from_the_cache_costs_no_request(
    s3, proxy, tmp_path, by_range, monkeypatch
):
    """Where a reader can't keep open all that the window reaches over."""
    monkeypatch.setattr(by_ranges, "LEAST_SHARD_BYTES", 0 if by_range else 1 << 30)
    folder = kept_corpus(COUNTS)
    url = s3.put_folder(f"again-{by_range}", folder)
    sizes = sorted(shard.stat().st_size for shard in folder.glob("*.tar"))
    room = 3 * sum(sizes)
    assert room // 64 < sizes[1]  # sizes[0] is that of the one without samples
    loader = loader_of(
        url,
        batch_size=2,
        shuffle=sl.Shuffle(window=100),
        cache=sl.Cache(tmp_path / "cache", max_bytes=room),
        storage_options=s3.options(proxy.url),
    )
    assert each_once(valid_of(loader), sum(COUNTS))
    before = loader.stats().reading
    for _ in range(3):
        assert each_once(valid_of(loader), sum(COUNTS))
    now = loader.stats().reading.minus(before)
    assert now.store_requests == 0
    assert now.cache_hits > 3 * len(COUNTS)


@pytest.mark.parametrize("by_range", [False, True])
def test_a_process_asks_once_for_a_shard_that_is_in_the_cache_already(
    s3, proxy, tmp_path, by_range, monkeypatch
):
    url = s3.put_folder(f"once-{by_range}", kept_corpus(COUNTS))
    for is_there in (False, True):
        comes_whole = 0 if by_range and is_there else 1 << 30
        monkeypatch.setattr(by_ranges, "LEAST_SHARD_BYTES", comes_whole)
        loader = loader_of(
            url,
            batch_size=2,
            cache=sl.Cache(tmp_path / "cache"),
            storage_options=s3.options(proxy.url),
        )
        proxy.forget()
        assert each_once(valid_of(loader), sum(COUNTS))
        if is_there:
            asked = Counter((each.method, Path(each.path).name) for each in proxy.seen)
            shards = [n for n, count in enumerate(COUNTS) if count]
            opened = {("HEAD", f"shard-{number:04d}.tar"): 1 for number in shards}
            assert asked == {("GET", "manifest.json"): 1, **opened}


def test_a_dataset_of_very_many_shards_is_opened_with_a_handful_of_requests(s3, proxy, tmp_path):
    sizes = np.full(NUM_MANY, 10_240, dtype=np.int64)
    manifest = Manifest(
        names=tuple(f"part-{n // 1000:03d}/shard-{n:06d}.tar" for n in range(NUM_MANY)),
        sizes=sizes,
        counts=np.full(NUM_MANY, 1000, dtype=np.int64),
        index_digests=tuple(f"{n:032x}" for n in range(NUM_MANY)),
    )
    s3.put("many")
    s3.put("many", "corpus/manifest.json", manifest.to_json_bytes())
    options = s3.options(proxy.url)
    loader = loader_of("s3://many/corpus", batch_size=4, storage_options=options)
    assert len(loader) == NUM_MANY * 1000 // 4
    assert loader.dataset.source.manifest.digest == manifest.digest
    assert loader.stats().reading.store_requests == proxy.counts()["requests"] <= 3
    assert sum(each.path == "many" for each in proxy.seen) == 0  # no listing


def test_what_workers_asked_for_counts_though_no_batch_of_it_was_received(s3, proxy, tmp_path):
    url = s3.put_folder("unreceived", kept_corpus(COUNTS))
    loader = loader_of(
        url,
        batch_size=2,
        num_workers=1,
        timeout=HANG_S,
        cache=sl.Cache(tmp_path / "cache"),
        storage_options=s3.options(proxy.url),
    )
    for _ in range(2):
        assert len(list(islice(loader, 1))) == 1
    assert loader.stats().reading.store_requests > 2
    assert loader.stats().batches == 2
