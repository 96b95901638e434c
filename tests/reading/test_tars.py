"""Where the tar of a shard lies: in the file itself, or in the cache."""

from __future__ import annotations

import gzip
import mmap

import pytest

from shardloader.errors import ShardError
from shardloader.reading.cache import Cache
from shardloader.reading.tars import block_before, index_of, map_tar
from tests.packing import PACKED
from tests.shards import sample_members, tar_bytes

TAR = tar_bytes(sample_members(5))


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", max_bytes="1MB")


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_a_plain_shard_is_its_own_tar_whatever_it_is_called(tmp_path, cache, name):
    (tmp_path / name).write_bytes(TAR)
    tar = map_tar(str(tmp_path / name), cache)
    assert (bytes(tar.data), tar.name, tar.compressed_bytes) == (TAR, str(tmp_path / name), None)
    assert block_before(str(tmp_path / name), 512, cache) is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("packing", PACKED)
def test_a_compressed_shard_is_mapped_from_the_cache(tmp_path, cache, packing):
    packed = PACKED[packing](TAR)
    (tmp_path / "x.tar").write_bytes(packed)
    tar = map_tar(str(tmp_path / "x.tar"), cache)
    assert bytes(tar.data) == TAR
    assert isinstance(tar.data.obj, mmap.mmap)
    assert tar.compressed_bytes == len(packed)
    index, notices = index_of(tar)
    assert (index.shard_bytes, index.file_bytes, notices) == (len(TAR), len(packed), ())


def test_a_block_is_read_without_the_rest_and_not_cached(tmp_path, cache):
    packed = PACKED["gz"](TAR)
    (tmp_path / "x.tar").write_bytes(packed[:-8])  # its trailer is not there
    for stop in (512, 700, 1536, len(TAR)):
        assert block_before(str(tmp_path / "x.tar"), stop, cache) == TAR[stop - 512 : stop]
    assert block_before(str(tmp_path / "x.tar"), 512, cache) == TAR[:512]
    with pytest.raises(ShardError, match="truncated"):
        map_tar(str(tmp_path / "x.tar"), cache)
    assert not list((tmp_path / "cache").glob("*.cached"))


def test_an_empty_file_is_plain(tmp_path, cache):
    (tmp_path / "x.tar").touch()
    with pytest.raises(ShardError, match="0 bytes"):
        index_of(map_tar(str(tmp_path / "x.tar"), cache))


def test_a_plain_shard_of_a_slow_file_system_is_copied_once_and_mapped_in_the_cache(tmp_path):
    copying = Cache(tmp_path / "cache", max_bytes="1MB", copy_local=True)
    plain = tar_bytes([("a.txt", b"1")])
    for name, content in (("x.tar", plain), ("y.tar", gzip.compress(plain))):
        (tmp_path / name).write_bytes(content)
        for _ in range(2):
            tar = map_tar(str(tmp_path / name), copying)
            assert bytes(tar.data) == plain
            assert tar.is_cached
            assert tar.compressed_bytes == (None if name == "x.tar" else len(content))
    assert copying.use().tars == 2
    (tmp_path / "x.tar").write_bytes(tar_bytes([("b.txt", b"22")]))
    assert b"b.txt" in bytes(map_tar(str(tmp_path / "x.tar"), copying).data)
