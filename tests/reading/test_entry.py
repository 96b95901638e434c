"""What the manifest says of one shard, where its index or the node's cache can't be used."""

from __future__ import annotations

import errno
import gzip
import tracemalloc

import pytest

from shardloader.errors import CacheError
from shardloader.reading.cache import Cache
from shardloader.reading.cache_folder import Part
from shardloader.reading.catalog import open_catalog
from shardloader.reading.entry import current_entry, index_shard
from shardloader.reading.indexing import index_dataset
from shardloader.reading.source import resolve
from tests.packing import PACKED
from tests.shards import tar_bytes, write_shard


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def test_an_index_that_can_not_be_read_is_none(tmp_path, cache):
    write_shard(tmp_path / "a.tar", 2)
    place = resolve(tmp_path)
    (tmp_path / "a.tar.index").mkdir()  # what is there, and can't be mapped
    assert current_entry(place, "a.tar", cache, keep_damaged=False) is None
    (tmp_path / "a.tar").unlink()
    assert current_entry(place, "a.tar", cache, keep_damaged=False) is None


def test_an_index_that_was_made_is_current(tmp_path, cache):
    write_shard(tmp_path / "a.tar", 2)
    place = resolve(tmp_path)
    made = index_shard(place, "a.tar", cache=cache, keep_damaged=False, digest=False)
    assert current_entry(place, "a.tar", cache, keep_damaged=False) == made


def test_what_lies_before_the_first_sample_takes_no_memory(tmp_path, cache):
    tar = tar_bytes([("__notes__/x", bytes(32 << 20)), ("1.txt", b"one")])
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar, 1))
    place = resolve(tmp_path)
    made = index_shard(place, "a.tar.gz", cache=cache, keep_damaged=False, digest=False)
    tracemalloc.start()
    try:
        assert current_entry(place, "a.tar.gz", cache, keep_damaged=False) == made
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_shard_beyond_a_limit_is_read_once_the_limit_is_raised(tmp_path, cache):
    shard = tmp_path / "a.tar.zst"
    shard.write_bytes(PACKED["zst"](tar_bytes([("1.txt", bytes(9000))])))
    narrow = Cache(tmp_path / "cache", max_window=1024)
    cut = open_catalog([shard], cache=narrow, keep_damaged=True).manifest
    assert [damage.kind for _, damage in cut.damage] == ["unsupported_compression"]
    whole = open_catalog([shard], cache=cache, keep_damaged=True).manifest
    assert (whole.num_samples, whole.damage) == (1, ())


@pytest.mark.parametrize("failing", ["write", "grow", "settle"])
def test_a_cache_whose_disk_is_full_is_no_damage_of_the_shard(
    tmp_path, cache, monkeypatch, failing
):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.tar.gz").write_bytes(gzip.compress(tar_bytes([("1.txt", b"one")])))
    with monkeypatch.context() as patched:
        patched.setattr(Part, failing, fail)
        with pytest.raises(CacheError, match="No space left"):
            open_catalog(folder, cache=cache, keep_damaged=True)
    assert not list(folder.glob("*.index"))
    manifest, _ = index_dataset(folder, cache=cache, progress=False)
    assert (manifest.num_samples, manifest.damage) == (1, ())
