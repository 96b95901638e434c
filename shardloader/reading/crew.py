"""How are many shards worked on in several processes, so that a killed process costs one of them?

Each process of the crew has one job at a time and a pipe of its own; so when it dies (for want of
memory, or where a mapped disk can't be read) it is known which job killed it. That job is given
up, another process takes its place, and the rest goes on. Forked, so that a user's script needs no
main guard. An interrupt is the caller's affair: a process of the crew ignores Ctrl-C, ends when
its job is done and its parent gone, and is ended when the caller stops.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Generic, TypeVar

from shardloader.errors import ShardLoaderError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

Job = TypeVar("Job")
Result = TypeVar("Result")

_ENDS_IN_SECONDS = 5.0
_HELD_BACK = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Killed:
    """The process that had this job ended without a result, and how, as `Process.exitcode`."""

    exit_code: int | None

    def __str__(self) -> str:
        code = self.exit_code
        if code is None or code >= 0:
            return f"the process ended with exit code {code}"
        try:
            return f"the process was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"the process was killed by signal {-code}"


def work_through(
    work: Callable[[Job], Result], jobs: Sequence[Job], *, num_processes: int
) -> Generator[tuple[int, Result | Killed], None, None]:
    """Yield each job's number and result, as they come.

    `work` runs in a process of the crew; a ShardLoaderError that it raises is raised here. Close
    the iterator to end the crew early. In a process that may have no children (a DataLoader's
    worker) the work is done here, and nothing is survived.
    """
    if multiprocessing.current_process().daemon:
        for number, job in enumerate(jobs):
            yield number, work(job)
        return
    crew = _Crew(work, jobs)
    try:
        for _ in range(min(num_processes, len(jobs))):
            crew.add()
        while crew.at_work:
            for number, result in crew.receive():
                if isinstance(result, ShardLoaderError):
                    raise result
                yield number, result
    finally:
        crew.end()


@dataclass(slots=True, eq=False)
class _Member(Generic[Job]):
    process: BaseProcess
    pipe: Connection
    number: int


class _Crew(Generic[Job, Result]):
    def __init__(self, work: Callable[[Job], Result], jobs: Sequence[Job]) -> None:
        self._work = work
        self._jobs = jobs
        self._waiting = deque(range(len(jobs)))
        self._context = multiprocessing.get_context("fork")
        self.at_work: dict[Connection, _Member[Job]] = {}

    def add(self) -> None:
        """Start a process with the next job."""
        number = self._waiting.popleft()
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(self._work, theirs, [ours, *self.at_work]), daemon=True
        )
        # Held back until the child has its own answer to them, and this process knows the child.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
        try:
            process.start()
            self.at_work[ours] = _Member(process, ours, number)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        _send(ours, self._jobs[number])

    def receive(self) -> Iterator[tuple[int, Result | Killed | ShardLoaderError]]:
        """Wait for results, hand out the next jobs, and replace who died."""
        for pipe in connection.wait(list(self.at_work)):
            member = self.at_work[pipe]  # type: ignore[index]  # the pipes that were given
            number = member.number
            try:
                result: Result | Killed | ShardLoaderError = member.pipe.recv()
            except (EOFError, OSError):  # also in the middle of a result
                result = Killed(self._dismiss(member))
                if self._waiting:
                    self.add()
            else:
                self._go_on(member)
            yield number, result

    def _go_on(self, member: _Member[Job]) -> None:
        if self._waiting:
            member.number = self._waiting.popleft()
            _send(member.pipe, self._jobs[member.number])
        else:
            self._dismiss(member)

    def _dismiss(self, member: _Member[Job]) -> int | None:
        """Close the pipe, which ends a process that waits for a job; give its exit code."""
        del self.at_work[member.pipe]
        member.pipe.close()
        member.process.join(_ENDS_IN_SECONDS)
        return member.process.exitcode

    def end(self) -> None:
        """End whoever is still at work."""
        for member in self.at_work.values():
            member.process.terminate()
        for member in list(self.at_work.values()):
            self._dismiss(member)
            if member.process.exitcode is None:
                member.process.kill()
                member.process.join()


def _send(pipe: Connection, job: Job) -> None:
    try:
        pipe.send(job)
    except (BrokenPipeError, ConnectionResetError):
        return  # it died between two jobs: its end of the pipe says so to `receive`


def _serve(
    work: Callable[[Job], Result], pipe: Connection, of_others: Sequence[Connection]
) -> None:
    """Do jobs until the pipe is closed, or nobody holds its other end any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
    for other in of_others:
        other.close()
    try:
        while True:
            job = pipe.recv()
            try:
                result: Result | ShardLoaderError = work(job)
            except ShardLoaderError as error:
                result = error
            pipe.send(result)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
