"""Skipping over compressed shards: what the cache can't hold is no bad data."""

from __future__ import annotations

import errno
import gzip
import os
from itertools import islice

import pytest

import shardloader as sl
from shardloader.reading.cache_folder import Part
from shardloader.reading.catalog import open_catalog
from tests.corpora import each_once, loader_of, raises_in_worker, valid_of
from tests.packing import zstd_frame
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
    told = {"too small": "raise max_bytes=", "no folder": "can't be made"}[trouble]
    with raises_in_worker(sl.CacheError, told):
        list(loader)


def test_a_full_disk_while_reading_stops_a_run_that_skips(packed, cache, tmp_path, monkeypatch):
    loader_of(packed, cache=cache).state_dict()
    monkeypatch.setattr(Part, "write", full_disk)
    loader = loader_of(packed, cache=sl.Cache(tmp_path / "other"), on_error=ANY)
    with pytest.raises(sl.CacheError, match=r"\d\.tar\.gz: .*No space left.*make room there"):
        list(loader)


@pytest.mark.parametrize("packing", [bytes, gzip.compress])
def test_a_shard_of_a_list_that_goes_missing_keeps_its_numbers(tmp_path, cache, packing):
    source = [tmp_path / f"{number}.tar" for number in range(3)]
    for number, path in enumerate(source):
        path.write_bytes(packing(tar_bytes(sample_members(6, first=6 * number))))
    before = loader_of(source, cache=cache, on_error=ANY, batch_size=2)
    valid = valid_of(islice(before, 3))
    source[1].rename(tmp_path / "away")
    resumed = loader_of(source, cache=cache, on_error=ANY, batch_size=2)
    resumed.load_state_dict(before.state_dict())
    valid += valid_of(resumed)
    assert len(set(valid)) == len(valid)
    assert set(valid) >= {*range(6), *range(12, 18)}
    assert resumed.stats().bad["shard"] == 18 - len(valid)
    (tmp_path / "away").rename(source[1])
    assert each_once(valid_of(loader_of(source, cache=cache)), 18)


@pytest.mark.parametrize("packing", [gzip.compress, zstd_frame])
def test_a_shard_of_a_list_whose_bytes_rot_keeps_its_numbers(tmp_path, cache, packing):
    source = [tmp_path / f"{number}.tar" for number in range(3)]
    for number, path in enumerate(source):
        path.write_bytes(packing(tar_bytes(sample_members(6, first=6 * number))))
    before = open_catalog(source, cache=cache).manifest
    data, status = bytearray(source[1].read_bytes()), source[1].stat()
    data[-6] ^= 1
    source[1].write_bytes(data)
    os.utime(source[1], ns=(status.st_atime_ns, status.st_mtime_ns))
    loader = loader_of(source, cache=cache, on_error=ANY, batch_size=4)
    assert sorted(valid_of(loader)) == [*range(6), *range(12, 18)]
    assert loader.state_dict()["dataset"] == before.digest
    assert loader.stats().bad["shard"] == 6
