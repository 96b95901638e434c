"""What becomes of a worker whose main process was killed?

torch has a worker notice that, and end. But a worker that ends first hands over what it made, to
nobody, and waits for ever where a pipe is full: as the other workers have its other end open too.
Such a worker would keep its memory, and its shards in the node's cache, until the machine stops. So
a thread looks for the parent now and then, leaves the worker time to end by itself, and ends it.

It looks in two ways. A process without a parent gets another one, but a fork server is one between,
and whoever looks for the first time may come too late. What multiprocessing keeps of the parent is
told by a pipe, which forked siblings hold open as well, but spawned ones don't.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from typing import Final

log = logging.getLogger("shardloader")

LOOK_S: Final = 1.0
GRACE_S: Final = 10.0  # torch looks each 5 s


def end_with_parent() -> None:
    """Have this process ended some seconds after its parent has gone, whatever it does then."""
    args = (os.getppid(), LOOK_S, GRACE_S)
    threading.Thread(target=_watch, args=args, name="shardloader-orphan", daemon=True).start()


def _watch(first: int, look_s: float, grace_s: float) -> None:
    never, parent = threading.Event(), multiprocessing.parent_process()
    while os.getppid() == first and (parent is None or parent.is_alive()):
        never.wait(look_s)
    never.wait(grace_s)
    log.warning("a worker whose main process was killed did not end by itself; it is ended")
    os.kill(os.getpid(), signal.SIGKILL)
