"""Whatever is begun before it is asked for, batches and counts are those without threads."""

from __future__ import annotations

import threading
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.loader import engine
from tests.corpora import contents, kept_corpus, loader_of

COUNTS = (5, 0, 4, 7)
DEEDS = st.one_of(
    st.just(("read", 10**6)),
    st.tuples(st.just("read"), st.integers(0, 4)),
    st.tuples(st.just("set_epoch"), st.integers(0, 4)),
    st.tuples(st.just("skip"), st.integers(0, 9)),
    st.tuples(st.just("load"), st.integers(0, 9)),
)


def number_of(data: bytes) -> int:
    return int(data)


def done(loader: Any, deeds: list[tuple[str, int]]) -> list[Any]:
    """What is seen of a loader, deed by deed."""
    seen: list[Any] = []
    states = [loader.state_dict()]
    for deed, number in deeds:
        if deed == "read":
            seen.append(contents(islice(loader, number)))
        elif deed == "load":
            loader.load_state_dict(states[number % len(states)])
        else:
            getattr(loader, deed)(number)
        states.append(loader.state_dict())
        stats = loader.stats()
        seen += [states[-1], stats, stats.reading, len(loader), loader.steps_left]
    return seen


@given(
    deeds=st.lists(DEEDS, min_size=1, max_size=12),
    decode=st.sampled_from(["default", {"cls": number_of}]),
    even=st.sampled_from(["pad", "drop", "join"]),
    threads=st.integers(1, 2),
)
def test_epochs_are_those_of_a_loader_that_begins_none_early(deeds, decode, even, threads):
    def make(decode_threads: int) -> Any:
        return loader_of(
            kept_corpus(COUNTS),
            batch_size=3,
            decode=decode,
            even=even,
            decode_threads=decode_threads,
        )

    whole = [("read", 10**6)] * 2  # after which the next epoch is begun early
    assert done(make(threads), [*whole, *deeds]) == done(make(0), [*whole, *deeds])


@pytest.mark.parametrize("is_again", [False, True])
def test_a_loop_that_came_again_finds_the_first_batch_read(is_again):
    decoded = threading.Semaphore(0)

    def decode(data: bytes) -> int:
        decoded.release()
        return int(data)

    loader = loader_of(kept_corpus(COUNTS), batch_size=3, decode={"cls": decode}, decode_threads=1)
    for _ in range(1 + is_again):
        iterator = iter(loader)
        for _ in range(len(loader)):
            batch = next(iterator)
    assert len(batch["cls"]) == 3
    begun = loader._engine._begun
    assert (begun is not None) == is_again
    if is_again:
        of_one_epoch = 3 * len(loader)  # pads are read like samples
        for _ in range(2 * of_one_epoch + 1):
            assert decoded.acquire(timeout=30)
        assert loader.stats().batches == 2 * len(loader)


def test_what_was_begun_is_used_once_and_only_for_its_epoch(monkeypatch):
    early = []
    whole = engine.Engine._from

    def noted(self: Any, *given: Any, **options: Any) -> Any:
        early.append(options.get("is_early", False))
        return whole(self, *given, **options)

    monkeypatch.setattr(engine.Engine, "_from", noted)
    loader = loader_of(kept_corpus(COUNTS), batch_size=3, decode_threads=1)
    for _ in range(3):
        contents(loader)
    assert early == [False, False, True, True]
    loader.set_epoch(7)
    next(iter(loader))
    assert early[4:] == [False]


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"pin_memory": True}])
def test_nothing_is_begun_early_where_that_would_be_seen(options):
    loader = loader_of(kept_corpus(COUNTS), batch_size=3, **options)
    for _ in range(3):
        contents(loader)
    assert loader._engine._begun is None
