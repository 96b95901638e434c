"""A call that is begun goes on by itself, and keeps nobody from ending."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from shardloader.reading.calls_ahead import begun, both

ENDLESS = """
import threading
from shardloader.reading.calls_ahead import begun
begun(threading.Event().wait)
"""


def test_a_call_goes_on_while_nobody_waits_for_it():
    done = threading.Event()
    coming = begun(done.set)
    assert done.wait(60)
    assert coming.result(60) is None


def test_what_a_call_raises_is_raised_where_its_result_is_wanted():
    nothing: list[int] = []
    coming = begun(nothing.pop)
    with pytest.raises(IndexError):
        coming.result(60)


def test_a_call_that_never_ends_keeps_no_process_alive():
    subprocess.run([sys.executable, "-c", ENDLESS], check=True, timeout=120)


def test_what_a_call_raises_goes_with_whoever_had_it_and_no_search_for_cycles_is_needed():
    class Told(Exception):  # noqa: N818
        pass

    def call():
        raise Told

    def seen():
        try:
            begun(call).result(60)
        except Told as error:
            return weakref.ref(error)
        raise AssertionError

    others = set(threading.enumerate())
    gc.disable()
    try:
        gone = seen()
        for thread in set(threading.enumerate()) - others:
            thread.join(60)
        assert gone() is None
    finally:
        gc.enable()


def test_two_calls_are_made_at_the_same_time():
    two = threading.Barrier(2)
    assert sorted(both(lambda: two.wait(60), lambda: two.wait(60))) == [0, 1]


@pytest.mark.parametrize("others_too", [False, True])
def test_of_two_calls_the_one_made_here_says_first_what_is_wrong_once_both_have_ended(others_too):
    begins, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def here():
        assert begins.wait(60)
        may_end.set()
        raise IndexError

    def beside():
        begins.set()
        assert may_end.wait(60)
        ended.set()
        if others_too:
            raise KeyError

    with pytest.raises(IndexError):
        both(here, beside)
    assert ended.is_set()


def test_what_one_of_two_calls_raises_is_held_by_nobody_else():
    class Told(Exception):  # noqa: N818
        pass

    def fails():
        raise Told

    def seen(here, beside):
        try:
            both(here, beside)
        except Told as error:
            return weakref.ref(error)
        raise AssertionError

    others = set(threading.enumerate())
    gc.disable()
    try:
        gone = [seen(int, fails), seen(fails, int), seen(fails, fails)]
        for thread in set(threading.enumerate()) - others:
            thread.join(60)
        assert [each() for each in gone] == [None] * 3
    finally:
        gc.enable()
