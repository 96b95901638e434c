"""A reader that has handed its batch over has one of the cache's tars open, whatever went wrong."""

from __future__ import annotations

import gc
import gzip
import time
from pathlib import Path

import pytest

import shardloader as sl
from shardloader.reading.catalog import open_catalog
from tests.corpora import dataset_of, loader_of
from tests.reading.http_store import HttpStore
from tests.shards import tar_bytes

NUM_SHARDS, SAMPLES = 6, 4
GOOD = b'{"of": "' + bytes(4000).hex().encode() + b'"}'
PATIENCE = {"patience": {"first_s": 0.01, "longest_s": 0.01}}
PATIENCE_S = 20
TAR_BYTES = 10_000  # an index here has fewer
FAULTS = {  # by method; fsspec asks for a size by GET where HEAD fails
    "no status": {"HEAD": ["503", "503"], "GET": ["503", "503"]},
    "in mid-body": {"GET": ["reset"]},
    "a short body": {"GET": ["short"]},
    "a page": {"GET": ["html"]},
}


@pytest.fixture(autouse=True)
def no_search_for_cycles():
    """What only a search for cycles lets go of stays, as it does for a while in a real reader."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def members_of(shard, num_samples=SAMPLES, bad=None):
    """The members of a shard; bad: the number of the sample whose JSON is none."""
    return [
        (f"{shard}{number:02d}.json", b"{" if number == bad else GOOD)
        for number in range(num_samples)
    ]


def cache_of(tmp_path):
    """One of which a process keeps no second tar open, and that has room for many."""
    return sl.Cache(tmp_path / "cache", max_bytes="300kB")


def mapped_tars(cache):
    """The tars of the cache that this process has mapped now."""
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        file = Path(line.split(maxsplit=5)[-1])
        if file.parent == Path(cache.folder) and file.stat().st_size >= TAR_BYTES:
            found.add(file.name)
    return found


def most_open(batches, cache):
    """The most tars open after a batch, but for one that a fetch ahead has for a moment."""
    most = 0
    for _ in batches:
        deadline = time.monotonic() + PATIENCE_S
        while (num := len(mapped_tars(cache))) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        most = max(most, num)
    return most


@pytest.mark.parametrize("fault", FAULTS)
def test_requests_that_failed_and_were_made_again_keep_no_tar_open(tmp_path, fault):
    folder, cache = tmp_path / "corpus", cache_of(tmp_path)
    folder.mkdir()
    for shard in range(NUM_SHARDS):
        (folder / f"shard-{shard:04d}.tar").write_bytes(tar_bytes(members_of(shard)))
    open_catalog(folder)
    with HttpStore.of(folder) as store:
        loader = loader_of(
            store.url, batch_size=3, shuffle=None, cache=cache, storage_options=PATIENCE
        )
        for shard in range(NUM_SHARDS):
            for method, met in FAULTS[fault].items():
                store.faults[method, f"shard-{shard:04d}.tar"] = list(met)
        assert most_open(loader, cache) == 1


@pytest.mark.parametrize("kind", ["json that is none", "another shard"])
def test_bad_samples_that_are_skipped_keep_no_tar_open(tmp_path, kind):
    folder = tmp_path / "packed"
    folder.mkdir()
    is_another = kind == "another shard"
    for shard in range(NUM_SHARDS):
        members = members_of(shard, bad=None if is_another else shard % SAMPLES)
        (folder / f"shard-{shard:04d}.tar.gz").write_bytes(gzip.compress(tar_bytes(members)))
    open_catalog(folder, cache=sl.Cache(tmp_path / "other", max_bytes="1MB"))
    for shard in (1, 2, 4) if is_another else ():
        members = members_of(shard, num_samples=2)
        (folder / f"shard-{shard:04d}.tar.gz").write_bytes(gzip.compress(tar_bytes(members)))
    cache, skip = cache_of(tmp_path), sl.Skip(max_share=1.0)
    data = dataset_of(folder, batch_size=3, shuffle=None, cache=cache, on_error=skip)
    assert most_open(data, cache) == 1
