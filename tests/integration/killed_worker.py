"""A training loop whose DataLoader worker is killed; run in a process of its own.

torch tells of a dead worker from a signal handler, at whatever line the process then is, so this
can't share a process with other tests.

    python killed_worker.py CORPUS [persistent]
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import shardloader as sl


def shared_memory(processes: list[int | None]) -> list[str]:
    """What torch has left in shared memory under a name of these processes."""
    names = [path.name for path in Path("/dev/shm").iterdir()]  # noqa: S108 - only looked at
    return [name for name in names if any(f"torch_{pid}_" in name for pid in processes)]


def with_image(sample: Any) -> Any:
    """A sample large enough to cross in a block."""
    return {**sample, "image": np.zeros((100, 1000), np.uint8)}


def main() -> None:
    """Print what the loop saw: the error's type and first line, and what the iterator says then."""
    persistent = len(sys.argv) > 2
    loader: Any = sl.ShardLoader(
        sl.ShardDataset(sys.argv[1], transform=with_image),
        batch_size=2,
        num_workers=2,
        prefetch_factor=1,
        persistent_workers=persistent,
    )
    iterator = iter(loader)
    next(iterator)
    alive = multiprocessing.active_children()
    processes = [os.getpid(), *(each.pid for each in alive)]
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
    print("left behind", *shared_memory(processes))
    if persistent:
        print("then", len(list(loader)), "batches")


if __name__ == "__main__":
    main()
