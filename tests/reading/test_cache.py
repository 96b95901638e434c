"""The node's cache: what one process is promised."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path

import pytest

from shardloader.errors import ShardError, UsageError, WorldError
from shardloader.reading.cache import Cache, default_cache, name_of
from shardloader.reading.origin import LocalFile
from tests.packing import zstd_frame
from tests.reading.origins import (
    FakeOrigin,
    fails_at,
    files,
    is_tidy,
    origin_of,
    tar_of,
)

CASES = Path(__file__).parent.parent / "cases"


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", max_bytes="10MB")


def test_what_is_asked_for_is_there_and_was_fetched_once(cache):
    origin = origin_of(1)
    assert bytes(cache.tar(origin)) == origin.content
    assert bytes(cache.tar(origin)) == origin.content
    assert origin.asked == 1
    assert is_tidy(cache)


@pytest.mark.parametrize("pack", [gzip.compress, zstd_frame])
def test_a_compressed_shard_lies_there_unpacked(cache, pack):
    origin = FakeOrigin(pack(tar_of(1)))
    assert bytes(cache.tar(origin)) == tar_of(1)


def test_making_a_cache_touches_no_disk_and_pickles(tmp_path):
    cache = Cache(tmp_path / "not" / "there", max_bytes="1GB", max_window="1GiB")
    assert not Path(cache.folder).exists()
    assert pickle.loads(pickle.dumps(cache)) == cache
    assert (cache.max_bytes, cache.max_window) == (10**9, 1 << 30)
    assert cache.use().tars == 0
    assert cache.clear() == (0, 0)
    assert not Path(cache.folder).exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folder": ""}, "takes a folder"),
        ({"folder": 7}, "takes a folder"),
        ({"max_bytes": "much"}, "a size is"),
        ({"max_bytes": 0}, "at least one byte"),
        ({"max_expansion": 0}, "at least 1"),
        ({"max_expansion": 1.5}, "whole number"),
        ({"max_expansion": True}, "whole number"),
        ({"max_window": "4GiB"}, "at most 2GiB"),
    ],
)
def test_a_cache_of_nonsense_is_refused(options, words):
    folder = options.pop("folder", "somewhere")
    with pytest.raises(UsageError, match=words):
        Cache(folder, **options)


def test_a_home_is_meant_by_its_sign_and_a_folder_stays_when_the_process_moves(tmp_path):
    assert Cache("~/x").folder == str(Path.home() / "x")
    assert default_cache().folder == str(Path.home() / ".cache" / "shardloader")
    assert Path(Cache("relative").folder).is_absolute()


def test_a_user_without_a_home_has_a_cache_too(monkeypatch, tmp_path):
    def no_home(path):
        if str(path).startswith("~"):
            raise RuntimeError("Could not determine home directory.")
        return path

    monkeypatch.setattr(Path, "expanduser", no_home)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert default_cache().folder == str(tmp_path / f"shardloader-{os.getuid()}")
    with pytest.raises(UsageError, match="no such home folder"):
        Cache("~nobody-of-this-name/x")


def test_d01_shards_of_one_base_name_are_told_apart(cache):
    one = FakeOrigin(tar_of(1), identity="memory://a/000.tar")
    two = FakeOrigin(tar_of(2), identity="memory://b/000.tar")
    for _ in range(2):
        assert bytes(cache.tar(one)) == tar_of(1)
        assert bytes(cache.tar(two)) == tar_of(2)
    assert (one.asked, two.asked) == (1, 1)


def test_d01_long_names_that_differ_at_an_end_and_odd_ones_are_told_apart(cache):
    long = "x" * 300
    identities = [long, "a" + long, long + "a", "猫", "a b#?%20", "../../etc", "\udcff", "a\0b"]
    for number, identity in enumerate(identities):
        cache.tar(FakeOrigin(tar_of(number, 10), identity=identity))
    for number, identity in enumerate(identities):
        assert bytes(cache.tar(FakeOrigin(tar_of(number, 10), identity=identity))) == (
            tar_of(number, 10)
        )
    assert len(files(cache)) == len(identities)
    assert name_of("a 1", "2") != name_of("a", "1 2")


def test_d01_a_changed_version_is_noticed(cache):
    origin = FakeOrigin(tar_of(1))
    cache.tar(origin)
    origin.content, origin.versions = tar_of(2), ["2"]
    assert bytes(cache.tar(origin)) == tar_of(2)


def test_a_local_file_that_was_replaced_by_one_of_its_size_and_time_is_another(tmp_path, cache):
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of(1))
    before = path.stat()
    assert bytes(cache.tar(LocalFile(str(path)))) == tar_of(1)
    (tmp_path / "new").write_bytes(tar_of(2))
    os.utime(tmp_path / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "new").rename(path)
    assert bytes(cache.tar(LocalFile(str(path)))) == tar_of(2)
    assert path.read_bytes() == tar_of(2)  # a source is never changed


def test_a_version_that_changes_under_way_is_read_again_and_no_mixture_is_seen(cache):
    origin = FakeOrigin(tar_of(1), versions=["1", "2", "2"])
    assert bytes(cache.tar(origin)) == tar_of(1)
    assert origin.asked == 2
    assert files(cache) == [f"{name_of(origin.identity, '2')}.cached"]
    assert is_tidy(cache)


class Overwritten(FakeOrigin):
    """Gives half of what it was and half of what it became, the first time."""

    def pieces(self):
        whole = list(super().pieces())
        return iter([b"\x1f\x8b", b"x" * 600] if self.asked == 1 else whole)


def test_a_mixture_of_two_versions_is_no_damage(cache):
    origin = Overwritten(tar_of(1), versions=["1", "2", "2"])
    assert bytes(cache.tar(origin)) == tar_of(1)
    same = Overwritten(tar_of(1), identity="fake://b", versions=["1"])
    with pytest.raises(ShardError):
        cache.tar(same)
    assert is_tidy(cache)


def test_a_version_that_keeps_changing_is_an_error(cache):
    origin = FakeOrigin(tar_of(1), versions=[str(number) for number in range(100)])
    with pytest.raises(WorldError, match="changed each of 4 times"):
        cache.tar(origin)
    assert files(cache) == []
    assert is_tidy(cache)


def test_a_store_that_fails_leaves_nothing_and_may_be_asked_again(cache):
    origin = origin_of(1, before=fails_at(3))
    with pytest.raises(WorldError, match="the connection was lost"):
        cache.tar(origin)
    assert files(cache) == []
    assert is_tidy(cache)
    origin.before = None
    assert bytes(cache.tar(origin)) == origin.content


@pytest.mark.parametrize("name", ["html_error_page", "xml_error_short", "git_lfs_pointer"])
def test_d08_what_is_no_shard_never_enters_the_cache(cache, name):
    page = (CASES / f"{name}.tar").read_bytes()
    for content in (page, gzip.compress(page)):
        with pytest.raises(ShardError, match=r"fake://a/000\.tar.*not a tar") as caught:
            cache.tar(FakeOrigin(content))
        assert caught.value.kind == "not_a_tar"
        assert files(cache) == []
        assert is_tidy(cache)


def test_a_damaged_stream_never_enters_the_cache(cache):
    packed = bytearray(gzip.compress(tar_of(1)))
    packed[-6] ^= 1
    with pytest.raises(ShardError, match="checksum"):
        cache.tar(FakeOrigin(bytes(packed)))
    assert files(cache) == []


def test_a_file_that_a_crash_cut_to_nothing_is_made_again(cache):
    origin = origin_of(1)
    cache.tar(origin)
    (path,) = Path(cache.folder).glob("*.cached")
    path.write_bytes(b"")
    assert bytes(cache.tar(origin)) == origin.content
