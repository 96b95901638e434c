"""Fetching ahead of one reader: what, in which order, how far, and whom it lets go first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shardloader.reading import fetching, remote
from shardloader.reading.cache import Cache, key_of_identity
from shardloader.reading.cache_folder import CacheFolder
from shardloader.reading.cached_sizes import goes_through_cache
from shardloader.reading.catalog import open_catalog
from shardloader.reading.counts import Counts
from shardloader.reading.diary import Diary, Stage
from shardloader.reading.fetching import Block, Outlook
from shardloader.reading.needs import HELD, Coming, Need
from shardloader.reading.needs_files import told_needs
from shardloader.reading.pool import ShardPool
from shardloader.reading.prefetch import Prefetcher
from tests.corpora import kept_corpus
from tests.reading.http_store import HttpStore
from tests.reading.origins import FORK, files, wait_for

NUM_SHARDS = 8
COUNTS = (4,) * NUM_SHARDS
PATIENCE_S = 60


class Watched(HttpStore):
    """A server that notes which shards are asked for, and holds back those that it is told to."""

    def __init__(self, folder):
        self.gates = {}
        self.let_in: Counter[str] = Counter()
        super().__init__(lambda path: self._content(folder, path))

    def _content(self, folder, path):
        file = folder / path
        if not file.is_file():
            return None
        num_gets = self.asked["GET", path]
        if path in self.gates and num_gets > self.let_in[path]:  # else it is a HEAD
            self.let_in[path] = num_gets
            assert self.gates[path].wait(PATIENCE_S)
        return file.read_bytes()

    def hold(self, *shards):
        gate = threading.Event()
        self.gates |= dict.fromkeys(map(name_of, shards), gate)
        return gate

    def gets(self, shards=range(NUM_SHARDS)):
        return {number: self.asked["GET", name_of(number)] for number in shards}


def name_of(shard):
    return f"shard-{shard:04d}.tar"


@pytest.fixture
def store():
    with Watched(kept_corpus(COUNTS)) as server:
        yield server


@pytest.fixture
def catalog(store, tmp_path):
    return open_catalog(store.url, cache=Cache(tmp_path / "cache", max_bytes="1MB"))


@pytest.fixture
def size(catalog):
    return int(catalog.manifest.sizes[0])


def steps_of(shards):
    """One step a shard, in blocks of one step."""
    return (Block([Need(shard, step, step)], step, 4) for step, shard in enumerate(shards))


def eventually(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def there(catalog):
    keys = CacheFolder(Path(catalog.cache.folder)).keys()
    store, names = catalog.source.store, catalog.manifest.names
    return {n for n in range(NUM_SHARDS) if key_of_identity(store.at(names[n]).identity) in keys}


def num_threads():
    return sum(thread.name.startswith("shardloader-ahead") for thread in threading.enumerate())


@pytest.fixture
def begin(catalog):
    """Begin to fetch; stopped at the test's end, whatever happens."""
    begun = []

    def start(shards, share_bytes):
        ahead = Prefetcher(catalog, share_bytes=share_bytes)
        begun.append(ahead)
        ahead.begin(steps_of(shards))
        return ahead

    yield start
    for ahead in begun:
        ahead.stop()
    eventually(lambda: num_threads() == 0)


def test_what_comes_next_is_fetched_first_and_no_more_than_the_bound(
    begin, catalog, store, size, monkeypatch
):
    monkeypatch.setattr(fetching, "NUM_AT_ONCE", 1)
    monkeypatch.setattr(fetching, "NUM_THREADS", 1)
    ahead = begin([5, 2, 7, 0, 1, 3, 4, 6], 2 * size)
    ahead.move_to(0, 1)
    eventually(lambda: there(catalog) == {5, 2, 7})
    ahead.move_to(2, 3)
    eventually(lambda: there(catalog) == {5, 2, 7, 0, 1})
    assert sum(store.gets().values()) == 5
    told = {depths[key] for depths in told_needs(Path(catalog.cache.folder)) for key in depths}
    assert told == {0.0, HELD, 3.0, 4.0, 5.0}  # two are held


def test_a_third_begins_when_nothing_is_left_to_ask_for_of_one_of_two(
    begin, catalog, store, size, monkeypatch
):
    """So that the link is not idle while its first answers are waited for."""
    monkeypatch.setattr(remote, "PIECE_BYTES", -(-size // 3))
    first, other = store.hold(2), store.hold(5)
    ahead = begin([2, 5, 7], 9 * size)
    ahead.move_to(0, 1)
    eventually(lambda: store.gets([2, 5, 7]) == {2: 1, 5: 1, 7: 0})
    session = ahead._here
    with session._changed:
        assert session._next_fetch() is None
    rest = store.hold(2)
    first.set()
    eventually(lambda: there(catalog) == {7})
    rest.set()
    other.set()
    eventually(lambda: there(catalog) == {2, 5, 7})


def test_one_shard_is_fetched_ahead_though_it_is_larger_than_the_bound(begin, catalog):
    ahead = begin([5, 2, 7], 1)
    ahead.move_to(0, 1)
    eventually(lambda: there(catalog) == {5, 2})


def test_nothing_is_fetched_ahead_without_a_byte_for_it_but_needs_are_told(begin, catalog, store):
    Path(catalog.cache.folder).mkdir()
    ahead = begin([5, 2, 7], 0)
    ahead.move_to(0, 1)
    eventually(lambda: [len(each) for each in told_needs(Path(catalog.cache.folder))] == [6])
    assert sum(store.gets().values()) == 0


def test_a_reader_does_not_wait_behind_what_is_needed_later(begin, catalog, store, size):
    """And who holds the later one back goes on as soon as somebody waits for it."""
    gate = store.hold(2, 7)
    ahead = begin([2, 7, 1], 9 * size)
    ahead.move_to(0, 1)
    with ShardPool(catalog, ahead=ahead) as pool:
        eventually(lambda: store.gets([2, 7]) == {2: 1, 7: 1})
        assert pool[4].num_samples == 4
        threading.Timer(0.2, gate.set).start()
        assert pool[7].num_samples == 4  # which is being fetched, and is not fetched twice
        eventually(lambda: there(catalog) >= {2, 7, 1, 4})
    assert set(store.gets([1, 2, 4, 7]).values()) == {1}


def test_a_reader_that_waits_for_what_it_fetches_itself_says_how_far_that_is(catalog, store, size):
    gate, diary = store.hold(5), Diary()
    ahead = Prefetcher(catalog, share_bytes=9 * size, counts=diary.counts)
    ahead.begin(steps_of([2, 5]))
    ahead.move_to(0, 1)
    eventually(lambda: store.gets()[5] == 1)
    with ShardPool(catalog, ahead=ahead, diary=diary) as pool, ThreadPoolExecutor(1) as reader:
        opened = reader.submit(lambda: pool[5])
        waits_for = (Stage.FETCHING, 5, 0, size)
        eventually(lambda: waits_for in [doing(page) for page in diary.pages().values()])
        gate.set()
        assert opened.result(PATIENCE_S).num_samples == 4
        assert pool[2].num_samples == 4
    assert diary.counts.now == Counts(cache_misses=2, cache_hits=2)  # by the threads; and then here
    ahead.stop()
    eventually(lambda: num_threads() == 0)


def doing(page):
    found = page.read()
    return found.stage, found.shard, found.done, found.total


def test_a_fetch_for_later_pauses_while_the_reader_waits_unless_it_is_waited_for(begin, catalog):
    ahead = begin([0, 5], 0)
    session = ahead._here
    ahead.move_to(0, 1)
    eventually(lambda: session.depth_of(5) == 1)
    assert not session.has_to_pause(5)
    with ahead.waiting():
        assert session.has_to_pause(5)
        assert not session.has_to_pause(0)
        fetch = fetching.Fetch(session, Coming(5, 1, 1))
        fetch.go_on(lambda: True)
        assert session.has_to_pause(5)
    fetch.go_on(lambda: False)


def test_room_that_a_fetch_ahead_has_taken_is_given_to_the_reader(store, size, tmp_path):
    """Also where the fetch got stuck, and with it the room of the whole cache."""
    room = Cache(tmp_path / "cache", max_bytes=size + 4000)  # a tar and indexes
    catalog = open_catalog(store.url, cache=room)
    held = threading.Event()
    real = fetching.Fetch.go_on

    def go_on(fetch, is_wanted):
        held.set()
        eventually(lambda: fetch.is_given_up or fetch._session.is_stopped)
        real(fetch, is_wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching.Fetch, "go_on", go_on)
        ahead = Prefetcher(catalog, share_bytes=size)
        ahead.begin(steps_of([2, 7]))
        ahead.move_to(0, 1)
        assert held.wait(PATIENCE_S)
        with ShardPool(catalog, ahead=ahead) as pool:
            assert pool[4].num_samples == 4
        ahead.stop()
        eventually(lambda: num_threads() == 0)
    assert files(room, ".part") == []


def test_what_is_needed_sooner_is_not_removed_for_what_is_needed_later(
    begin, store, size, tmp_path
):
    room = Cache(tmp_path / "small", max_bytes=3 * size + 6000)
    catalog = open_catalog(store.url, cache=room)
    ahead = Prefetcher(catalog, share_bytes=9 * size)
    ahead.begin(steps_of([5, 2, 7, 0, 1]))
    ahead.move_to(0, 1)
    session: Any = ahead._here
    eventually(lambda: session._has_no_room)
    eventually(lambda: there(catalog) == {5, 2, 7})  # the last may still be on its way
    ahead.move_to(2, 3)
    eventually(lambda: there(catalog) >= {7, 0})
    ahead.move_to(3, 4)
    eventually(lambda: there(catalog) >= {0, 1})
    ahead.stop()
    eventually(lambda: num_threads() == 0)
    assert set(store.gets([5, 2, 7, 0, 1]).values()) == {1}  # none before there was room for it


def test_a_fetch_that_fails_is_no_affair_of_the_reader_before_its_turn(begin, catalog, store, size):
    store.faults["GET", name_of(2)] = ["404"] * 9
    ahead = begin([5, 2, 7], 9 * size)
    ahead.move_to(0, 1)
    with ShardPool(catalog, ahead=ahead) as pool:
        assert pool[5].num_samples == 4
        eventually(lambda: there(catalog) >= {5, 7})
        with pytest.raises(Exception, match=r"shard-0002\.tar: the store has no such file"):
            pool[2]
        del store.faults["GET", name_of(2)]
        assert pool[2].num_samples == 4


def test_stopping_ends_what_is_under_way_and_takes_back_what_was_told(catalog, store, size):
    gate = store.hold(5, 2)
    ahead = Prefetcher(catalog, share_bytes=9 * size)
    ahead.begin(steps_of([5, 2, 7]))
    eventually(lambda: store.gets([5, 2]) == {5: 1, 2: 1})
    began = time.monotonic()
    ahead.stop()
    assert time.monotonic() - began < PATIENCE_S / 2
    gate.set()
    eventually(lambda: num_threads() == 0)
    assert there(catalog) == set()
    assert files(catalog.cache, ".part") + files(catalog.cache, ".needs") == []


def test_looking_ahead_that_fails_leaves_reading_as_it_is(catalog):
    def blocks():
        yield Block([Need(5, 0, 0)], 0, 4)
        raise ValueError

    ahead = Prefetcher(catalog, share_bytes=10**6)
    ahead.begin(blocks())
    eventually(lambda: there(catalog) == {5})
    ahead.stop()
    eventually(lambda: num_threads() == 0)


def test_a_reader_looks_ahead_himself_where_a_store_keeps_all_threads(
    catalog, store, size, monkeypatch
):
    monkeypatch.setattr(fetching, "MOST_SAMPLES", 0)
    monkeypatch.setattr(fetching, "NUM_THREADS", 2)
    gate = store.hold(5, 2)
    ahead = Prefetcher(catalog, share_bytes=9 * size)
    ahead.begin(steps_of([5, 2, 7, 0, 1, 3, 4, 6]), Outlook(reach=1))
    eventually(lambda: store.gets([5, 2]) == {5: 1, 2: 1})
    began = time.monotonic()
    ahead.move_to(0, 1)
    assert ahead.move_to(4, 5) == {1, 3}
    assert time.monotonic() - began < PATIENCE_S / 2
    ahead.stop()
    gate.set()
    eventually(lambda: num_threads() == 0)


def test_a_killed_reader_leaves_nothing_that_counts(catalog, store, size, tmp_path):
    gate = store.hold(2)

    def read():
        Prefetcher(catalog, share_bytes=9 * size).begin(steps_of([2, 7, 1]))
        eventually(lambda: there(catalog) == {7, 1})
        (tmp_path / "there").touch()
        time.sleep(PATIENCE_S)

    process = FORK.Process(target=read)
    process.start()
    wait_for(tmp_path / "there")
    assert len(told_needs(Path(catalog.cache.folder))) == 1
    assert len(files(catalog.cache, ".part")) == 1
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(PATIENCE_S)
    gate.set()
    assert told_needs(Path(catalog.cache.folder)) == []
    with ShardPool(catalog) as pool:
        assert [pool[number].num_samples for number in range(NUM_SHARDS)] == list(COUNTS)
    assert catalog.cache.use().parts == 0
    assert store.gets([1, 7, 0]) == {1: 1, 7: 1, 0: 1}


def test_a_process_ends_though_something_is_fetched_ahead(store, tmp_path):
    gate = store.hold(2)
    program = f"""
from shardloader.reading.catalog import open_catalog
from shardloader.reading.cache import Cache
from shardloader.reading.needs import Need
from shardloader.reading.fetching import Block
from shardloader.reading.prefetch import Prefetcher
import time
catalog = open_catalog({store.url!r}, cache=Cache({str(tmp_path / "c")!r}, max_bytes="1MB"))
ahead = Prefetcher(catalog, share_bytes=10**6)
ahead.begin(iter([Block([Need(2, 0, 0)], 0, 4)]))
while not catalog.cache.use().parts:
    time.sleep(0.01)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program],
        timeout=PATIENCE_S,
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    gate.set()
    assert (done.returncode, done.stderr) == (0, "")


def test_32_processes_that_ask_for_the_same_cold_shards_download_each_once(catalog, store, size):
    results = FORK.Queue()

    def read(seed):
        order = [(number * 3 + seed) % NUM_SHARDS for number in range(NUM_SHARDS)]
        ahead = Prefetcher(catalog, share_bytes=3 * size)
        ahead.begin(steps_of(order))
        with ShardPool(catalog, ahead=ahead) as pool:
            for step, number in enumerate(order):
                ahead.move_to(step, step + 1)
                results.put((number, pool[number].num_samples))
        ahead.stop()

    processes = [FORK.Process(target=read, args=(seed,)) for seed in range(32)]
    for process in processes:
        process.start()
    found = Counter(results.get(timeout=PATIENCE_S) for _ in range(32 * NUM_SHARDS))
    for process in processes:
        process.join(PATIENCE_S)
    assert {process.exitcode for process in processes} == {0}
    assert found == Counter({(number, 4): 32 for number in range(NUM_SHARDS)})
    assert set(store.gets().values()) == {1}
    assert {store.asked["GET", f"{name_of(n)}.index"] for n in range(NUM_SHARDS)} == {1}


def test_only_shards_that_are_not_read_where_they_lie_go_through_the_cache(tmp_path):
    plain = open_catalog(kept_corpus(COUNTS))
    assert not goes_through_cache(plain, 0)
    copying = open_catalog(kept_corpus(COUNTS), cache=Cache(tmp_path, copy_local=True))
    assert goes_through_cache(copying, 0)
