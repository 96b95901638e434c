"""Which samples does each rank read at each step of what is left of an epoch?

`order` joined to `dealing`: the one function that the plan, the loader, the simulator and the
audit all use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shardloader.order.dealing import Dealing
from shardloader.order.epoch import Samples
from shardloader.order.window import BlockMemo, is_remembered

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.order.epoch import Order, PassOrder

POSITIONS_AT_LEAST = 16_384
POSITIONS_AT_MOST = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class StepSamples:
    """What one rank reads at some steps: arrays [steps, batch_size] and [steps].

    shard, sample, index: int64, as in `Samples`; passes: the pass over the data of each slot,
    int64; valid: bool; size: slots that the batch really has (less than batch_size only under
    "join"); global_valid, group_valid: valid samples over all ranks, of the step and of its group.
    """

    shard: NDArray[np.int64]
    sample: NDArray[np.int64]
    index: NDArray[np.int64]
    passes: NDArray[np.int64]
    valid: NDArray[np.bool_]
    size: NDArray[np.int64]
    global_valid: NDArray[np.int64]
    group_valid: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The rest of one epoch, from `dealing.consumed` on.

    It remembers the two passes that were set up last (a pass over a million shards takes a tenth
    of a second); every answer is a function of the order, the dealing and the question.
    """

    order: Order
    dealing: Dealing
    _passes: dict[int, PassOrder] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls,
        order: Order,
        *,
        epoch: int,
        consumed: int,
        world_size: int,
        batch_size: int,
        even: str,
        accumulate: int = 1,
    ) -> Schedule:
        """The schedule of an epoch of `order` from `consumed` on, in a topology."""
        return cls(
            order,
            Dealing(
                lanes=order.lanes,
                first=order.first_virtual(epoch),
                length=order.epoch_length,
                consumed=consumed,
                world_size=world_size,
                batch_size=batch_size,
                even=even,
                accumulate=accumulate,
            ),
        )

    def reader(self, rank: int) -> RankReader:
        """A reader of `rank`'s samples."""
        return RankReader(self, rank)

    def one_pass(self, number: int) -> PassOrder:
        """The order of a pass, from memory if it was used lately."""
        if number not in self._passes:
            while len(self._passes) > 1:
                del self._passes[next(iter(self._passes))]
            self._passes[number] = self.order.one_pass(number)
        return self._passes[number]

    def steps_at_once(self, num_workers: int) -> int:
        """Steps that are best evaluated together by one of `num_workers` readers of a rank.

        Few, where the reader remembers the blocks that it is in. Otherwise a window costs three
        blocks however few of its places are asked for, so a chunk should hold about a window of
        each lane that the reader reads.
        """
        grid, dealing = self.order.grid, self.dealing
        lanes = max(1, grid.ranks * grid.workers // (dealing.world_size * num_workers))
        window = min(self.order.window or 1, self.order.lanes.longest)
        if is_remembered(lanes=lanes, width=window):
            wanted = POSITIONS_AT_LEAST
        else:
            wanted = min(max(lanes * window, POSITIONS_AT_LEAST), POSITIONS_AT_MOST)
        return max(1, wanted // dealing.batch_size)


class RankReader:
    """Evaluates a schedule for one rank; remembers the blocks that it was in last."""

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self._schedule = schedule
        self._rank = rank
        self._memo = BlockMemo()

    def steps(self, steps: NDArray[np.int64]) -> StepSamples:
        """What the rank reads at `steps` (int64 [n], counted from `consumed`)."""
        dealing = self._schedule.dealing
        slots = dealing.slots(steps, self._rank)
        samples = self._locate(slots.number, slots.position)
        return StepSamples(
            shard=samples.shard,
            sample=samples.sample,
            index=samples.index,
            passes=slots.number,
            valid=slots.valid,
            size=slots.size,
            global_valid=dealing.global_valid(np.asarray(steps)),
            group_valid=dealing.group_valid(np.asarray(steps)),
        )

    def _locate(self, number: NDArray[np.int64], position: NDArray[np.int64]) -> Samples:
        if number.size == 0:
            return Samples(position, position, position)
        first, last = int(number.min()), int(number.max())
        if first == last:
            return self._schedule.one_pass(first).locate(position, self._memo)
        located = Samples(*(np.empty_like(position) for _ in range(3)))
        for each in np.unique(number).tolist():
            inside = number == each
            found = self._schedule.one_pass(each).locate(position[inside], self._memo)
            located.shard[inside] = found.shard
            located.sample[inside] = found.sample
            located.index[inside] = found.index
        return located
