"""Work that goes ahead of the loop: in order, bounded, and errors at their turn."""

from __future__ import annotations

import threading
from itertools import count, cycle, islice

import pytest

from shardloader.loader.read_ahead import LEAST_AWAY_S, TASKS_MORE, read_ahead


def always(task):
    return True


def never(task):
    return False


@pytest.mark.parametrize("num_threads", [0, 1, 3])
@pytest.mark.parametrize("is_worth_it", [always, never, lambda task: task % 3 == 0])
def test_results_come_with_their_tasks_and_in_order(num_threads, is_worth_it):
    done = read_ahead(
        iter(range(20)), lambda task: -task, is_worth_it=is_worth_it, num_threads=num_threads
    )
    assert list(done) == [(task, -task) for task in range(20)]


def test_nothing_is_begun_before_the_first_result_is_asked_for():
    begun: list[int] = []
    done = read_ahead(iter(range(5)), begun.append, is_worth_it=always, num_threads=2)
    assert begun == []
    next(done)
    assert 0 in begun


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_bounded_number_of_tasks_is_ahead(num_threads):
    taken: list[int] = []

    def tasks():
        for task in count():
            taken.append(task)
            yield task

    done = read_ahead(tasks(), lambda task: task, is_worth_it=always, num_threads=num_threads)
    for given in range(1, 10):
        next(done)
        assert len(taken) <= given + num_threads + TASKS_MORE


def test_threads_work_at_the_same_time():
    """Two tasks that wait for each other."""
    both = threading.Barrier(2, timeout=30)
    done = read_ahead(iter(range(2)), lambda _: both.wait(), is_worth_it=always, num_threads=2)
    assert sorted(place for _, place in done) == [0, 1]


def fails_at_three(task):
    if task == 3:
        raise KeyError(task)
    return task


@pytest.mark.parametrize("num_threads", [0, 1, 4])
def test_an_error_comes_at_its_turn(num_threads):
    done = read_ahead(iter(range(9)), fails_at_three, is_worth_it=always, num_threads=num_threads)
    assert [task for task, _ in islice(done, 3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(done)


@pytest.mark.parametrize("num_threads", [0, 1, 4])
def test_an_error_of_the_tasks_comes_after_the_results_before_it(num_threads):
    tasks = map(fails_at_three, range(9))
    done = read_ahead(tasks, lambda task: task, is_worth_it=always, num_threads=num_threads)
    assert [task for task, _ in islice(done, 3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(done)


def test_threads_end_when_the_loop_is_broken_off():
    before = threading.active_count()
    done = read_ahead(count(), lambda task: task, is_worth_it=always, num_threads=3)
    next(done)
    assert threading.active_count() > before
    done.close()
    assert threading.active_count() == before


class Clock:
    """A caller that is away for so many seconds each time, and works for none."""

    def __init__(self, *away_s: float) -> None:
        self.away_s = cycle(away_s)
        self.asked = count()
        self.now = 0.0

    def __call__(self) -> float:
        if next(self.asked) % 3 == 2:  # before and after the work, and when the caller is back
            self.now += next(self.away_s)
        return self.now


def done_where(clock, is_worth_it=never):
    return read_ahead(
        count(),
        lambda _: threading.current_thread() is threading.main_thread(),
        is_worth_it=is_worth_it,
        num_threads=2,
        clock=clock,
    )


def test_what_is_quick_is_done_meanwhile_for_a_caller_that_stays_away():
    where = done_where(Clock(10 * LEAST_AWAY_S))
    assert [is_main for _, is_main in islice(where, 6)] == [True, *[False] * 5]
    where.close()


def test_what_is_quick_is_done_in_its_turn_for_a_caller_that_comes_back_at_once():
    where = done_where(Clock(LEAST_AWAY_S / 10))
    assert [is_main for _, is_main in islice(where, 6)] == [True, False, *[True] * 4]
    where.close()


def every_other(task):
    return task % 2 == 0


def test_what_is_not_worth_a_thread_is_done_in_its_turn_beside_what_is():
    where = done_where(Clock(LEAST_AWAY_S / 10), is_worth_it=every_other)
    # Until the caller is back for the first time it is taken for one that stays away.
    assert [is_main for _, is_main in islice(where, 4)] == [False, True, False, False]
    assert [is_main for _, is_main in islice(where, 6)] == [False, True] * 3
    where.close()


def test_a_caller_that_stays_away_takes_and_does_nothing_itself():
    taken_by_main: list[bool] = []

    def tasks():
        for task in count():
            taken_by_main.append(threading.current_thread() is threading.main_thread())
            yield task

    done = read_ahead(
        tasks(),
        lambda task: task,
        is_worth_it=always,
        num_threads=2,
        clock=Clock(10 * LEAST_AWAY_S),
    )
    assert [task for task, _ in islice(done, 20)] == list(range(20))
    done.close()
    at_first = 2 + TASKS_MORE
    assert taken_by_main[:at_first] == [True] * at_first
    assert not any(taken_by_main[at_first:])


@pytest.mark.parametrize("is_worth_it", [always, never, every_other])
def test_an_error_that_comes_meanwhile_comes_in_its_turn(is_worth_it):
    done = read_ahead(
        iter(range(9)),
        fails_at_three,
        is_worth_it=is_worth_it,
        num_threads=2,
        clock=Clock(10 * LEAST_AWAY_S),
    )
    assert [task for task, _ in islice(done, 3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(done)


def test_the_next_result_is_there_before_the_caller_is_back():
    done = threading.Event()

    def do(task):
        if task == 1:
            done.set()
        return task

    results = read_ahead(
        iter(range(3)), do, is_worth_it=never, num_threads=1, clock=Clock(10 * LEAST_AWAY_S)
    )
    assert next(results) == (0, 0)
    assert done.wait(timeout=30)
    assert list(results) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("is_worth_it", [always, never, lambda task: task % 3 == 0])
def test_results_come_in_order_however_long_the_caller_stays_away(num_threads, is_worth_it):
    done = read_ahead(
        iter(range(30)),
        lambda task: -task,
        is_worth_it=is_worth_it,
        num_threads=num_threads,
        clock=Clock(0.0, 1.0, 1.0, 0.0, 1.0),
    )
    assert list(done) == [(task, -task) for task in range(30)]


@pytest.mark.parametrize("away_s", [0.0, 1.0])
def test_an_error_of_the_tasks_comes_in_its_turn_however_long_the_caller_stays_away(away_s):
    def tasks():
        yield from range(3)
        raise KeyError("no more")

    done = read_ahead(
        tasks(), lambda task: task, is_worth_it=never, num_threads=2, clock=Clock(away_s)
    )
    assert [task for task, _ in islice(done, 3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(done)
