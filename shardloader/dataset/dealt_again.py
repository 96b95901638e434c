"""Is a dataset that divides itself over the ranks about to be dealt a second time?

Accelerate's `prepare` takes a DataLoader apart and builds one of its own around the dataset: either
rank 0 alone reads and deals its batches to all, or every rank keeps each n-th batch of what it
reads. Both are right for a dataset that gives everything on every rank, and lose samples, or
repeat them, with one that does not. Known of Accelerate here: `GradientState` names the loader that
is being iterated (1.15).
"""

from __future__ import annotations

import sys
from typing import Any

from shardloader.errors import UsageError


def refuse_second_dealing(dataset: Any, *, world_size: int) -> None:
    """Raise UsageError if a loader that Accelerate built is what iterates `dataset`.

    Where each rank is given all samples (a world of one), whoever deals them is right.
    """
    state = sys.modules.get("accelerate.state")
    if state is None or world_size == 1:
        return
    loader = state.GradientState().active_dataloader
    read = getattr(loader, "dataset", None)
    if dataset is not read and dataset is not getattr(read, "dataset", None):
        return
    raise UsageError(
        f"a ShardDataset divides itself over the ranks, here {world_size}, and Accelerate's "
        "prepare() would divide it again: samples would be lost. Give prepare() a ShardLoader, "
        "which it leaves as it is (in Hugging Face's Trainer, return it from "
        "get_train_dataloader); or leave the DataLoader out of prepare(); or, for Accelerate to "
        "divide it, ShardDataset(topology=Topology(rank=0, world_size=1)) and "
        "DataLoaderConfiguration(dispatch_batches=False), whose fillings are not marked"
    )
