"""A training loop whose DataLoader worker is killed; run in a process of its own.

torch tells of a dead worker from a signal handler, at whatever line the process then is, so this
can't share a process with other tests.

    python killed_worker.py CORPUS [persistent]
"""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

import shardloader as sl


def main() -> None:
    """Print what the loop saw: the error's type and first line, and what the iterator says then."""
    persistent = len(sys.argv) > 2
    loader: Any = sl.ShardLoader(
        sl.ShardDataset(sys.argv[1]),
        batch_size=2,
        num_workers=2,
        prefetch_factor=1,
        persistent_workers=persistent,
    )
    iterator = iter(loader)
    next(iterator)
    alive = multiprocessing.active_children()
    for _ in range(100):
        try:
            while alive:
                alive[-1].kill()
                alive[-1].join()
                alive.pop()
            next(iterator)
        except sl.StaleIteratorError as error:
            print(type(error).__name__, error)
            break
        except RuntimeError as error:  # perhaps not yet from next()
            print(type(error).__name__, str(error).splitlines()[0])
    if persistent:
        print("then", len(list(loader)), "batches")


if __name__ == "__main__":
    main()
