"""A crew of processes: what it does when one of them dies, raises, or is no longer wanted."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardloader.errors import UsageError
from shardloader.reading.crew import Killed, work_through

if TYPE_CHECKING:
    from collections.abc import Mapping


def double(number: int) -> int:
    return 2 * number


def die_of(signals: Mapping[int, int], number: int) -> int:
    if number in signals:
        os.kill(os.getpid(), signals[number])
    return number


def raise_at(number: int) -> int:
    if number == 3:
        raise UsageError("three is wrong")
    return number


def exit_at(number: int) -> int:
    if number == 1:
        os._exit(7)
    return number


def sleep_long(folder: Path, number: int) -> int:
    if number:
        (folder / f"{os.getpid()}").touch()
        time.sleep(60)
    return number


def results(work, jobs, num_processes=2):
    return dict(work_through(work, jobs, num_processes=num_processes))


@pytest.mark.parametrize("num_processes", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_every_job_is_done_once(count, num_processes):
    done = list(work_through(double, range(count), num_processes=num_processes))
    assert sorted(done) == [(number, 2 * number) for number in range(count)]


@pytest.mark.parametrize("num_processes", [1, 3])
def test_a_killed_process_costs_its_job_only(num_processes):
    fatal = {1: signal.SIGKILL, 2: signal.SIGALRM, 5: signal.SIGKILL}
    done = results(partial(die_of, fatal), range(7), num_processes)
    assert {number: str(done[number]) for number in fatal} == {
        number: f"the process was killed by {name.name}" for number, name in fatal.items()
    }
    assert all(done[number] == number for number in (0, 3, 4, 6))


def test_all_processes_may_die():
    done = results(partial(die_of, dict.fromkeys(range(4), signal.SIGKILL)), range(4))
    assert set(done.values()) == {Killed(-signal.SIGKILL)}


def test_a_process_that_leaves_says_its_exit_code():
    assert str(results(exit_at, range(3))[1]) == "the process ended with exit code 7"


def test_what_is_raised_on_purpose_is_raised_here_and_ends_the_others():
    with pytest.raises(UsageError, match="three is wrong"):
        list(work_through(raise_at, range(6), num_processes=2))
    assert not multiprocessing.active_children()


def test_who_stops_listening_ends_the_processes(tmp_path):
    work = work_through(partial(sleep_long, tmp_path), range(2), num_processes=2)
    assert next(work) == (0, 0)
    deadline = time.monotonic() + 30
    while not (found := list(tmp_path.iterdir())):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    work.close()
    assert not multiprocessing.active_children()
    assert not Path(f"/proc/{found[0].name}").exists()


def test_large_results_come_whole():
    done = results(partial(bytes_of, 3 << 20), range(3))
    assert all(len(result) == 3 << 20 for result in done.values())


def bytes_of(count: int, number: int) -> bytes:
    return bytes([number]) * count


def test_a_daemon_does_the_work_itself(tmp_path):
    process = multiprocessing.get_context("fork").Process(
        target=write_results, args=(tmp_path / "done",), daemon=True
    )
    process.start()
    process.join(20)
    assert (tmp_path / "done").read_text() == "[(0, 0), (1, 2), (2, 4)]"


def write_results(path: Path) -> None:
    path.write_text(str(list(work_through(double, range(3), num_processes=2))))


ORPHANED = """
import os, sys, time
from functools import partial
from shardloader.reading.crew import work_through

def work(number):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(0.2)
    return number

for _ in work_through(work, range(1000), num_processes=3):
    pass
"""


def test_when_the_parent_is_killed_the_processes_end_with_their_job():
    command = [sys.executable, "-c", ORPHANED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pids = {int(process.stdout.readline()) for _ in range(3)}
        process.kill()
    deadline = time.monotonic() + 20
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(is_alive(pid) for pid in pids)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"
