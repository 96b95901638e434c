"""When is a store asked again, and how many requests are open at once?"""

from __future__ import annotations

import random
import sys
import threading

import numpy as np
import pytest

from shardloader.errors import UsageError
from shardloader.reading.patience import Attempts, Patience, one_request
from shardloader.reading.remote import Store
from tests.reading.origins import FORK

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


def ask_once(patience):
    with one_request("a", patience):
        return 0
