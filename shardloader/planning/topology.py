"""Which topologies can be planned for?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shardloader.errors import UsageError
from shardloader.order.integers import checked

if TYPE_CHECKING:
    from shardloader.order.batching import Batching

MOST_RANKS = 1 << 20  # a table of so many turns is made in a fraction of a second


class PlannedTopology(NamedTuple):
    """Ranks, DataLoader workers a rank, samples a rank and step, steps an optimiser step.

    is_grouped: whether steps are grouped to optimiser steps at all.
    """

    world_size: int
    num_workers: int
    batch_size: int
    accumulate: int
    is_grouped: bool

    @property
    def global_batch(self) -> int:
        """Samples of an optimiser step over all ranks."""
        return self.world_size * self.batch_size * self.accumulate

    @classmethod
    def of(cls, world_size: Any, num_workers: Any, batching: Batching) -> PlannedTopology:
        """A topology that a plan can be made of; raises UsageError for anything else."""
        world_size = checked("world_size", world_size, least=1)
        check_ranks("world_size=", world_size)
        batch = batching.on(world_size)
        return cls(
            world_size=world_size,
            num_workers=checked("num_workers", num_workers, least=0, below=2**16),
            batch_size=batch.batch_size,
            accumulate=batch.accumulate,
            is_grouped=batching.is_grouped,
        )


def check_ranks(argument: str, ranks: int) -> None:
    """Refuse more ranks than a plan looks at; argument: what says how many they are."""
    if ranks > MOST_RANKS:
        raise UsageError(
            f"a plan looks at {MOST_RANKS:,} ranks at most, and {argument} says {ranks:,}: give "
            "the number of data-parallel ranks"
        )
