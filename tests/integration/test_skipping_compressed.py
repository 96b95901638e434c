"""Skipping over compressed shards: what the cache can't hold is no bad data."""

from __future__ import annotations

import errno
import gzip

import pytest

import shardloader as sl
from shardloader.reading.cache_folder import Part
from tests.corpora import each_once, loader_of, raises_in_worker, valid_of
from tests.shards import sample_members, tar_bytes

ANY = sl.Skip(max_share=1.0)


@pytest.fixture
def packed(tmp_path):
    return pack(tmp_path / "packed", (6, 40, 6))


@pytest.fixture
def cache(tmp_path):
    return sl.Cache(tmp_path / "cache", max_bytes="1GB")


def pack(folder, counts):
    folder.mkdir()
    for number, count in enumerate(counts):
        members = sample_members(count, first=sum(counts[:number]))
        (folder / f"{number}.tar.gz").write_bytes(gzip.compress(tar_bytes(members)))
    return folder


def full_disk(part, piece):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_of_the_cache_leaves_no_shard_down_as_damaged(packed, cache, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Part, "write", full_disk)
        with pytest.raises(sl.CacheError, match=r"0\.tar\.gz: .*No space left"):
            list(loader_of(packed, cache=cache, on_error=ANY))
    assert not list(packed.glob("*.index"))
    assert each_once(valid_of(loader_of(packed, cache=cache, on_error=ANY)), 52)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("trouble", ["too small", "no folder"])
def test_a_cache_that_fails_stops_a_run_that_skips(packed, cache, tmp_path, trouble, num_workers):
    loader_of(packed, cache=cache).state_dict()  # all is indexed
    (tmp_path / "file").touch()
    other = sl.Cache(tmp_path / "small", max_bytes="20kB")
    if trouble == "no folder":
        other = sl.Cache(tmp_path / "file" / "cache")
    loader = loader_of(packed, cache=other, on_error=ANY, num_workers=num_workers)
    told = {"too small": r"1\.tar\.gz: .*raise max_bytes=", "no folder": "can't be made"}[trouble]
    with raises_in_worker(sl.CacheError, told):
        list(loader)


def test_a_full_disk_while_reading_stops_a_run_that_skips(packed, cache, tmp_path, monkeypatch):
    loader_of(packed, cache=cache).state_dict()
    monkeypatch.setattr(Part, "write", full_disk)
    loader = loader_of(packed, cache=sl.Cache(tmp_path / "other"), on_error=ANY)
    with pytest.raises(sl.CacheError, match=r"\d\.tar\.gz: .*No space left.*make room there"):
        list(loader)
