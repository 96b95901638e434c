"""How does work go ahead of the loop that wants its results?

Results come in the order of the tasks. What is worth a thread is done in threads, a bounded number
of tasks ahead; the rest when its turn comes, in the caller's thread.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

Task = TypeVar("Task")
Result = TypeVar("Result")

TASKS_MORE = 2  # than threads are ahead, so that none waits for the loop


def read_ahead(
    tasks: Iterator[Task],
    do: Callable[[Task], Result],
    *,
    is_worth_it: Callable[[Task], bool],
    num_threads: int,
) -> Generator[tuple[Task, Result]]:
    """Each task with its result; no task is begun before the first is asked for.

    An error of `do` comes at its task's turn, one of `tasks` once the results before it are given.
    """
    if num_threads == 0:
        yield from ((task, do(task)) for task in tasks)
        return
    with _Threads(num_threads) as pool:
        waiting: deque[tuple[Task, Future[Result] | None]] = deque()
        failed: Exception | None = None
        is_over = False
        while waiting or not is_over:
            while not is_over and len(waiting) < num_threads + TASKS_MORE:
                try:
                    task = next(tasks)
                except StopIteration:
                    is_over = True
                except Exception as error:  # noqa: BLE001 - raised below, in its turn
                    is_over, failed = True, error
                else:
                    submitted = pool.submit(do, task) if is_worth_it(task) else None
                    waiting.append((task, submitted))
                    if submitted is None:
                        break  # what is done in its turn needs nothing ahead of it
            if waiting:
                task, future = waiting.popleft()
                yield task, do(task) if future is None else future.result()
        if failed is not None:
            raise failed


class _Threads(ThreadPoolExecutor):
    """Threads that end with what they are doing, and don't begin what is still waiting."""

    def __init__(self, num_threads: int) -> None:
        super().__init__(num_threads, thread_name_prefix="shardloader")

    def __exit__(self, *_: object) -> None:
        self.shutdown(wait=True, cancel_futures=True)
