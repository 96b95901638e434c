"""A loop with persistent workers, one of which is killed while the loop's body runs.

torch's signal handler raises there, not in next(); run in a process of its own.

    python killed_between.py CORPUS
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from typing import Any

import shardloader as sl


def main() -> None:
    """Print what was raised, and how many batches come after going on from the state."""
    loader: Any = sl.ShardLoader(
        sl.ShardDataset(sys.argv[1]), batch_size=2, num_workers=2, persistent_workers=True
    )
    received = 0
    try:
        for _ in loader:
            received += 1
            # Not joined: a worker that is reaped before torch's handler looks is no fault to it.
            multiprocessing.active_children()[0].kill()
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                pass  # the handler raises between two of these
            sys.exit("torch's handler did not raise")
    except RuntimeError as error:
        print(type(error).__name__, str(error).splitlines()[0])
    loader.load_state_dict(loader.state_dict())
    print("then", len(list(loader)) + received, "batches")


if __name__ == "__main__":
    main()
