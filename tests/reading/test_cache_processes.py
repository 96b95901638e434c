"""The node's cache: what many processes are promised, whatever dies meanwhile."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import hashlib
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import shardloader as sl
from shardloader.reading import cache_folder
from shardloader.reading.cache import Cache
from shardloader.reading.cache_folder import CacheFolder, Part
from tests.reading.origins import (
    FORK,
    MB,
    files,
    in_child,
    is_cached,
    is_tidy,
    origin_of,
    tar_of,
    tells_and_waits,
    total_bytes,
    wait_for,
)


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", max_bytes="10MB")


def digest_of(cache, origin):
    return hashlib.sha256(cache.tar(origin)).hexdigest()


def counted(folder, origin):
    """The origin, which leaves a file in the folder for each time that it is read."""
    before = origin.before

    def count(piece):
        if piece == 0:
            (folder / f"read-{os.getpid()}-{time.monotonic_ns()}").touch()
        if before is not None:
            before(piece)

    origin.before = count
    return origin


def start(cache, origin, results):
    process = FORK.Process(target=lambda: results.put(digest_of(cache, origin)))
    process.start()
    return process


def join(processes):
    for process in processes:
        process.join(60)
        assert process.exitcode is not None


def test_d02_threads_that_ask_at_once_fetch_once(cache):
    ready = threading.Barrier(8, timeout=20)
    origin = origin_of(1, size=5 * MB)

    def fetch(_):
        ready.wait()
        return digest_of(cache, origin)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(fetch, range(8)))) == 1
    assert origin.asked == 1


def test_d02_eight_processes_of_which_the_writer_is_killed_half_way(cache, tmp_path):
    """One of the others takes over; all seven get the whole, and nothing is left."""
    origin = counted(tmp_path, origin_of(1, size=5 * MB, before=tells_and_waits(tmp_path, 40)))
    results = FORK.Queue()
    processes = [start(cache, origin, results) for _ in range(8)]
    try:
        (writer,) = _wait_for_one(tmp_path, "writing-*")
        assert len(files(cache, ".part")) == 1
        assert files(cache) == []  # half a file is never seen
        os.kill(int(writer.name.removeprefix("writing-")), signal.SIGKILL)
        (tmp_path / "go").touch()
        digests = [results.get(timeout=60) for _ in range(7)]
    finally:
        (tmp_path / "go").touch()
        join(processes)
    assert set(digests) == {hashlib.sha256(tar_of(1, 5 * MB)).hexdigest()}
    assert len(list(tmp_path.glob("read-*"))) == 2
    assert sorted(process.exitcode for process in processes) == [-signal.SIGKILL] + [0] * 7
    cache.tar(origin_of(2))  # whoever counts next removes what the dead one left
    assert is_tidy(cache)
    assert len(files(cache)) == 2


def _wait_for_one(folder, pattern, patience_s=30.0):
    deadline = time.monotonic() + patience_s
    while not (found := list(folder.glob(pattern))):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return found


def test_d02_a_writer_that_dies_with_a_forked_child_alive_is_taken_over(cache, tmp_path):
    """The child has the parent's descriptors, and must not keep the lock with them."""
    origin = origin_of(1, before=tells_and_waits(tmp_path, 8))

    def write_and_fork():
        threading.Thread(target=cache.tar, args=(origin,), daemon=True).start()
        wait_for(tmp_path / f"writing-{os.getpid()}")
        if os.fork() == 0:
            (tmp_path / f"child-{os.getpid()}").touch()
            wait_for(tmp_path / "done")
            os._exit(0)
        time.sleep(60)

    writer = FORK.Process(target=write_and_fork)
    writer.start()
    try:
        _wait_for_one(tmp_path, "child-*")
        os.kill(writer.pid or 0, signal.SIGKILL)
        digest = in_child(digest_of, cache, origin_of(1), patience_s=15)
        assert digest == hashlib.sha256(tar_of(1)).hexdigest()
    finally:
        (tmp_path / "done").touch()
        (tmp_path / "go").touch()
        writer.join(30)


def test_d02_eviction_leaves_what_another_process_reads(cache, tmp_path):
    def hold():
        held = cache.tar(origin_of(0))
        (tmp_path / "held").touch()
        wait_for(tmp_path / "done")
        return hashlib.sha256(held).hexdigest()

    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: sender.send(hold()))
    process.start()
    try:
        wait_for(tmp_path / "held")
        for number in range(1, 15):
            cache.tar(origin_of(number))
        assert is_cached(cache, 0)
        use = cache.use()
        assert (use.used, use.tars) == (1, 9)
        assert cache.clear()[0] == 8
        assert is_cached(cache, 0)
    finally:
        (tmp_path / "done").touch()
        process.join(30)
    assert receiver.recv() == hashlib.sha256(tar_of(0)).hexdigest()
    cache.tar(origin_of(20, size=9 * MB))
    assert not is_cached(cache, 0)


def test_d02_processes_that_evict_each_others_tars_all_get_the_right_bytes(tmp_path):
    small = Cache(tmp_path / "cache", max_bytes="4MB")

    def churn(seed):
        for turn in range(25):
            number = (turn * 7 + seed * 3) % 10
            size = 200_000 + 20_000 * number
            if bytes(small.tar(origin_of(number, size=size))) != tar_of(number, size):
                return f"{number} is wrong"
        return "right"

    results = FORK.Queue()
    processes = [
        FORK.Process(target=lambda seed=seed: results.put(churn(seed))) for seed in range(4)
    ]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == ["right"] * 4
    join(processes)
    assert total_bytes(small) <= 4 * 10**6
    assert is_tidy(small)


def test_d02_processes_killed_at_random_leave_a_cache_that_works_and_holds_its_limit(tmp_path):
    small = Cache(tmp_path / "cache", max_bytes="2MB")
    folder = CacheFolder(Path(small.folder))
    folder.make()
    draw = random.Random(1)

    def churn(seed):
        own = random.Random(seed)
        while True:
            number = own.randrange(8)
            size = 150_000 + 30_000 * number
            if bytes(small.tar(origin_of(number, size=size))) != tar_of(number, size):
                os._exit(3)

    processes: list[Any] = []
    codes = set()
    for _ in range(30):
        while len(processes) < 3:
            processes.append(FORK.Process(target=churn, args=(draw.random(),), daemon=True))
            processes[-1].start()
        time.sleep(draw.random() * 0.02)
        with folder.lock("space.lock"):
            assert sum(each.size for each in folder.entries()) <= 2 * 10**6
        victim = processes.pop(draw.randrange(3))
        victim.kill()
        victim.join(30)
        codes.add(victim.exitcode)
    for process in processes:
        process.kill()
        process.join(30)
    assert codes == {-signal.SIGKILL}
    assert bytes(small.tar(origin_of(20))) == tar_of(20)
    small.clear()
    assert is_tidy(small)
    assert files(small) == []


def test_d02_a_part_without_a_writer_is_removed_and_one_with_a_writer_is_not(cache):
    cache.tar(origin_of(1))
    folder = CacheFolder(Path(cache.folder))
    alive = Part(folder, "a" * 64)
    forgotten = Path(cache.folder) / f"{'b' * 64}.{'0' * 16}.part"
    forgotten.write_bytes(bytes(1000))
    (Path(cache.folder) / f"{'b' * 64}.lock").touch()
    assert cache.use().parts == 1
    assert not forgotten.exists()
    assert alive.path.exists()
    alive.close()
    cache.clear()
    assert is_tidy(cache)


def test_a_part_that_another_node_took_for_forgotten_is_written_again(cache):
    """Where locks don't reach, as between nodes on some network file systems."""
    origin = origin_of(1)

    def lose(piece):
        if piece == 10 and origin.asked == 1:
            (path,) = Path(cache.folder).glob("*.part")
            path.unlink()

    origin.before = lose
    assert bytes(cache.tar(origin)) == origin.content
    assert origin.asked == 2
    assert is_tidy(cache)


def test_without_locks_it_goes_on_and_leaves_what_may_be_alive(cache, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    cache.tar(origin_of(1))
    monkeypatch.setattr(fcntl, "flock", flock)
    young = Path(cache.folder) / f"{'b' * 64}.{'0' * 16}.part"
    old = Path(cache.folder) / f"{'c' * 64}.{'0' * 16}.part"
    young.touch()
    old.touch()
    os.utime(old, (0, 0))
    held = cache.tar(origin_of(1))
    cache.tar(origin_of(2, size=9 * MB))
    assert not is_cached(cache, 1)  # removed from the folder, and still there for its reader
    assert bytes(held) == tar_of(1)
    assert (young.exists(), old.exists()) == (True, False)


def test_files_of_others_in_the_folder_are_left_alone(cache):
    Path(cache.folder).mkdir()
    mine = Path(cache.folder) / "thesis.cached"
    mine.write_bytes(bytes(9 * MB))
    cache.tar(origin_of(1))
    cache.tar(origin_of(2, size=8 * MB))
    cache.clear()
    assert mine.stat().st_size == 9 * MB
    assert cache.use().tars == 0


def open_below(folder):
    """How many files of a folder this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(link.readlink()).startswith(str(folder))
    return found


def test_nothing_stays_open_behind_a_map_that_is_gone(cache):
    for number in range(20):
        tar = cache.tar(origin_of(number))
        assert open_below(cache.folder) > 0
        del tar
    gc.collect()
    assert open_below(cache.folder) == 0
    assert cache_folder._exclusive == set()


def test_the_public_name_is_this_class():
    assert sl.Cache is Cache
