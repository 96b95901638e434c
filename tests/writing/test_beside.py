from __future__ import annotations

import threading

import pytest

from shardloader.writing.beside import Beside


def fail() -> None:
    raise ValueError("as told")


def test_calls_are_made_in_order_and_none_is_left_out() -> None:
    made = list[int]()
    beside = Beside(ahead=2)
    for number in range(100):
        beside.do(made.append, number)
    beside.finish()
    assert made == list(range(100))
    beside.end()


def test_the_caller_goes_on_meanwhile_but_only_so_far_ahead() -> None:
    may_end, made = threading.Event(), list[str]()
    beside = Beside(ahead=2)
    beside.do(may_end.wait, 60)
    beside.do(made.append, "second")
    beside.check()
    assert made == []
    threading.Timer(0, may_end.set).start()
    beside.do(made.append, "third")  # waits for the first
    assert may_end.is_set()
    beside.end()
    assert made == ["second", "third"]


@pytest.mark.parametrize("ask", ["do", "check", "finish"])
def test_what_a_call_raised_is_raised_once_by_what_is_asked_next(ask: str) -> None:
    made = list[int]()
    beside = Beside(ahead=1)
    beside.do(fail)
    beside.settle()
    with pytest.raises(ValueError, match="as told"):
        getattr(beside, ask)(*((made.append, 1) if ask == "do" else ()))
    beside.finish()
    assert made == []
    beside.end()


def test_at_the_end_there_is_no_thread_and_no_failure() -> None:
    before = threading.active_count()
    beside = Beside(ahead=1)
    beside.end()
    beside.do(fail)
    beside.end()
    assert threading.active_count() == before
