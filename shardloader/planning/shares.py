"""How many batches, samples, shards and bytes does each rank and each worker of a plan read?

Batches and samples have a closed form. Shards and bytes come from what `planning.opened` saw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardloader.planning.spread import Spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.order.dealing import Dealing
    from shardloader.planning.opened import Opened


def batches_a_rank(dealing: Dealing) -> Spread:
    """How many batches the ranks get."""
    without = 0  # ranks that have no last batch
    if dealing.even == "join" and dealing.rest:
        without = max(0, dealing.world_size - dealing.rest)
    steps = dealing.num_steps
    return Spread.of([(steps - 1, without), (steps, dealing.world_size - without)])


def samples_a_rank(dealing: Dealing) -> Spread:
    """How many valid samples the ranks read."""
    full = dealing.num_full * dealing.batch_size
    each, more = _last_step(dealing)
    return Spread.of([(full + each, dealing.world_size - more), (full + each + 1, more)])


def samples_a_worker(dealing: Dealing, num_workers: int) -> Spread:
    """How many valid samples the DataLoader workers read; without workers, the ranks.

    Worker w of W makes the steps w, w+W, ..., so of the full steps the first `num_full mod W` make
    one more than the others, and the next one makes the last step.
    """
    workers, ranks = max(1, num_workers), dealing.world_size
    each_full, more_full = divmod(dealing.num_full, workers)
    each, more = _last_step(dealing)
    full = each_full * dealing.batch_size
    return Spread.of(
        [
            (full + dealing.batch_size, more_full * ranks),
            (full, (workers - more_full - 1) * ranks),
            (full + each, ranks - more),
            (full + each + 1, more),
        ]
    )


def _last_step(dealing: Dealing) -> tuple[int, int]:
    """Valid samples of each rank in the last, partial step, and how many ranks have one more."""
    return divmod(0 if dealing.even == "drop" else dealing.rest, dealing.world_size)


def opened_shares(opened: Opened) -> dict[str, Spread | None]:
    """The spread of shards and bytes by name, over the ranks and workers looked at.

    None for bytes where the sizes are not known.
    """
    spreads = {}
    for name in ("shards", "opened_bytes", "read_bytes"):
        spreads[f"{name}_a_rank"] = _spread(getattr(opened.a_rank, name))
        spreads[f"{name}_a_worker"] = _spread(getattr(opened.a_worker, name))
    return spreads


def _spread(values: NDArray[np.int64] | None) -> Spread | None:
    if values is None:
        return None
    different, times = np.unique(values, return_counts=True)
    return Spread.of(zip(different.tolist(), times.tolist(), strict=True))
