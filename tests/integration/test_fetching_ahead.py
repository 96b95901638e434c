"""A loader whose cache is smaller than its data: exact, within its limit, and cheap in requests."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from itertools import islice
from pathlib import Path

import pytest

import shardloader as sl
from shardloader.reading.needs_files import told_needs
from tests.corpora import each_once, kept_corpus, loader_of, raises_in_worker, valid_of
from tests.reading.http_store import HttpStore
from tests.reading.origins import FORK, wait_for

NUM_SHARDS = 24
COUNTS = (6,) * NUM_SHARDS
PATIENCE_S = 60
WINDOW = sl.Shuffle(window=6)


@pytest.fixture
def store():
    with HttpStore.of(kept_corpus(COUNTS)) as server:
        yield server


@pytest.fixture
def size():
    folder = kept_corpus(COUNTS)
    shard = max(path.stat().st_size for path in folder.glob("*.tar"))
    return shard + max(path.stat().st_size for path in folder.glob("*.index"))


def gets(store):
    """How often each shard was fetched since the last call."""
    names = [f"shard-{number:04d}.tar" for number in range(NUM_SHARDS)]
    found = [store.asked["GET", name] for name in names]
    store.asked.clear()
    return found


def eventually(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def num_threads():
    return sum(thread.name.startswith("shardloader-ahead") for thread in threading.enumerate())


def total_bytes(cache):
    """Of the files that count: lists of needs are some hundred bytes besides."""
    found = 0
    for path in Path(cache.folder).iterdir():
        try:
            found += 0 if path.suffix == ".needs" else path.stat().st_size
        except FileNotFoundError:
            continue
    return found


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "multiprocessing_context": "fork"}])
def test_epochs_through_a_small_cache_are_exact_and_fetch_a_shard_once_each(
    store, size, tmp_path, options
):
    limit = 13 * size
    cache = sl.Cache(tmp_path / "cache", max_bytes=limit)
    loader = loader_of(store.url, batch_size=3, cache=cache, shuffle=WINDOW, **options)
    fetched = []
    for _ in range(4):
        numbers = []
        for batch in loader:
            numbers += batch["__index__"].tolist()
            assert total_bytes(cache) <= limit
        assert each_once(numbers, sum(COUNTS))
        fetched.append(gets(store))
    assert fetched[0] == [1] * NUM_SHARDS
    assert max(map(max, fetched)) == 1
    # Of what was there at an epoch's end, what the next one needs first was kept.
    assert sum(map(sum, fetched[1:])) < 3 * NUM_SHARDS
    eventually(lambda: told_needs(Path(cache.folder)) == [])


def test_two_runs_in_one_small_cache_are_both_exact_and_neither_starves(store, size, tmp_path):
    cache = sl.Cache(tmp_path / "cache", max_bytes=12 * size)
    narrow = sl.Shuffle(window=3)
    loaders = [
        loader_of(store.url, batch_size=3, cache=cache, shuffle=narrow, seed=seed)
        for seed in (0, 1)
    ]
    for _ in range(2):
        given = [iter(loader) for loader in loaders]
        found = [list[int](), list[int]()]
        for _ in range(len(loaders[0])):
            for run in (0, 1):
                found[run] += next(given[run])["__index__"].tolist()
        assert all(each_once(numbers, sum(COUNTS)) for numbers in found)
        assert max(gets(store)) <= 2  # once for each run
        assert total_bytes(cache) <= 12 * size


def test_leaving_a_loop_ends_the_fetching_and_so_does_an_error(store, tmp_path):
    cache = sl.Cache(tmp_path / "cache", max_bytes="1MB")
    loader = loader_of(store.url, batch_size=3, cache=cache)
    for _ in loader:
        assert num_threads() > 0
        break
    eventually(lambda: num_threads() == 0)

    def fail(samples):
        raise RuntimeError("the collate function's own")

    failing = loader_of(store.url, batch_size=3, cache=cache, collate_fn=fail)
    given = iter(failing)
    with pytest.raises(RuntimeError, match="own"):
        next(given)
    eventually(lambda: num_threads() == 0)
    eventually(lambda: told_needs(Path(cache.folder)) == [])
    assert list(Path(cache.folder).glob("*.needs")) == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_is_killed_while_it_fetches_ahead_costs_nothing_but_its_run(
    store, tmp_path, method
):
    cache = sl.Cache(tmp_path / "cache", max_bytes="1MB")
    options = {"num_workers": 1, "multiprocessing_context": method, "timeout": PATIENCE_S}
    loader = loader_of(store.url, batch_size=3, cache=cache, **options)
    given = iter(loader)
    next(given)
    state = loader.state_dict()
    (worker,) = given._batches.gi_frame.f_locals["batches"]._workers
    os.kill(worker.pid, signal.SIGKILL)
    with raises_in_worker(RuntimeError, "exited unexpectedly"):
        list(given)
    del given
    gc.collect()
    eventually(lambda: told_needs(Path(cache.folder)) == [])
    again = loader_of(store.url, batch_size=3, cache=cache, **options)
    again.load_state_dict(state)
    assert len(valid_of(again)) == sum(COUNTS) - 3
    assert cache.use().parts == 0


def test_a_shard_that_can_not_be_fetched_is_an_error_in_its_turn(store, tmp_path):
    cache = sl.Cache(tmp_path / "cache", max_bytes="1MB")
    store.faults["GET", "shard-0005.tar"] = ["404"] * 99
    loader = loader_of(store.url, batch_size=6, cache=cache, shuffle=False)
    given = iter(loader)
    # A few steps are located at once, and with them the shards that they need.
    with pytest.raises(sl.ShardLoaderError, match=r"shard-0005\.tar: the store has no such file"):
        list(given)
    assert loader.step > 0


def test_a_forked_child_fetches_for_itself(store, tmp_path):
    """Though its parent was in the middle of it, with the threads that the child has not."""
    cache = sl.Cache(tmp_path / "cache", max_bytes="1MB")
    loader = loader_of(store.url, batch_size=3, cache=cache)
    given = iter(loader)
    next(given)

    def read():
        if each_once(valid_of(loader_of(store.url, batch_size=3, cache=cache)), sum(COUNTS)):
            (tmp_path / "done").touch()

    child = FORK.Process(target=read)
    child.start()
    child.join(PATIENCE_S)
    wait_for(tmp_path / "done", 1)
    assert len(list(islice(given, 3))) == 3
