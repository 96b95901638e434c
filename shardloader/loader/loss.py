"""What does a batch weigh in the mean over all ranks?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardloader.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


def loss_scale(batch: Mapping[str, Any]) -> float:
    """World size over the planned number of valid samples of this step, 0 if there is none.

    A rank's *sum* of per-sample losses over its valid samples, times this, gives after DDP's
    averaging exactly the gradient of the mean over the global batch, also when ranks hold
    different numbers of valid samples. Known with no communication. Raises UsageError for a
    batch without the loader's entries.
    """
    try:
        valid, world_size = batch["__global_valid__"], batch["__world_size__"]
    except (KeyError, TypeError):
        raise UsageError(
            "loss_scale takes a batch of ShardLoader with its entries __global_valid__ and "
            '__world_size__, and this batch lacks them: leave meta= at "all" or "mask"'
        ) from None
    return float(world_size) / float(valid) if valid else 0.0
