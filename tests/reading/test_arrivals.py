"""Whole shards come while their reader reads them by ranges, before all others, once a node."""

from __future__ import annotations

import gc
import math
import threading
import time

import pytest

from shardloader.reading import by_ranges, fetching
from shardloader.reading.arrivals import Arrivals
from shardloader.reading.cache import Cache
from shardloader.reading.catalog import open_catalog
from shardloader.reading.pool import ShardPool
from shardloader.reading.prefetch import Prefetcher
from tests.corpora import kept_corpus
from tests.reading.test_prefetch import (
    COUNTS,
    NUM_SHARDS,
    Watched,
    eventually,
    name_of,
    num_threads,
    steps_of,
    there,
)


class Ordered(Watched):
    """Notes in which order shards are asked for first."""

    def __init__(self, folder):
        self.order: list[str] = []
        super().__init__(folder)

    def _content(self, folder, path):
        if path.endswith(".tar") and path not in self.order:
            self.order.append(path)
        return super()._content(folder, path)


@pytest.fixture
def store():
    with Ordered(kept_corpus(COUNTS)) as server:
        yield server


@pytest.fixture
def catalog(store, tmp_path):
    return open_catalog(store.url, cache=Cache(tmp_path / "cache", max_bytes="1MB"))


@pytest.fixture
def ahead(catalog):
    """One that is asked, and knows no plan unless a test begins with one."""
    made = Prefetcher(catalog, share_bytes=10**6)
    yield made
    made.stop()
    eventually(lambda: num_threads() == 0)


@pytest.fixture
def one_thread(monkeypatch):
    monkeypatch.setattr(fetching, "NUM_AT_ONCE", 1)
    monkeypatch.setattr(fetching, "NUM_THREADS", 1)


@pytest.mark.usefixtures("one_thread")
def test_each_shard_is_fetched_once_in_the_order_asked_for(ahead, store):
    gate = store.hold(2)
    for number in (2, 0, 2, 1, 0):
        ahead.ask(number)
    gate.set()
    eventually(lambda: all(ahead.has_come(number) for number in range(3)))
    assert store.order == [name_of(2), name_of(0), name_of(1)]
    assert store.gets() == dict.fromkeys(range(3), 1) | dict.fromkeys(range(3, NUM_SHARDS), 0)


def test_what_can_not_be_fetched_is_done_too_and_the_next_ones_come(ahead, catalog, store):
    store.faults["GET", name_of(0)] = ["404"] * 9
    ahead.ask(0)
    ahead.ask(1)
    eventually(lambda: ahead.has_come(0) and ahead.has_come(1))
    assert there(catalog) == {1}
    del store.faults["GET", name_of(0)]
    ahead.ask(0)  # whatever became of it before
    eventually(lambda: there(catalog) == {0, 1})


@pytest.mark.parametrize("how", ["stopped", "let go"])
def test_a_shard_that_nobody_waits_for_leaves_no_part(catalog, store, how):
    gate = store.hold(0)
    ahead = Prefetcher(catalog, share_bytes=0)
    ahead.ask(0)
    eventually(lambda: store.gets([0]) == {0: 1})
    if how == "stopped":
        ahead.stop()
    del ahead
    gc.collect()
    gate.set()
    eventually(lambda: num_threads() == 0)
    assert catalog.cache.use().parts == 0
    assert there(catalog) == set()


@pytest.mark.usefixtures("one_thread")
def test_what_is_read_by_ranges_comes_before_what_is_planned(ahead, catalog, store):
    gate = store.hold(5)
    ahead.begin(steps_of([5, 2, 7, 0]))
    ahead.move_to(0, 1)
    eventually(lambda: store.gets([5]) == {5: 1})
    ahead.ask(7)
    gate.set()
    eventually(lambda: there(catalog) == {5, 2, 7, 0})
    assert store.order == [name_of(number) for number in (5, 7, 2, 0)]


@pytest.mark.usefixtures("one_thread")
def test_of_those_that_are_read_by_ranges_the_first_in_the_plan_comes_first(ahead, store):
    gate = store.hold(5)
    ahead.begin(steps_of([5, 2, 7, 0]))
    ahead.move_to(0, 4)
    eventually(lambda: store.gets([5]) == {5: 1})
    for number in (0, 7, 2):
        ahead.ask(number)
    gate.set()
    eventually(lambda: all(ahead.has_come(number) for number in (2, 7, 0)))
    assert store.order == [name_of(number) for number in (5, 2, 7, 0)]


def test_without_a_byte_to_fetch_ahead_only_what_is_read_by_ranges_comes(catalog, store):
    ahead = Prefetcher(catalog, share_bytes=0)
    ahead.begin(steps_of([5, 2, 7]))
    ahead.move_to(0, 1)
    ahead.ask(5)
    eventually(lambda: ahead.has_come(5))
    ahead.stop()
    eventually(lambda: num_threads() == 0)
    assert sum(store.gets().values()) == 1


def test_after_a_pass_nothing_is_fetched_until_the_next_which_knows_what_it_reads(ahead, store):
    ahead.begin(steps_of([5]))
    ahead.stop()
    eventually(lambda: num_threads() == 0)
    ahead.ask(2)
    assert not ahead.has_come(2)
    assert num_threads() == 0
    ahead.begin(iter(()))
    eventually(lambda: ahead.has_come(2))  # asked for by asking whether it has come
    assert store.gets([2]) == {2: 1}


def test_what_another_reader_fetches_is_not_fetched_again_and_found_when_it_is_there(
    ahead, catalog, store
):
    gate = store.hold(3)
    other = Prefetcher(catalog, share_bytes=0)
    other.ask(3)
    eventually(lambda: store.gets([3]) == {3: 1})
    ahead.ask(3)
    ahead.ask(4)
    eventually(lambda: ahead.has_come(4))
    assert not ahead.has_come(3)
    gate.set()
    eventually(lambda: ahead.has_come(3))
    other.stop()
    assert store.gets([3]) == {3: 1}


def test_a_reader_does_not_wait_for_a_fetch_of_what_it_can_read_by_ranges(
    ahead, catalog, monkeypatch
):
    monkeypatch.setattr(by_ranges, "LEAST_SHARD_BYTES", 0)
    go_on, real = threading.Event(), fetching.Fetch.go_on

    def held(fetch, is_wanted):
        """Hold tars back, and let indexes pass, for which somebody waits."""
        while not (go_on.is_set() or is_wanted() or fetch._session.is_stopped):
            time.sleep(0.005)
        real(fetch, is_wanted)

    monkeypatch.setattr(fetching.Fetch, "go_on", held)
    ahead.begin(steps_of([5, 2]))
    ahead.move_to(0, 2)
    with ShardPool(catalog, ahead=ahead) as pool:
        for number in (5, 2):
            assert pool[number].is_ranged
            assert set(pool[number].fields(0)) == {"txt", "cls"}
        assert catalog.cache.use().tar_bytes < int(catalog.manifest.sizes[5])  # indexes
        go_on.set()
        eventually(lambda: not pool[5].is_ranged and not pool[2].is_ranged)


def test_a_copy_of_some_version_is_not_taken_for_what_is_read_by_ranges():
    arrivals = Arrivals()
    assert arrivals.is_there(0, is_in_folder=True, now=0.0)
    arrivals.ask(0)
    assert not arrivals.is_there(0, is_in_folder=True, now=0.0)
    arrivals.fetched_elsewhere(0, ask_again=1.0)
    assert arrivals.is_there(0, is_in_folder=True, now=0.5)
    assert not arrivals.is_there(0, is_in_folder=True, now=1.5)
    assert arrivals.is_there(0, is_in_folder=False, now=math.inf)
    arrivals.came(0)
    assert arrivals.is_there(0, is_in_folder=False, now=1.5)


def test_what_the_plan_has_passed_is_not_fetched_any_more(ahead, catalog, store, monkeypatch):
    monkeypatch.setattr(fetching, "NUM_AT_ONCE", 1)
    monkeypatch.setattr(fetching, "NUM_THREADS", 1)
    gate = store.hold(5)
    ahead.begin(steps_of([5, 2, 7]))
    ahead.move_to(0, 2)
    eventually(lambda: store.gets([5]) == {5: 1})
    ahead.ask(4)  # in no plan
    ahead.move_to(2, 3)
    gate.set()
    eventually(lambda: there(catalog) == {5, 7})
    assert store.gets([2, 4]) == {2: 0, 4: 0}
