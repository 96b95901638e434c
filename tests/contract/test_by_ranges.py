"""Batches whose bytes came by ranges are those of the local copy, or an error says what is wrong.

Read by ranges alone (`cache=None`), or until whole shards have come. Over `memory://`, and over
HTTP with a server that counts what it is asked for.
"""

from __future__ import annotations

import threading
import time
from itertools import islice
from pathlib import Path

import pytest

import shardloader as sl
from shardloader.errors import CacheError, ManifestError, ShardError, StoreError, UsageError
from shardloader.reading import by_ranges, fetching
from shardloader.reading.cache_folder import CacheFolder
from shardloader.reading.catalog import open_catalog
from shardloader.reading.pool import ShardPool
from tests.contract.test_remote_sources import HANG_S, make, upload
from tests.corpora import (
    contents,
    kept_corpus,
    loaders_of,
    make_corpus,
    make_corpus_with,
    raises_in_worker,
    valid_of,
)
from tests.reading.http_store import HttpStore
from tests.shards import tar_bytes, write_shard

COUNTS = (5, 0, 4, 7, 1, 6)
FIRST = "shard-0000.tar"
WORKERS = [0, 2]


@pytest.fixture(autouse=True)
def small_shards_come_by_ranges_too(monkeypatch):
    monkeypatch.setattr(by_ranges, "LEAST_SHARD_BYTES", 0)


@pytest.fixture(scope="module")
def epochs():
    """Two epochs of the local copy."""
    loader = make(kept_corpus(COUNTS))
    return [contents(loader) for _ in range(2)]


@pytest.fixture
def server(tmp_path):
    """A server in this process of a corpus that a test may change."""
    folder = make_corpus(tmp_path / "corpus", COUNTS)
    with HttpStore.of(folder) as running:
        running.folder = folder  # type: ignore[attr-defined]
        yield running


@pytest.fixture
def cache(tmp_path):
    return sl.Cache(tmp_path / "cache", max_bytes="50MB")


def by_fork(num_workers):
    return {"multiprocessing_context": "fork"} if num_workers else {}


def ranges_of(pool):
    assert pool.ranges is not None
    return pool.ranges


def eventually(condition):
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def gets(server, path):
    return server.asked["GET", path]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_without_a_cache_the_batches_are_those_of_the_local_copy(num_workers, epochs, server):
    loader = make(server.url, num_workers, cache=None, **by_fork(num_workers))
    assert [contents(loader) for _ in range(2)] == epochs
    url = upload(kept_corpus(COUNTS), "memory://ranges/a")
    loader = make(url, num_workers, cache=None, **by_fork(num_workers))
    assert [contents(loader) for _ in range(2)] == epochs


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("range_bytes", ["3kB", "64MB"])
def test_until_shards_are_here_the_batches_are_those_of_the_local_copy(
    num_workers, range_bytes, epochs, server, tmp_path
):
    cache = sl.Cache(tmp_path / "cache", range_bytes=range_bytes)
    loader = make(server.url, num_workers, cache=cache, **by_fork(num_workers))
    assert [contents(loader) for _ in range(2)] == epochs


def hold_what_nobody_waits_for(monkeypatch):
    """Hold all fetches back that nobody waits for: tars, if nobody does."""
    real = fetching.Fetch.go_on

    def held(fetch, is_wanted):
        while not (is_wanted() or fetch._session.is_stopped):
            time.sleep(0.005)
        real(fetch, is_wanted)

    monkeypatch.setattr(fetching.Fetch, "go_on", held)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_no_batch_waits_for_a_whole_shard_as_long_as_ranges_may_come(
    num_workers, epochs, server, cache, monkeypatch
):
    hold_what_nobody_waits_for(monkeypatch)
    loader = make(server.url, num_workers, cache=cache, **by_fork(num_workers))
    assert contents(loader) == epochs[0]
    folder = CacheFolder(Path(cache.folder))
    sizes = {each.size for each in folder.entries() if not each.is_part}
    assert not sizes & {file.stat().st_size for file in server.folder.glob("*.tar")}


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_shard_that_is_opened_by_ranges_is_asked_for_its_version_once(server, cache, with_cache):
    catalog = open_catalog(server.url, cache=cache if with_cache else None)
    with ShardPool(catalog, is_glance=True) as pool:
        for shard, num_gets in ((0, 3), (2, 2)):  # the first tells whether the store has ranges
            server.asked.clear()
            assert pool[shard].is_ranged
            name = f"shard-{shard:04d}.tar"
            index = ("GET", f"{name}.index")
            assert server.asked == {("HEAD", name): 1, index: 1, ("GET", name): num_gets}


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_shard_is_opened_by_ranges_in_the_time_of_two_requests(server, cache, with_cache):
    """Version and index at once; then both outermost headers."""
    catalog = open_catalog(server.url, cache=cache if with_cache else None)
    with ShardPool(catalog, is_glance=True) as pool:
        assert pool[0].is_ranged  # and the store was asked whether it has ranges
        content, two = server.content, threading.Barrier(2)

        def together(path):
            two.wait(HANG_S)
            return content(path)

        server.content = together
        assert pool[2].is_ranged
        server.content = content


@pytest.mark.parametrize("kind", ["nginx", "s3", "gcs", "azurite", "hub"])
def test_real_stores_give_the_same_batches_by_ranges(kind, request, epochs, cache):
    found = request.getfixturevalue(kind)
    if kind != "nginx":
        url, options = found.put_folder("by-ranges", kept_corpus(COUNTS)), found.options()
    else:
        make_corpus(found.folder / "by-ranges", COUNTS)
        url, options = f"{found.url}/ranges/by-ranges", None
    for given in (None, cache):
        loader = make(url, cache=given, storage_options=options)
        assert [contents(loader) for _ in range(2)] == epochs


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_run_that_is_broken_off_resumes_in_another_topology(with_cache, epochs, server, cache):
    given = cache if with_cache else None
    first = make(server.url, 2, cache=given, multiprocessing_context="fork")
    read = valid_of(islice(first, 3))
    state = first.state_dict()
    ranks = loaders_of(server.url, 2, batch_size=2, cache=given)
    for loader in ranks:
        loader.load_state_dict(state)
    rest = [number for loader in ranks for number in valid_of(loader)]
    assert sorted(read + rest) == list(range(sum(COUNTS)))
    back = make(kept_corpus(COUNTS))
    back.load_state_dict(state)
    assert contents(back) == epochs[0][3:]


def test_without_a_cache_no_shard_is_fetched_whole_and_no_file_is_written(tmp_path, server):
    folder = tmp_path / "large"
    write_shard(folder / FIRST, 200)
    open_catalog(folder)
    size = (folder / FIRST).stat().st_size
    upload(folder, "memory://ranges/large")
    with ShardPool(open_catalog("memory://ranges/large", cache=None)) as pool:
        shard = pool[0]
        assert shard.is_ranged
        assert bytes(shard.fields(150, frozenset(["txt"]))["txt"]).split()[1] == b"150"
        assert ranges_of(pool).num_bytes < size // 10
        assert ranges_of(pool).num_requests == 3  # two headers, and the field
    assert sorted(each.name for each in tmp_path.iterdir()) == ["corpus", "large"]


def test_a_batch_of_samples_is_fetched_in_one_go(server):
    loader = make(server.url, cache=None, batch_size=5, shuffle=False, grid=None)
    batch = next(iter(loader))
    assert batch["__index__"].tolist() == [0, 1, 2, 3, 4]
    # The byte that tells of ranges, the outermost headers, and all fields at once.
    assert gets(server, FIRST) == 4


def test_samples_with_different_fields_are_fetched_together(tmp_path):
    fields = [[("txt", b"a"), ("cls", b"1")], [("cls", b"2")], [("txt", b"c"), ("jpg", b"x")]]
    folder = make_corpus_with(tmp_path / "ragged", fields)
    with HttpStore.of(folder) as server:
        dataset = sl.ShardDataset(
            server.url,
            cache=None,
            decode=None,
            shuffle=False,
            batch_size=3,
            collate_fn=lambda samples: {"samples": samples},
        )
        (batch,) = list(dataset)
        assert [set(sample) - {"__key__"} for sample in batch["samples"]] == [
            {"txt", "cls"},
            {"cls"},
            {"txt", "jpg"},
        ]
        assert bytes(batch["samples"][2]["jpg"]) == b"x"
        assert gets(server, FIRST) == 4


def test_what_comes_by_ranges_is_limited_and_counted(server, tmp_path):
    cache = sl.Cache(tmp_path / "cache", range_bytes=2500)
    with ShardPool(open_catalog(server.url, cache=cache)) as pool:
        first = pool[0]
        assert first.is_ranged
        for sample in range(5):
            assert set(first.fields(sample)) == {"txt", "cls"}  # whole, beyond the limit
        assert 1024 < ranges_of(pool).num_bytes <= 2500
        assert not pool[2].is_ranged
        assert not pool[0].is_ranged


def test_a_limit_of_nothing_waits_for_whole_shards(server, tmp_path):
    cache = sl.Cache(tmp_path / "cache", range_bytes=0)
    with ShardPool(open_catalog(server.url, cache=cache)) as pool:
        assert not pool[0].is_ranged
    assert gets(server, FIRST) == 1


def test_whole_shards_arrive_behind_and_are_mapped_then(server, cache):
    with ShardPool(open_catalog(server.url, cache=cache)) as pool:
        ranged = pool[0]
        assert ranged.is_ranged
        eventually(lambda: ranges_of(pool).has_come(0))
        mapped = pool[0]
        assert not mapped.is_ranged
        assert mapped.cached_bytes
        server.asked.clear()
        for sample in range(5):
            assert mapped.fields(sample) == ranged.fields(sample)
    with ShardPool(open_catalog(server.url, cache=cache)) as pool:
        assert not pool[0].is_ranged  # it is here from the start


def test_a_shard_that_does_not_come_behind_is_an_error_once_it_is_needed_whole(server, tmp_path):
    cache = sl.Cache(tmp_path / "cache", max_bytes=3000)  # too small for a shard
    with ShardPool(open_catalog(server.url, cache=cache)) as pool:
        ranged = pool[0]
        assert set(ranged.fields(0)) == {"txt", "cls"}
        eventually(lambda: ranges_of(pool).has_come(0))
        with pytest.raises(CacheError, match="holds at most 3000"):
            pool[0]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_server_without_ranges_gives_whole_shards(num_workers, epochs, server, cache):
    server.has_ranges = False
    loader = make(server.url, num_workers, cache=cache, **by_fork(num_workers))
    assert contents(loader) == epochs[0]
    with raises_in_worker(StoreError, "gives whole files.*give cache="):
        contents(make(server.url, num_workers, cache=None, **by_fork(num_workers)))


def changed_at_the(number, server, path, *, after=lambda: None):
    """Let a file's etag change with the number-th request of its status."""
    content, asked = server.content, server.asked
    server.etags[path] = "first"

    def changing(asked_for):
        if asked_for == path and asked["HEAD", path] >= number and server.etags[path] == "first":
            server.etags[path] = "second"
            after()
        return content(asked_for)

    server.content = changing


def test_a_shard_that_changes_while_it_is_read_is_looked_at_and_read_again(server, epochs, caplog):
    caplog.set_level("INFO", "shardloader")
    changed_at_the(3, server, FIRST)
    assert contents(make(server.url, cache=None)) == epochs[0]
    assert "changed while it was read" in caplog.text


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_shard_that_is_replaced_while_it_is_read_is_refused(with_cache, server, cache):
    def replace():
        write_shard(server.folder / FIRST, 5, first=50)

    changed_at_the(3, server, FIRST, after=replace)
    with pytest.raises(ManifestError, match=r"shard-0000\.tar.*was replaced"):
        contents(make(server.url, cache=cache if with_cache else None))


@pytest.mark.parametrize(
    ("content", "kind", "cause"),
    [
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", ShardError, "XML"),
        (tar_bytes([("a.txt", b"1")]), ManifestError, "the manifest lists"),
    ],
    ids=["xml", "another"],
)
def test_another_file_in_a_shards_place_is_named_for_what_it_is(content, kind, cause, server):
    (server.folder / FIRST).write_bytes(content)
    with pytest.raises(kind, match=cause):
        contents(make(server.url, cache=None))


@pytest.mark.parametrize("faults", [["503", "503"], ["reset"], ["short"], ["429", "short"]])
def test_what_passes_is_not_seen(faults, server, epochs):
    server.faults["GET", FIRST] = ["", *faults]
    assert contents(make(server.url, cache=None)) == epochs[0]
    assert server.faults["GET", FIRST] == []


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_store_that_refuses_ends_a_run_that_skips_bad_shards(with_cache, server, cache):
    server.faults["GET", FIRST] = ["403"] * 9
    with pytest.raises(StoreError, match="credentials"):
        contents(make(server.url, cache=cache if with_cache else None, on_error="skip"))


def test_a_bad_shard_is_skipped_like_a_local_one(server):
    (server.folder / FIRST).unlink()
    loader = make(server.url, cache=None, on_error=sl.Skip(max_share=1), grid=None)
    assert sorted(valid_of(loader)) == list(range(5, sum(COUNTS)))


def test_compressed_local_shards_need_a_cache_and_say_so(tmp_path):
    with sl.ShardWriter(tmp_path / "packed", compression="zstd") as writer:
        for number in range(3):
            writer.write({"__key__": f"{number:06d}", "txt": f"text {number}"})
    with pytest.raises(UsageError, match=r"compressed.*cache="):
        list(sl.ShardDataset(tmp_path / "packed", cache=None))


def test_without_a_cache_local_shards_are_read_as_they_are(epochs):
    assert contents(make(kept_corpus(COUNTS), cache=None)) == epochs[0]


def test_the_default_cache_is_named_and_nothing_else_is_taken():
    sl.ShardDataset("memory://x", cache="default")
    with pytest.raises(UsageError, match=r"cache= is a Cache.*'default'.*None"):
        sl.ShardDataset("memory://x", cache="none")
