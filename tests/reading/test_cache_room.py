"""The node's cache: how much of the disk it takes, and what goes to make room."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardloader.errors import WorldError
from shardloader.reading import cache_folder
from shardloader.reading.cache import Cache, key_of_identity
from shardloader.reading.cache_folder import CacheFolder, Part
from shardloader.reading.needs_files import NO_INDEX, NeedsFile, Told
from tests.reading.origins import (
    MB,
    files,
    in_child,
    is_cached,
    is_tidy,
    origin_of,
    tar_of,
    total_bytes,
)


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", max_bytes="10MB")


def test_what_was_used_least_recently_goes_first(cache):
    for number in range(9):
        cache.tar(origin_of(number))
    cache.tar(origin_of(0))  # used again
    cache.tar(origin_of(9))
    kept = [number for number in range(10) if is_cached(cache, number)]
    assert kept == [0, 2, 3, 4, 5, 6, 7, 8, 9]
    assert total_bytes(cache) <= 10 * 10**6


def test_the_limit_holds_at_every_moment(cache):
    seen = []

    def look(_):
        seen.append(total_bytes(cache))

    for number in range(25):
        cache.tar(origin_of(number, size=(number % 5 + 1) * 500_000, before=look))
    assert max(seen) <= 10 * 10**6
    assert len(seen) > 100


def test_a_tar_gets_its_name_while_nobody_counts(cache):
    """Else a folder that is being listed may show neither the old name nor the new one."""
    written, counting = threading.Event(), threading.Event()

    def meet(piece):
        if piece == 3:
            written.set()
            assert counting.wait(20)

    origin = origin_of(1, size=300_000, before=meet)
    writer = threading.Thread(target=lambda: cache.tar(origin))
    writer.start()
    assert written.wait(20)
    with CacheFolder(Path(cache.folder)).lock("space.lock"):
        counting.set()
        writer.join(0.3)
        assert files(cache) == []
        assert len(files(cache, ".part")) == 1
    writer.join(20)
    assert len(files(cache)) == 1


@pytest.mark.parametrize("is_found", [False, True])
def test_what_a_reader_has_is_not_removed_and_the_others_are(cache, is_found):
    """Whether the reader has written it or found it there."""
    if is_found:
        cache.tar(origin_of(0))
        gc.collect()
    held = cache.tar(origin_of(0))
    for number in range(1, 20):
        cache.tar(origin_of(number))
    assert is_cached(cache, 0)
    assert bytes(held) == tar_of(0)
    del held
    gc.collect()
    cache.tar(origin_of(20, size=9 * MB))
    assert not is_cached(cache, 0)


def test_what_is_removed_before_a_reader_has_its_lock_is_fetched_again(cache, monkeypatch):
    origin = origin_of(0)
    cache.tar(origin)
    real = cache_folder.try_lock
    removed: list[bool] = []

    def remove_first(descriptor, kind, *, wait=False):
        if kind == fcntl.LOCK_SH and not removed:
            removed.append(CacheFolder(Path(cache.folder)).remove(files(cache)[0]))
        return real(descriptor, kind, wait=wait)

    monkeypatch.setattr(cache_folder, "try_lock", remove_first)
    assert bytes(cache.tar(origin)) == origin.content
    assert removed == [True]
    assert is_cached(cache, 0)  # else its bytes would lie on the disk, and nobody count them


def test_a_slice_alone_keeps_a_tar_in_use(cache):
    piece = cache.tar(origin_of(0))[512:600]
    gc.collect()
    cache.tar(origin_of(1, size=8_900_000))
    assert is_cached(cache, 0)
    assert cache.clear()[0] == 1
    assert is_cached(cache, 0)
    del piece
    assert cache.clear()[0] == 1


def test_a_shard_larger_than_the_cache_is_an_error_in_words(cache):
    origin = origin_of(1, size=11 * MB)
    cache.tar(origin_of(2))
    with pytest.raises(WorldError, match=r"holds at most 10000000: raise max_bytes="):
        cache.tar(origin)
    assert origin.asked == 1
    assert is_tidy(cache)


def test_more_in_use_than_fits_is_an_error_in_words_after_a_while(cache):
    held = [cache.tar(origin_of(number, size=3 * MB)) for number in range(3)]
    with pytest.raises(WorldError, match=r"944\d{4} by 3 tars that are being read.*max_bytes="):
        cache.tar(origin_of(9), patience_s=0.2)
    assert [bytes(each[512:513]) for each in held] == [b"\0", b"\1", b"\2"]
    assert is_tidy(cache)


def test_nothing_is_fetched_before_there_is_room_for_all_of_it(cache):
    """Where its size is known: else what was fetched would be thrown away, and fetched again."""
    held = [cache.tar(origin_of(number, size=3 * MB)) for number in range(3)]
    origin = origin_of(9, size=3 * MB, tar_bytes=len(tar_of(9, 3 * MB)))
    with pytest.raises(WorldError, match="in use at once"):
        cache.tar(origin, patience_s=0.1)
    assert origin.asked == 0
    assert is_tidy(cache)
    held.pop()
    assert bytes(cache.tar(origin)) == origin.content
    assert origin.asked == 1


@pytest.mark.parametrize("told", [MB, 5 * MB])
def test_a_tar_of_another_size_than_was_told_has_the_room_that_it_takes(cache, told):
    origin = origin_of(1, size=3 * MB, tar_bytes=told)
    assert bytes(cache.tar(origin)) == origin.content
    assert cache.use().tar_bytes == len(origin.content)


def test_many_who_wait_for_room_in_vain_give_up_together(cache):
    """And not each after a wait of its own, behind the one before it."""
    held = [cache.tar(origin_of(number, size=3 * MB)) for number in range(3)]
    began = time.monotonic()

    def ask(number):
        with pytest.raises(WorldError, match="in use at once"):
            cache.tar(origin_of(number), patience_s=2.0)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, range(10, 26)))
    assert time.monotonic() - began < 16
    assert len(held) == 3


def test_who_waits_goes_on_waiting_while_others_find_room(cache):
    folder = CacheFolder(Path(cache.folder))
    folder.make()
    with folder.lock("alone.lock"):
        os.utime(folder.path / "alone.lock", (0, 0))
    assert folder.last_found_room() == 0
    held = [cache.tar(origin_of(number, size=3 * MB)) for number in range(3)]
    threading.Timer(0.2, held.clear).start()
    cache.tar(origin_of(9), patience_s=20)
    assert folder.last_found_room() > 0


def test_what_a_reader_needs_is_removed_last_and_shown(cache):
    for number in range(9):
        cache.tar(origin_of(number))
    needs = NeedsFile(Path(cache.folder))
    keys = [key_of_identity(f"fake://{number}.tar") for number in (0, 1)]
    needs.tell(0, 1, [Told(key, NO_INDEX, step, step) for step, key in enumerate(keys)])
    use = cache.use()
    assert (use.readers, use.needed, use.needed_bytes) == (1, 2, use.tar_bytes * 2 // 9)
    for number in range(20, 28):
        cache.tar(origin_of(number))
    assert is_cached(cache, 0)
    assert is_cached(cache, 1)
    cache.tar(origin_of(30, size=8 * MB))
    assert is_cached(cache, 0)
    assert not is_cached(cache, 1)
    needs.close()
    assert cache.use().readers == 0


def test_maps_that_can_be_had_again_are_let_go_where_room_is_needed(cache):
    held = [cache.tar(origin_of(number, size=3 * MB)) for number in range(3)]
    assert bytes(cache.tar(origin_of(9), make_way=held.clear)) == tar_of(9)
    assert held == []


def test_room_that_a_reader_leaves_in_time_is_taken(cache):
    held = [cache.tar(origin_of(number, size=3 * MB)) for number in range(3)]
    threading.Timer(0.2, held.clear).start()
    assert bytes(cache.tar(origin_of(9), patience_s=20)) == tar_of(9)


def test_two_writers_that_need_all_the_room_come_one_after_the_other(cache):
    """Each holds half and wants more: neither may wait for the other with its half in hand."""
    both_write = threading.Barrier(2, timeout=20)
    met = set()

    def meet(piece):
        me = threading.get_ident()
        if piece == 60 and me not in met:
            met.add(me)
            both_write.wait()

    def fetch(number):
        return bytes(cache.tar(origin_of(number, size=8 * MB, before=meet))) == tar_of(
            number, 8 * MB
        )

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(fetch, (1, 2))) == [True, True]


def test_a_full_disk_makes_room_and_goes_on(cache, monkeypatch):
    for number in range(3):
        cache.tar(origin_of(number))
    real, failures = Part.write, [0, 1]

    def write(part, piece):
        if failures and part.length > 500_000:
            failures.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(part, piece)

    monkeypatch.setattr(Part, "write", write)
    assert bytes(cache.tar(origin_of(9))) == tar_of(9)
    assert [number for number in range(3) if is_cached(cache, number)] == [2]


def test_a_full_disk_is_told_to_those_who_hold_maps_that_can_be_had_again(cache, monkeypatch):
    held = [cache.tar(origin_of(0))]
    real = Part.write

    def write(part, piece):
        if held or is_cached(cache, 0):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(part, piece)

    monkeypatch.setattr(Part, "write", write)
    assert bytes(cache.tar(origin_of(1), make_way=held.clear)) == tar_of(1)
    assert is_tidy(cache)


def test_a_full_disk_with_nothing_to_remove_is_an_error_and_no_file(cache, monkeypatch):
    def write(part, piece):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Part, "write", write)
    with pytest.raises(
        WorldError, match=r"fake://1\.tar.*No space left.*nothing that is not in use"
    ):
        cache.tar(origin_of(1))
    assert files(cache) == []
    assert is_tidy(cache)


def test_a_real_limit_of_the_system_is_an_error_and_no_file(cache):
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        cache.tar(origin_of(1))

    error = in_child(limited)
    assert isinstance(error, WorldError)
    assert "File too large" in str(error)
    assert files(cache) == []
    assert is_tidy(cache)


def test_a_folder_that_can_not_be_made_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WorldError, match=r"file/cache: the cache's folder can't be made.*Cache\("):
        Cache(tmp_path / "file" / "cache").tar(origin_of(1))
