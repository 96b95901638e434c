"""How many samples lie between those that the readers of a node need at one time?

A lane is read from its start to its end, but for the window's shuffle: at each place it takes from
two blocks of the window, and a stretch of places in which one block ends from three. What is needed
at one time are the shards that lie, with any part, between the first and the last of these; and
those at the borders of lanes, which one reader needs at its pass's start and another at its end.

All of it is arithmetic on the constants of a topology, whatever the epoch is. Whoever reads keeps
to `rows` and `rows_ahead`, so that it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardloader.order.dealing import Dealing
    from shardloader.order.epoch import Order

_SHARE_AT_ONCE: Final = 4  # of a window, that is located at once; and half of one is in flight
_LEAST_AHEAD: Final = 8  # rows in flight, however short the window is; none in a worker
_TURNS: Final = 2  # lane-ranks more, to each node, where ranks share them


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What the readers of a node need at one time, at the most.

    readers: of the node (workers, or ranks without any); lanes: that they read; samples: of each
    lane, one after another on the line; tail: samples that lie in no lane, and make the last step;
    is_shared: whether several readers read a lane; is_shuffled: whether a window's shuffle lies
    between; rows: that a reader locates at once; rows_ahead: that it has located, and not given
    yet, or that it is ahead of others who read the same lanes; steps: after which a shard that did
    not come again will not.
    """

    readers: int
    lanes: int
    samples: int
    tail: int
    is_shared: bool
    is_shuffled: bool
    rows: int
    rows_ahead: int
    steps: int

    @classmethod
    def of(
        cls, order: Order, dealing: Dealing, *, num_workers: int, ranks_per_node: int | None
    ) -> Reach:
        """Of a topology. ranks_per_node: None where all ranks are on one node."""
        grid, workers = order.grid, max(1, num_workers)
        world_size, step = dealing.world_size, dealing.step_size
        ranks = min(ranks_per_node or world_size, world_size)
        has_own_ranks = grid.ranks % world_size == 0 and step % grid.ranks == 0
        is_grids = step == grid.step and dealing.consumed % grid.step == 0
        lane_ranks = -(-grid.ranks * ranks // world_size)
        if not has_own_ranks:
            lane_ranks = min(grid.ranks, lane_ranks + _TURNS)

        def places(rows: int) -> int:
            """Places of a lane that so many rows of all its readers take."""
            batches = -(-rows * workers * -(-step // grid.ranks) // (grid.batch * grid.workers))
            return grid.batch * (batches + (not is_grids))

        width = min(order.window or 0, order.lanes.longest)
        width = width if width > 1 else 0
        is_shared = not (has_own_ranks and is_grids and grid.workers % workers == 0)
        rows = _most(places, width // _SHARE_AT_ONCE)
        ahead = max(_LEAST_AHEAD, _most(places, width // 2))
        if num_workers and not is_shared:
            ahead = 0
        samples = at_once = places(rows + ahead)
        if width:
            samples = (max(0, at_once - 2) // width + 3) * width
        gap = 3 * width + 2 * grid.batch
        return cls(
            readers=ranks * workers,
            lanes=lane_ranks * grid.workers,
            samples=min(samples, order.lanes.longest),
            tail=order.num_samples - order.lanes.tail_start,
            is_shared=is_shared,
            is_shuffled=width > 0,
            rows=rows,
            rows_ahead=ahead,
            steps=-(-gap * grid.ranks * grid.workers // step) + workers,
        )


def _most(places: Callable[[int], int], bound: int) -> int:
    """The most rows, one at least, that take no more than so many places."""
    low, high = 1, max(1, bound)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if places(middle) <= bound else (low, middle - 1)
    return low
