"""Three epochs that are broken off, in a process where nothing else opens or closes files.

python broken_off_epochs.py CORPUS NUM_WORKERS
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import shardloader as sl


def open_files() -> int:
    """Descriptors of this process."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def main() -> None:
    """Print the descriptors before and after, and the workers that are left."""
    loader: Any = sl.ShardLoader(
        sl.ShardDataset(sys.argv[1]), batch_size=4, num_workers=int(sys.argv[2])
    )
    list(loader)  # without workers the shards stay mapped here, up to a limit
    before = open_files()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for epoch in range(3):
            loader.set_epoch(epoch)
            list(islice(loader, 10))
    print(before, open_files(), len(multiprocessing.active_children()))


if __name__ == "__main__":
    main()
