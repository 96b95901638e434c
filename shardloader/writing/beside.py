"""How is something done beside its caller, in order, with its failures told to the caller?"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


class Beside:
    """Calls that are made one after another in a thread of their own.

    The thread is there from the first call to `end`. A caller is at most `ahead` calls ahead of it.
    Of a call that fails the exception is raised once, by what the caller asks for next; with one
    call ahead no later one has been made then.
    """

    def __init__(self, *, ahead: int) -> None:
        self._ahead = ahead
        self._thread: ThreadPoolExecutor | None = None
        self._calls: deque[Future[Any]] = deque()

    def do(self, call: Callable[..., object], *arguments: object) -> None:
        """Have a call made after those before it; waits where the caller is too far ahead."""
        while len(self._calls) >= self._ahead:
            self._calls.popleft().result()
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="shardloader")
        self._calls.append(self._thread.submit(call, *arguments))

    def check(self) -> None:
        """Raise what a call raised that is over by now."""
        while self._calls and self._calls[0].done():
            self._calls.popleft().result()

    def settle(self) -> None:
        """Wait for all calls; what one raised is still to be raised."""
        wait(self._calls)

    def finish(self) -> None:
        """Wait for all calls, and raise what one raised."""
        while self._calls:
            self._calls.popleft().result()

    def end(self) -> None:
        """Wait for all calls, whatever comes of them, and end the thread."""
        self._calls.clear()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
