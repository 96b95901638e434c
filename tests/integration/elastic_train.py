"""A training loop that survives the loss and the coming of machines, as it is meant to be written.

    torchrun --nnodes=1:3 --max-restarts 9 --rdzv-backend c10d --rdzv-endpoint HOST:PORT \\
        elastic_train.py CORPUS OUT

torchrun starts this script anew on all machines whenever one goes or comes. It begins by loading
the last checkpoint, which any rank may have written, and goes on with the ranks there are.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed

import shardloader as sl

HELD_S = 100  # a test that was ended leaves nothing behind for long
EVERY = 3  # steps from one checkpoint to the next


def main() -> None:
    """Train one epoch of CORPUS, keeping checkpoint and log in OUT."""
    corpus, out = sys.argv[1], Path(sys.argv[2])
    distributed.init_process_group("gloo", timeout=timedelta(seconds=20))
    loader: Any = sl.ShardLoader(sl.ShardDataset(corpus), batch_size=2, agreement_timeout=20)
    checkpoint = out / "checkpoint.json"
    if checkpoint.exists():
        loader.load_state_dict(json.loads(checkpoint.read_text())["loader"])
    loader.log_samples(out / "log")
    if loader.epoch == 0:
        for step, batch in enumerate(loader, start=1):
            train_on(batch, loader, out)
            if step % EVERY == 0:
                save(checkpoint, loader)
        save(checkpoint, loader)
    distributed.destroy_process_group()


def train_on(batch: Any, loader: Any, out: Path) -> None:
    """One step: ranks wait for each other, as DDP makes them."""
    counts = [0] * loader.topology.world_size
    distributed.all_gather_object(counts, int(batch["__valid__"].sum()))
    assert sum(counts) == batch["__global_valid__"]
    pace(loader, out)


def save(checkpoint: Path, loader: Any) -> None:
    """Write a checkpoint so that there is always a whole one. Any rank's is everyone's.

    Here the model's state would stand beside the loader's.
    """
    if loader.topology.rank == loader.topology.world_size - 1:
        new = checkpoint.with_suffix(".new")
        new.write_text(json.dumps({"loader": loader.state_dict()}))
        new.replace(checkpoint)


def pace(loader: Any, out: Path) -> None:
    """For the test: say where this rank stands, and wait where the test holds so many ranks."""
    position, ranks = loader.state_dict()["consumed"], loader.topology.world_size
    told = out / "told" / f"{ranks}-{loader.topology.rank}-{position}"
    told.with_suffix(".new").write_text(str(os.getpid()))
    told.with_suffix(".new").replace(told)
    deadline = time.monotonic() + HELD_S
    while position >= int((out / f"hold-{ranks}").read_text()):
        assert time.monotonic() < deadline, "nobody lets training go on"
        time.sleep(0.01)


if __name__ == "__main__":
    main()
