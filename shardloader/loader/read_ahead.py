"""How does work go ahead of the loop that wants its results?

Results come in the order of the tasks. What is worth a thread is done in threads, a bounded number
of tasks ahead. The rest is done when its turn comes, in the caller's thread, as long as the caller
comes back at once: handing over would cost more. Where the caller stays away, as a loop does that
trains meanwhile, a thread takes what comes next, and of what is quick it does one task ahead.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

Task = TypeVar("Task")
Result = TypeVar("Result")

TASKS_MORE = 2  # than threads are ahead, so that none waits for the loop
LEAST_AWAY_S: Final = 0.002  # handing over takes a tenth of it at most
_TIMES_THE_WORK: Final = 2.0


def read_ahead(
    tasks: Iterator[Task],
    do: Callable[[Task], Result],
    *,
    is_worth_it: Callable[[Task], bool],
    num_threads: int,
    is_early: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[tuple[Task, Result]]:
    """Each task with its result.

    Tasks are taken in one thread at a time, which need not be the caller's. An error of `do` comes
    at its task's turn, one of `tasks` once the results before it are given. is_early: whether one
    task is begun now; else none is before the first is asked for. clock: in seconds.
    """
    if num_threads == 0:
        return ((task, do(task)) for task in tasks)
    pool = _Threads(num_threads)
    queue = _Queue(tasks, do, is_worth_it, pool, most=num_threads + TASKS_MORE)
    results = _results(queue, pool, clock)
    next(results)  # so that the threads end with it, however it ends
    if is_early:
        queue.follow(most=1)
    return results


def _results(
    queue: _Queue[Task, Result], pool: _Threads, clock: Callable[[], float]
) -> Generator[Any]:
    """A first None, and what `read_ahead` gives."""
    with pool:
        yield None
        stays_away = True  # until it comes back sooner
        while True:
            began = clock()
            found = queue.take()
            if found is None:
                return
            if stays_away:
                queue.follow()
            left = clock()
            yield found
            away_s, work_s = clock() - left, left - began
            # Once it is followed, the caller works no more: what it did before is forgotten.
            stays_away = away_s > max(LEAST_AWAY_S, _TIMES_THE_WORK * work_s)


class _Queue(Generic[Task, Result]):
    """The tasks that are next, and who does them.

    They are taken by the caller, or meanwhile by one thread: until it is through, the caller has
    what was taken before, and waits for it then.
    """

    def __init__(
        self,
        tasks: Iterator[Task],
        do: Callable[[Task], Result],
        is_worth_it: Callable[[Task], bool],
        pool: ThreadPoolExecutor,
        *,
        most: int,
    ) -> None:
        self._tasks = tasks
        self._do = do
        self._is_worth_it = is_worth_it
        self._pool = pool
        self._most = most
        self._ahead: deque[tuple[Task, Future[Result] | None]] = deque()
        self._following: Future[None] | None = None
        self._failed: Exception | None = None
        self._is_over = False

    def take(self) -> tuple[Task, Result] | None:
        """The next task and its result; None after the last one."""
        if self._following is None:
            self._fill(self._most, lambda _: None)
        elif not self._ahead or self._following.done():
            self._following.result()
            self._following = None
        if self._ahead:
            task, future = self._ahead.popleft()
            return task, self._do(task) if future is None else future.result()
        if self._failed is not None:
            raise self._failed
        return None

    def follow(self, most: int | None = None) -> None:
        """Have what comes next taken meanwhile, and done too."""
        if self._following is None and not self._is_over:
            self._following = self._pool.submit(self._fill, most or self._most, self._done)

    def _fill(self, most: int, as_quick: Callable[[Task], Future[Result] | None]) -> None:
        """Take tasks until `most` are ahead; as_quick: what becomes of one not worth a thread."""
        while not self._is_over and len(self._ahead) < most:
            try:
                task = next(self._tasks)
            except StopIteration:
                self._is_over = True
            except Exception as error:  # noqa: BLE001 - raised in its turn
                self._is_over, self._failed = True, error
            else:
                if self._is_worth_it(task):
                    self._ahead.append((task, self._pool.submit(self._do, task)))
                    continue
                self._ahead.append((task, as_quick(task)))
                break  # what is done so quickly needs no other ahead of it

    def _done(self, task: Task) -> Future[Result]:
        future: Future[Result] = Future()
        try:
            future.set_result(self._do(task))
        except Exception as error:  # noqa: BLE001 - raised in its turn
            future.set_exception(error)
        return future


class _Threads(ThreadPoolExecutor):
    """Threads that end with what they are doing, and don't begin what is still waiting."""

    def __init__(self, num_threads: int) -> None:
        super().__init__(num_threads, thread_name_prefix="shardloader")
        self._process = os.getpid()

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._process:
            return  # a child has none of them, and a lock that one had held when it was forked
        # Whoever collects garbage may end a pass that nobody holds, also one of these threads.
        is_one_of_them = threading.current_thread() in self._threads
        self.shutdown(wait=not is_one_of_them, cancel_futures=True)
