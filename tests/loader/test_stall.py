"""A step that waits too long says what it waits for, while whoever makes its batch is stuck."""

from __future__ import annotations

import gc
import logging
import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shardloader as sl
from shardloader.loader import progress
from shardloader.loader.stall import OF_STAGES, Vigil, told
from shardloader.reading.catalog import open_catalog
from shardloader.reading.diary import Diary, Stage
from shardloader.reading.pool import ShardPool
from tests.corpora import contents, kept_corpus, loader_of
from tests.loader.stalls import PATIENCE_S, HangsAt
from tests.reading.http_store import HttpStore

if TYPE_CHECKING:
    from collections.abc import Callable

COUNTS = (4, 4, 4)
WAYS = [
    pytest.param({"num_workers": 0}, id="no workers"),
    pytest.param({"num_workers": 2, "multiprocessing_context": "fork"}, id="fork"),
    pytest.param({"num_workers": 2, "multiprocessing_context": "spawn"}, id="spawn"),
]
SHARED = Path("/dev/shm")  # noqa: S108 - nothing is made there
SECRET = "token-of-mine"  # noqa: S105 - of this test


class Heard(logging.Handler):
    """Keeps the words of stalls.

    wanted: words of the hang that a test makes, on which it is ended. On a loaded machine a step
    may have waited before it came to that, and is told once: then what it waits for is asked
    again, from where the log had it, until it is the hang.
    """

    def __init__(self, wanted, end_it):
        super().__init__(logging.WARNING)
        self.words: list[str] = []
        self.ask: Callable[[], str] = str
        self._wanted = wanted
        self._end_it = end_it

    def emit(self, record):
        text = record.getMessage()
        if not text.startswith("the training loop waits"):
            return
        deadline = time.monotonic() + PATIENCE_S
        while self._wanted not in text and time.monotonic() < deadline:
            text = self.ask()
        if text not in self.words:
            self.words.append(text)
        self._end_it()


@pytest.fixture
def heard():
    """Install a listener; gives a function that makes it."""
    logger, handlers = logging.getLogger("shardloader"), []

    def listen(wanted, end_it):
        handlers.append(Heard(wanted, end_it))
        logger.addHandler(handlers[0])
        return handlers[0]

    yield listen
    for handler in handlers:
        logger.removeHandler(handler)


@pytest.mark.parametrize("way", WAYS)
def test_a_transform_that_hangs_is_named_with_worker_shard_and_sample(way, heard, tmp_path):
    go = tmp_path / "go"
    listener = heard("in transform=, with sample 6 of", go.touch)
    loader = loader_of(
        kept_corpus(COUNTS),
        batch_size=2,
        shuffle=False,
        transform=HangsAt("000006", str(go)),
        stall_s=0.4,
        **way,
    )
    batches = iter(loader)
    listener.ask = batches._wait.told
    plain = loader_of(kept_corpus(COUNTS), batch_size=2, shuffle=False)
    assert contents(batches) == contents(plain)
    text = listener.words[0]
    who = "worker 1" if way["num_workers"] else "thread MainThread"
    shard = kept_corpus(COUNTS) / "shard-0001.tar"
    assert f"of this pass: {who} is in transform=, with sample 6 of {shard}, since" in text


@pytest.mark.parametrize("way", WAYS)
def test_a_store_that_hangs_is_named_with_the_url_and_without_its_secret(way, heard, tmp_path):
    with HttpStore.of(kept_corpus(COUNTS)) as served:
        listener = heard(f"fetches {served.url}/shard-0002", served.end_of_stall.set)
        loader = loader_of(
            f"{served.url}/?key={SECRET}",
            batch_size=2,
            shuffle=False,
            cache=sl.Cache(tmp_path, max_bytes="10MB"),
            stall_s=0.4,
            **way,
        )
        served.faults["GET", "shard-0002.tar"] = ["stall"]
        batches = iter(loader)
        listener.ask = batches._wait.told
        assert len(contents(batches)) == 6
        size = (kept_corpus(COUNTS) / "shard-0002.tar").stat().st_size
        text = listener.words[0]
        assert f"fetches {served.url}/shard-0002.tar" in text
        assert f"0 of {size} bytes are here" in text
        assert SECRET not in text
        assert re.search(r"worker [01] fetches" if way["num_workers"] else "MainThread fet", text)
        reading = loader.stats().reading
        assert (reading.retries, reading.cache_misses) == (1, 3)  # one fetches, the other hits
        assert reading.cache_hits >= (3 if way["num_workers"] else 0)


def test_no_shared_memory_is_left_behind():
    loader = loader_of(kept_corpus(COUNTS), batch_size=2, num_workers=2)
    batches = iter(loader)
    next(batches)
    # torch's names of shared memory have the number of the process that made it
    assert not [path for path in SHARED.iterdir() if f"_{os.getpid()}_" in path.name]
    del batches


def test_the_watch_ends_with_its_iterator_and_with_the_epoch():
    def watching():
        return [thread for thread in threading.enumerate() if thread.name == "shardloader-stall"]

    loader = loader_of(kept_corpus(COUNTS), batch_size=2)
    batches = iter(loader)
    next(batches)
    (broken_off,) = watching()
    del batches
    gc.collect()
    broken_off.join(PATIENCE_S)
    list(loader)
    for thread in watching():
        thread.join(PATIENCE_S)
    assert not watching()
    next(iter(loader_of(kept_corpus(COUNTS), batch_size=2, stall_s=None)))
    assert not watching()


def test_a_stall_is_told_once_and_that_it_is_over(caplog):
    described = threading.Semaphore(0)
    times = iter([10.0, 10.6])

    def describe():
        described.release()
        return "for nothing"

    vigil = Vigil(0.05, describe, lambda: next(times, 11.0))
    with caplog.at_level(logging.WARNING, "shardloader"):
        vigil.asked = 9.0
        assert described.acquire(timeout=PATIENCE_S)
        assert not described.acquire(timeout=0.3)  # it looked again, some times
        vigil.came(7)
        vigil.came(8)  # nobody waits
        vigil.end()
    told_of = [record.getMessage() for record in caplog.records]
    assert told_of[0] == "the training loop waits since 1.0 s: for nothing"
    assert told_of[1].startswith("batch 7 of this pass came after")
    assert len(told_of) == 2


def test_who_got_an_error_waits_no_more(heard, tmp_path):
    def fails(_):
        raise sl.DataError("broken")

    listener = heard("", str)
    batches = iter(
        loader_of(kept_corpus(COUNTS), batch_size=2, transform=fails, stall_s=1e-3, num_workers=0)
    )
    with pytest.raises(sl.DataError):
        next(batches)
    before = len(listener.words)
    assert batches._vigil.asked is None
    threading.Event().wait(0.05)  # some looks
    assert len(listener.words) == before


def test_there_are_words_for_everything_that_may_be_done():
    catalog = open_catalog(kept_corpus(COUNTS))
    assert set(OF_STAGES) == set(Stage)
    diary = Diary()
    for stage in Stage:
        diary.page.begin(stage, shard=1)
        text = told("worker 0", diary.page.read(), catalog)
        assert text.startswith("worker 0 ")
        assert "{" not in text
    diary.page.begin(Stage.OPENING)
    assert "opens a shard," in told("worker 0", diary.page.read(), catalog)


@pytest.mark.parametrize("stall_s", [0, -1, "30", True, float("nan")])
def test_a_limit_that_is_none_is_refused(stall_s):
    with pytest.raises(sl.UsageError, match="stall_s="):
        loader_of(kept_corpus(COUNTS), stall_s=stall_s)


def test_counts_of_workers_come_with_their_batches_and_what_is_ready_is_told(tmp_path):
    go = tmp_path / "go"
    loader = loader_of(
        kept_corpus(COUNTS),
        batch_size=2,
        shuffle=False,
        num_workers=1,
        prefetch_factor=3,
        transform=HangsAt("000006", str(go)),
    )
    batches = iter(loader)
    next(batches)
    deadline = time.monotonic() + PATIENCE_S
    while loader.stats().feed.num_ready < 2:  # batches 1 and 2; the one after hangs
        assert time.monotonic() < deadline
    first = loader.stats()
    assert first.feed.steps == 1
    go.touch()
    list(batches)
    rest = loader.stats()
    assert rest.feed.num_ready == 0
    plain = loader_of(kept_corpus(COUNTS), batch_size=2, shuffle=False)
    list(plain)
    assert rest.reading == plain.stats().reading
    assert rest.feed.samples == 12
    assert 0 < first.reading.field_bytes < rest.reading.field_bytes
    assert rest.to_dict()["field_bytes"] == rest.reading.field_bytes
    assert rest.reading.field_bytes == bytes_of_fields(kept_corpus(COUNTS))


def bytes_of_fields(folder):
    catalog = open_catalog(folder)
    with ShardPool(catalog) as pool:
        return sum(int(pool[shard].index.member_sizes.sum()) for shard in range(len(COUNTS)))


def test_ranks_that_do_not_come_are_what_a_step_waits_for(heard, monkeypatch):
    go = threading.Event()
    listener = heard("", go.set)
    monkeypatch.setattr(progress, "can_meet", lambda _: True)
    monkeypatch.setattr(progress, "meet", lambda *_, **__: go.wait(PATIENCE_S))
    next(iter(loader_of(kept_corpus(COUNTS), batch_size=2, world_size=2, stall_s=0.1)))
    assert "for the other ranks, to compare what they are about to read" in listener.words[0]
