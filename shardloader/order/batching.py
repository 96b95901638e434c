"""How many samples has a rank's batch, and how many steps make one optimiser step?

The global batch is what one optimiser step takes over all ranks: `world_size * batch_size *
accumulate` samples. `Batching` is what was asked for, of which some may be left to the topology;
`Batching.on(world_size)` is what holds there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from shardloader.errors import UsageError
from shardloader.order.integers import checked

MAX_BATCH = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What holds in one topology: samples a rank and step, and steps an optimiser step."""

    batch_size: int
    accumulate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """What was asked for.

    batch_size: samples a rank and step, or with global_batch the most of them; accumulate: steps
    that make an optimiser step; global_batch: samples of an optimiser step over all ranks. Raises
    UsageError for numbers below 1.
    """

    batch_size: int | None = None
    accumulate: int | None = None
    global_batch: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "accumulate", "global_batch"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, checked(name, value, least=1, below=MAX_BATCH))

    @property
    def is_grouped(self) -> bool:
        """Whether steps come in groups that make an optimiser step, be it groups of one."""
        return self.accumulate is not None or self.global_batch is not None

    def on(self, world_size: int) -> Batch:
        """What holds on so many ranks; raises UsageError that says what does not divide."""
        if self.global_batch is None:
            return Batch(batch_size=self.batch_size or 1, accumulate=self.accumulate or 1)
        return _shared_out(self, self.global_batch, world_size)


@lru_cache(maxsize=64)
def _shared_out(asked: Batching, global_batch: int, world_size: int) -> Batch:
    a_rank, left = divmod(global_batch, world_size)
    if left:
        raise UsageError(
            f"global_batch= is shared out evenly, and {global_batch} samples are no multiple of "
            f"{world_size} ranks: {_neighbours(global_batch, world_size)}"
        )
    most = asked.batch_size or a_rank
    if asked.accumulate is None:
        batch_size = max(each for each in _divisors(a_rank) if each <= most)
        if 2 * batch_size < min(most, a_rank):
            raise UsageError(
                f"global_batch={global_batch} on {world_size} ranks is {a_rank} samples a rank, "
                f"which in batches of at most {most} divide only into {a_rank // batch_size} of "
                f"{batch_size}: {_neighbours(global_batch, world_size * most)}, or give accumulate="
            )
        return Batch(batch_size=batch_size, accumulate=a_rank // batch_size)
    batch_size, left = divmod(a_rank, asked.accumulate)
    if left:
        raise UsageError(
            f"global_batch={global_batch} on {world_size} ranks is {a_rank} samples a rank, no "
            f"multiple of accumulate={asked.accumulate}: "
            f"{_neighbours(global_batch, world_size * asked.accumulate)}, or leave accumulate= out"
        )
    if batch_size > most:
        raise UsageError(
            f"global_batch={global_batch} on {world_size} ranks in accumulate={asked.accumulate} "
            f"steps is {batch_size} samples a batch, more than batch_size={most}: leave one of "
            "the three out"
        )
    return Batch(batch_size=batch_size, accumulate=asked.accumulate)


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return [*small, *(number // each for each in small)]


def _neighbours(number: int, divisor: int) -> str:
    """The multiples of `divisor` nearest to `number`, in words."""
    below = number // divisor * divisor
    near = [str(each) for each in (below, below + divisor) if each]
    return f"take {' or '.join(near)}"
