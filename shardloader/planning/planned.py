"""Who will read which sample at which step?

A plan answers from a manifest's counts alone; no shard is opened. It is the same arithmetic that
the loader runs on, so what it says is what happens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shardloader.errors import UsageError
from shardloader.order.audit import Tally, tally
from shardloader.order.integers import checked
from shardloader.order.schedule import Schedule
from shardloader.planning.topology import PlannedTopology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardloader.order.batching import Batching
    from shardloader.order.checkpoint import Checkpoint
    from shardloader.order.dealing import Dealing

SAMPLES_TO_AUDIT = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedBatch:
    """One rank's part of one step: arrays [size], size being batch_size but under "join".

    index: the samples' numbers in the dataset, int64; shard, sample: number of the shard and
    within it, int64; valid: bool; global_valid, group_valid: valid samples over all ranks, of the
    step and of the group of steps that make an optimiser step.
    """

    index: NDArray[np.int64]
    shard: NDArray[np.int64]
    sample: NDArray[np.int64]
    valid: NDArray[np.bool_]
    global_valid: int
    group_valid: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanAudit:
    """What a plan does with the samples of its epoch.

    tally: counts over all ranks and steps; omitted: samples that "drop" leaves out; batches: how
    many each rank gets, least and most.
    """

    tally: Tally
    omitted: int
    batches: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """The rest of one epoch in one topology.

    schedule: the arithmetic; checkpoint: the position it starts from; batching: what was asked for
    of batches; num_workers: DataLoader workers a rank, 0 for none; names, sizes: the shards'
    names, and bytes as int64, None if the plan was made from counts.
    """

    schedule: Schedule
    checkpoint: Checkpoint
    batching: Batching
    num_workers: int
    names: tuple[str, ...] | None
    sizes: NDArray[np.int64] | None

    @property
    def dealing(self) -> Dealing:
        """Steps and slots."""
        return self.schedule.dealing

    @property
    def steps(self) -> int:
        """Steps from the plan's position to the epoch's end."""
        return self.dealing.num_steps

    @property
    def first_step(self) -> int:
        """How many steps of the present topology the position stands for, rounded down."""
        return self.dealing.consumed // self.dealing.step_size

    def from_epoch_start(self) -> Plan:
        """The whole epoch that the position lies in, on the same grid and in the same topology.

        What a step held before the position, if it was this topology that read it. Raises
        UsageError where the position is no whole number of its steps, so that others came before.
        """
        if self.dealing.consumed % self.dealing.step_size:
            raise UsageError(
                f"what a step held follows from the topology that read it, and the position "
                f"{self.dealing.consumed} is no whole number of steps of {self.dealing.step_size} "
                "samples: give the world size and batch size of that time"
            )
        return replace(
            self,
            checkpoint=self.checkpoint.at(epoch=self.checkpoint.epoch, consumed=0),
            schedule=Schedule(self.schedule.order, replace(self.dealing, consumed=0)),
        )

    def before(self, step: int) -> Plan:
        """The first `step` steps of the plan, without what comes after them.

        Raises UsageError unless 0 <= step <= steps.
        """
        step = checked("step", step, least=0, below=self.steps + 1)
        if step == self.steps:
            return self
        stop = self.dealing.consumed_after(step)
        return replace(
            self, schedule=Schedule(self.schedule.order, replace(self.dealing, length=stop))
        )

    def change(
        self,
        *,
        step: int,
        world_size: int | None = None,
        num_workers: int | None = None,
        batch_size: int | None = None,
    ) -> Plan:
        """What is left after the first `step` steps, read in another topology.

        The order goes on, on the grid that it began with, as it does for a loader that loads the
        state of that step in mid-epoch. What is not given stays. `plan.before(step)` and
        `plan.change(step=step, ...)` together read what is left of the epoch. Raises UsageError
        for a step at which nothing would be read before or after, and for what makes no topology.
        """
        if self.steps < 2:
            raise UsageError(
                f"a topology changes between two steps of an epoch, and this plan has "
                f"{self.steps}: plan with the other topology instead"
            )
        step = checked("step", step, least=1, below=self.steps)
        batching = self.batching
        if batch_size is not None:
            batching = replace(batching, batch_size=batch_size)
        topology = PlannedTopology.of(
            self.dealing.world_size if world_size is None else world_size,
            self.num_workers if num_workers is None else num_workers,
            batching,
        )
        consumed = self.dealing.consumed_after(step)
        dealing = replace(
            self.dealing,
            consumed=consumed,
            world_size=topology.world_size,
            batch_size=topology.batch_size,
            accumulate=topology.accumulate,
        )
        checkpoint = self.checkpoint.at(epoch=self.checkpoint.epoch, consumed=consumed)
        return replace(
            self,
            checkpoint=replace(checkpoint, global_batch=topology.global_batch),
            batching=batching,
            schedule=Schedule(self.schedule.order, dealing),
            num_workers=topology.num_workers,
        )

    def batch(self, step: int, rank: int) -> PlannedBatch:
        """What `rank` reads at `step`, counted from the plan's position.

        Raises UsageError for a step or a rank that the plan does not have.
        """
        step = checked("step", step, least=0, below=max(1, self.steps))
        rank = checked("rank", rank, least=0, below=self.dealing.world_size)
        if self.steps == 0:
            raise UsageError("the plan has no step: nothing is left of its epoch")
        read = self.schedule.reader(rank).steps(np.array([step], dtype=np.int64))
        size = int(read.size[0])
        return PlannedBatch(
            index=read.index[0, :size],
            shard=read.shard[0, :size],
            sample=read.sample[0, :size],
            valid=read.valid[0, :size],
            global_valid=int(read.global_valid[0]),
            group_valid=int(read.group_valid[0]),
        )

    def audit(self) -> PlanAudit:
        """Carry the plan out on integers and count; costs as much as reading all positions.

        Raises UsageError for more than 2**31 positions.
        """
        left = self.dealing.length - self.dealing.consumed
        if left > SAMPLES_TO_AUDIT:
            raise UsageError(
                f"an audit looks at every position, at most {SAMPLES_TO_AUDIT}, and {left} are "
                "left: audit a smaller dataset, or an epoch nearer to its end"
            )
        batches = [self.dealing.num_batches(rank) for rank in (0, self.dealing.world_size - 1)]
        return PlanAudit(
            tally=tally(self._parts(), self.schedule.order.num_samples),
            omitted=self.dealing.num_omitted,
            batches=(min(batches), max(batches)),
        )

    def _parts(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """Index and validity of every slot of every rank."""
        at_once = self.schedule.steps_at_once(1)
        for rank in range(self.dealing.world_size):
            reader = self.schedule.reader(rank)
            for first in range(0, self.dealing.num_batches(rank), at_once):
                stop = min(first + at_once, self.dealing.num_batches(rank))
                read = reader.steps(np.arange(first, stop, dtype=np.int64))
                present = np.arange(self.dealing.batch_size) < read.size[:, None]
                yield read.index[present], read.valid[present]
