"""When is a store asked again, and how many requests are open at once?"""

from __future__ import annotations

import os
import queue
import random
import sys
import threading
import time
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shardloader.errors import UsageError
from shardloader.reading import patience as patience_module
from shardloader.reading.patience import Attempts, Line, Patience, one_request
from shardloader.reading.remote import Store
from tests.reading.origins import FORK

if TYPE_CHECKING:
    from collections.abc import Callable

HANG_S = 60


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def waits(patience, *asked, draw=lambda: 1.0, took=0.0):
    clock = Clock()
    attempts = Attempts(patience, clock=clock, draw=draw)
    found = []
    for seconds in asked:
        found.append(attempts.wait_s(seconds))
        clock.now += took + (found[-1] or 0)
    return found, attempts.made


def test_waits_double_up_to_the_longest_and_attempts_end():
    patience = Patience(attempts=5, first_s=1, longest_s=3)
    assert waits(patience, *[None] * 5) == ([1, 2, 3, 3, None], 5)


def test_jitter_takes_up_to_half_of_a_wait_and_no_generator_of_the_training():
    patience = Patience(attempts=3, first_s=1)
    assert waits(patience, None, None, draw=lambda: 0.0)[0] == [0.5, 1]
    before = repr((random.getstate(), np.random.get_state()))  # noqa: NPY002
    drawn = {Attempts(patience).wait_s() for _ in range(20)}
    assert len(drawn) > 1
    assert all(wait is not None and 0.5 <= wait <= 1 for wait in drawn)
    assert repr((random.getstate(), np.random.get_state())) == before  # noqa: NPY002


def test_a_server_is_not_asked_before_it_says_and_not_after_the_deadline():
    patience = Patience(first_s=1, deadline_s=60)
    assert waits(patience, 30, 0.1, None) == ([30, 2, 4], 4)
    assert waits(patience, 61) == ([None], 1)
    assert waits(patience, None, None, took=59) == ([1, None], 2)


@pytest.mark.parametrize(
    "given",
    [{"attempts": 0}, {"attempts": 1.5}, {"stall_s": True}, {"first_s": "1"}, {"times": 3}, [1]],
    ids=str,
)
def test_nonsense_is_refused_where_the_store_is_named(given):
    with pytest.raises(UsageError, match="patience"):
        Store("s3://b/c", {"patience": given})


def test_it_is_an_option_of_a_store_that_does_not_say_which_store_it_is():
    store = Store("s3://b/c", {"anon": True, "patience": {"attempts": 3, "in_flight": 2}})
    assert store.patience == Patience(attempts=3, in_flight=2)
    assert store.at("a").identity == Store("s3://b/c", {"anon": True}).at("a").identity


def test_no_more_requests_are_open_at_a_host_than_are_said():
    patience = Patience(in_flight=2)
    is_open = threading.Semaphore(0)
    may_end = threading.Event()

    def ask(host):
        with one_request(host, patience):
            is_open.release()
            may_end.wait(HANG_S)

    threads = [threading.Thread(target=ask, args=("a",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert all(is_open.acquire(timeout=HANG_S) for _ in range(2))
    assert not is_open.acquire(timeout=0.1)  # the third waits
    with one_request("b", patience):  # and nobody waits for another host
        pass
    process = FORK.Process(target=lambda: sys.exit(ask_once(patience)))
    process.start()
    process.join(HANG_S)
    assert process.exitcode == 0  # nor for requests of the process that it was forked from
    may_end.set()
    for thread in threads:
        thread.join(HANG_S)
    assert is_open.acquire(timeout=HANG_S)


class Asked:
    """Requests of threads at one host, each of which is ended when the test says so."""

    def __init__(self, host: str, most: int) -> None:
        self._host, self._patience = host, Patience(in_flight=most)
        self.begun: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ends: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []

    def ask(self, name: str, is_needed: Callable[[], bool] = lambda: True) -> None:
        self._ends[name] = threading.Event()
        thread = threading.Thread(target=self._run, args=(name, is_needed))
        self._threads.append(thread)
        thread.start()

    def _run(self, name: str, is_needed: Callable[[], bool]) -> None:
        with one_request(self._host, self._patience, is_needed):
            self.begun.put(name)
            assert self._ends[name].wait(HANG_S)

    def next(self) -> str:
        return self.begun.get(timeout=HANG_S)

    def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()

    def wait_for(self, **waiting: int) -> None:
        """Until so many wait."""
        line = patience_module._GATES[os.getpid()]._lines[self._host]
        deadline = time.monotonic() + HANG_S
        while any(getattr(line, name) != number for name, number in waiting.items()):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def finish(self) -> None:
        self.end(*self._ends)
        for thread in self._threads:
            thread.join(HANG_S)


@pytest.fixture
def asked(request):
    found = Asked(request.node.name, most=1)
    yield found
    found.finish()


def test_what_is_needed_does_not_wait_behind_what_is_fetched_ahead(asked):
    asked.ask("first")
    assert asked.next() == "first"
    asked.ask("ahead", lambda: False)
    asked.wait_for(ahead_waiting=1)
    asked.ask("needed")
    asked.wait_for(needed_waiting=1)
    asked.end("first")
    assert asked.next() == "needed"
    asked.end("needed")
    assert asked.next() == "ahead"


def test_what_is_fetched_ahead_goes_first_once_somebody_waits_for_it(asked):
    is_needed = threading.Event()
    asked.ask("first")
    assert asked.next() == "first"
    asked.ask("ahead", lambda: False)
    asked.ask("needed by now", is_needed.is_set)
    asked.wait_for(ahead_waiting=2)
    is_needed.set()
    asked.wait_for(needed_waiting=1)
    asked.end("first")
    assert asked.next() == "needed by now"


@pytest.mark.parametrize("most", [1, 2, 3, 16])
def test_what_is_fetched_ahead_gets_one_place_in_nine_however_much_is_needed(most):
    """Each that ends is followed by one more that is needed; and it has no more than its places."""
    line, begun = Line(needed_waiting=1000, ahead_waiting=1000), []
    for _ in range(200):
        while may := [n for n in (True, False) if line.may_begin(is_needed=n, most=most)]:
            line.begins(is_needed=may[0])
            begun.append(may[0])
        assert line.needed + line.ahead == most
        line.ends(is_needed=line.ahead == 0)
    between = [len(list(run)) for is_needed, run in groupby(begun) if is_needed]
    assert set(between[:-1]) == {8}
    assert begun.count(False) == len(begun) // 9


@pytest.mark.parametrize(("most", "places"), [(1, 1), (2, 1), (3, 2), (4, 3), (16, 12)])
def test_what_is_fetched_ahead_leaves_places_for_what_will_be_needed(most, places):
    line = Line(ahead_waiting=100)
    while line.may_begin(is_needed=False, most=most):
        line.begins(is_needed=False)
    assert line.ahead == places
    line.waits(is_needed=True)
    assert line.may_begin(is_needed=True, most=most) == (most > 1)


def ask_once(patience):
    with one_request("a", patience):
        return 0
