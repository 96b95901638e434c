"""The node's cache: what is promised to one process, and to many, whatever dies meanwhile."""

from __future__ import annotations

import errno
import fcntl
import gc
import gzip
import hashlib
import multiprocessing
import os
import pickle
import random
import resource
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import shardloader as sl
from shardloader.errors import ShardError, UsageError, WorldError
from shardloader.reading import cache_folder
from shardloader.reading.cache import Cache, default_cache, name_of
from shardloader.reading.cache_folder import CacheFolder, Part
from shardloader.reading.origin import LocalFile
from tests.packing import zstd_frame
from tests.reading.origins import FakeOrigin, fails_at, tells_and_waits, wait_for
from tests.shards import sample_members, tar_bytes

CASES = Path(__file__).parent.parent / "cases"
FORK = multiprocessing.get_context("fork")
MB = 1 << 20


def tar_of(number, size=MB):
    """A tar of about so many bytes that can't be taken for another."""
    return tar_bytes([(f"{number:03d}.bin", bytes((number % 256,)) * size)])


def origin_of(number, size=MB, **options):
    return FakeOrigin(tar_of(number, size), identity=f"fake://{number}.tar", **options)


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", max_bytes="10MB")


def files(cache, suffix=".cached"):
    return sorted(path.name for path in Path(cache.folder).glob(f"*{suffix}"))


def total_bytes(cache):
    return sum(path.stat().st_size for path in Path(cache.folder).iterdir())


def is_tidy(cache):
    """Whether nothing but whole tars and the two folder's locks is left."""
    names = {path.name for path in Path(cache.folder).iterdir()}
    return {n for n in names if not n.endswith(".cached")} <= {"space.lock", "alone.lock"}


# What one process is promised.


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


# Room.


def test_what_was_used_least_recently_goes_first(cache):
    for number in range(9):
        cache.tar(origin_of(number))
    cache.tar(origin_of(0))  # used again
    cache.tar(origin_of(9))
    kept = [number for number in range(10) if _is_cached(cache, number)]
    assert kept == [0, 2, 3, 4, 5, 6, 7, 8, 9]
    assert total_bytes(cache) <= 10 * 10**6


def _is_cached(cache, number):
    return (Path(cache.folder) / f"{name_of(f'fake://{number}.tar', '1')}.cached").exists()


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
    assert _is_cached(cache, 0)
    assert bytes(held) == tar_of(0)
    del held
    gc.collect()
    cache.tar(origin_of(20, size=9 * MB))
    assert not _is_cached(cache, 0)


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
    assert _is_cached(cache, 0)  # else its bytes would lie on the disk, and nobody count them


def test_a_slice_alone_keeps_a_tar_in_use(cache):
    piece = cache.tar(origin_of(0))[512:600]
    gc.collect()
    cache.tar(origin_of(1, size=8_900_000))
    assert _is_cached(cache, 0)
    assert cache.clear()[0] == 1
    assert _is_cached(cache, 0)
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
    assert [number for number in range(3) if _is_cached(cache, number)] == [2]


def test_a_full_disk_is_told_to_those_who_hold_maps_that_can_be_had_again(cache, monkeypatch):
    held = [cache.tar(origin_of(0))]
    real = Part.write

    def write(part, piece):
        if held or _is_cached(cache, 0):
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


def in_child(function, *arguments, patience_s=60):
    """Run in a forked process; give what it returned, or its exception."""
    receiver, sender = FORK.Pipe(duplex=False)

    def run():
        try:
            sender.send(function(*arguments))
        except Exception as error:
            sender.send(error)

    process = FORK.Process(target=run)
    process.start()
    if not receiver.poll(patience_s):
        process.kill()
        raise AssertionError("the child does not answer")
    answer = receiver.recv()
    process.join(20)
    return answer


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


# Many at once.


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
        assert _is_cached(cache, 0)
        use = cache.use()
        assert (use.used, use.tars) == (1, 9)
        assert cache.clear()[0] == 8
        assert _is_cached(cache, 0)
    finally:
        (tmp_path / "done").touch()
        process.join(30)
    assert receiver.recv() == hashlib.sha256(tar_of(0)).hexdigest()
    cache.tar(origin_of(20, size=9 * MB))
    assert not _is_cached(cache, 0)


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

    processes: list[multiprocessing.process.BaseProcess] = []
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
    assert not _is_cached(cache, 1)  # removed from the folder, and still there for its reader
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


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_stays_open_behind_a_map_that_is_gone(cache):
    gc.collect()
    before = open_files()
    for number in range(20):
        cache.tar(origin_of(number))
    gc.collect()
    assert open_files() == before
    assert cache_folder._exclusive == set()


def test_the_public_name_is_this_class():
    assert sl.Cache is Cache
    assert len(tar_bytes(sample_members(1))) > 512
