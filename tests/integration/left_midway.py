"""A loop that stays away, while threads read for it, and is left in every way there is.

    python -m tests.integration.left_midway CORPUS

Prints what was seen; then the process ends in mid-epoch, with iterators that are held and read for.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from itertools import count
from typing import Any

from shardloader.errors import StaleIteratorError
from shardloader.loader import stream
from shardloader.loader.read_ahead import read_ahead
from tests.corpora import contents, loader_of

HELD: list[Any] = []


def stay_away() -> None:
    """Let every loop be one that stays away for long, to those who look at the clock."""
    looks = count()
    stream.read_ahead = partial(  # type: ignore[attr-defined]
        read_ahead, clock=lambda: (next(looks) + 1) // 3 * 10.0
    )


def main(corpus: str) -> None:
    """Leave a loop by break, by an exception, by a fork, and by the end of the process."""
    stay_away()
    quick = partial(loader_of, corpus, batch_size=2, decode_threads=2)
    for make in (quick, partial(quick, decode={"txt": bytes.decode})):
        whole = contents(make())
        loader = make()
        for _ in loader:
            break
        try:
            for batch in loader:
                batch["no such field"]
        except KeyError:
            print("raised", contents(loader) == whole)
        iterator = iter(loader)
        next(iterator)
        child = os.fork()
        if child == 0:
            try:
                next(iterator)
            except StaleIteratorError as error:
                print("child", type(error).__name__, contents(make()) == whole, flush=True)
            os._exit(0)
        print("ended", os.waitpid(child, 0)[1], flush=True)
        next(iterator)
        loader, other = make(), make()
        for _ in range(2):  # from now on the next epoch is begun before anybody asks for it
            contents(loader), contents(other)
        wanted = contents(other)
        child = os.fork()
        if child == 0:
            print("forked", contents(loader) == wanted, flush=True)
            os._exit(0)
        print("ended", os.waitpid(child, 0)[1], contents(loader) == wanted, flush=True)
        HELD.extend([iterator, loader])
    print("threads", any(each.name.startswith("shardloader") for each in threading.enumerate()))


if __name__ == "__main__":
    main(sys.argv[1])
