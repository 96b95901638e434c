"""How do the next pieces arrive while this one is worked on?

Each call has a thread of its own, which keeps no process alive: nobody waits for a call whose
result is not wanted any more, and what it raises then is lost with it. What may be called ahead,
and how far, is the caller's affair.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
_U = TypeVar("_U")


def begun(call: Callable[[], _T]) -> Future[_T]:
    """Begin a call in a thread; its `result` waits for it, and raises what it raises.

    >>> begun(lambda: 3).result()
    3
    """
    future: Future[_T] = Future()

    thread = threading.Thread(
        target=_run, args=(call, future), name="shardloader-piece", daemon=True
    )
    thread.start()
    return future


def both(here: Callable[[], _T], beside: Callable[[], _U]) -> tuple[_T, _U]:
    """What two calls give that are made at the same time, one of them in a thread.

    Raises what one of them raises once both have ended; what `here` raises goes first.

    >>> both(lambda: 3, lambda: 4)
    (3, 4)
    """
    other = begun(beside)
    try:
        first = here()
        return first, other.result()
    except Exception:
        wait([other])
        raise
    finally:
        del other  # an error that it holds has this frame, which would hold it


def _run(call: Callable[[], _T], future: Future[_T]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
        future.set_exception(error)
        del future  # the error has this frame: they would hold each other, and whoever gets it
    else:
        future.set_result(result)
