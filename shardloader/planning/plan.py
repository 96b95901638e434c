"""Who will read which sample at which step?

A plan is computed from a manifest's counts alone; no shard is opened. It is the same arithmetic
that the loader runs on, so what it says is what happens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardloader.errors import CheckpointError, UsageError
from shardloader.format.manifest import Manifest
from shardloader.order.audit import Tally, tally
from shardloader.order.batching import Batching
from shardloader.order.checkpoint import Checkpoint, starting_grid
from shardloader.order.epoch import Order, sample_counts
from shardloader.order.grid import Grid, default_grid
from shardloader.order.integers import MAX_SEED, checked
from shardloader.order.schedule import Schedule
from shardloader.order.window import Shuffle
from shardloader.reading.catalog import open_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from shardloader.order.dealing import Dealing

SAMPLES_TO_AUDIT = 1 << 31
MOST_RANKS = 1 << 20  # a table of so many turns is made in a fraction of a second


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
        topology = _Topology.of(
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


def plan(
    source: str | PathLike[str] | Manifest | Sequence[Any] | ArrayLike,
    *,
    batch_size: int | None = None,
    world_size: int = 1,
    num_workers: int = 0,
    epoch: int | None = None,
    seed: int | None = None,
    shuffle: bool | Shuffle | None = True,
    even: str = "pad",
    grid: Grid | None = None,
    steps_per_epoch: int | None = None,
    state: Mapping[str, Any] | None = None,
    accumulate: int | None = None,
    global_batch: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Plan:
    """Plan an epoch, or what is left of it after a state.

    source: where the dataset lies, its Manifest, or samples a shard as integers; storage_options:
    fsspec's, for a source that is a URL, of which only the manifest is read. batch_size,
    world_size, num_workers: the topology, samples a rank and step, ranks, DataLoader workers a
    rank; accumulate, global_batch: as for ShardLoader, and then batch_size may follow from them.
    epoch, seed: 0 by default. shuffle, even, grid, steps_per_epoch: as for ShardDataset.
    state: what ShardLoader.state_dict() returned, to go on from; its epoch, seed, shuffle and
    steps_per_epoch hold, and its grid where a loader would keep it.

    Raises UsageError for what makes no sense, and for more than 2**20 ranks; CheckpointError for a
    state of another dataset, or one that an argument contradicts.
    """
    dataset = _dataset(source, storage_options)
    digest = dataset.digest
    if batch_size is None and global_batch is None:
        raise UsageError("a plan deals batches: give batch_size=, or global_batch=")
    batching = Batching(batch_size=batch_size, accumulate=accumulate, global_batch=global_batch)
    topology = _Topology.of(world_size, num_workers, batching)
    shuffled = Shuffle.of(shuffle)
    window = shuffled.window if shuffled else None
    if state is None:
        steps = steps_per_epoch
        wanted = _wanted(digest, epoch or 0, seed or 0, window=window, steps_per_epoch=steps)
    else:
        wanted = Checkpoint.from_state(state)
        _check_agrees(wanted, digest, epoch=epoch, seed=seed, steps_per_epoch=steps_per_epoch)
        if shuffle is not True and window != wanted.window:
            raise _contradicted("shuffle", wanted.window, shuffle)
    checkpoint = _on_its_grid(wanted, topology, grid, fresh=state is None)
    _check_ranks("grid=", checkpoint.grid.ranks)
    return Plan(
        schedule=_schedule(dataset.counts, checkpoint, topology, even),
        checkpoint=replace(checkpoint, global_batch=topology.global_batch),
        batching=batching,
        num_workers=topology.num_workers,
        names=dataset.names,
        sizes=dataset.sizes,
    )


class Change(NamedTuple):
    """Another topology from `step` on; None where nothing changes."""

    step: int
    world_size: int | None = None
    num_workers: int | None = None
    batch_size: int | None = None


def stretches(plan: Plan, changes: Sequence[Change]) -> tuple[Plan, ...]:
    """The plan, cut where its topology changes: one plan a topology, in order.

    The changes' steps count from the plan's position, over all stretches, as a training loop
    counts its steps; they ascend. Together the stretches read what is left of the epoch. Raises
    UsageError for steps that do not ascend, or that lie behind the epoch's end.
    """
    parts: list[Plan] = []
    begun = 0
    for change in changes:
        step = checked("the step of a change", change.step, least=1)
        if not begun < step < begun + plan.steps:
            where = f"after step {begun}, where the change before it is, and " if begun else ""
            raise UsageError(
                f"a topology changes {where}before the epoch's end at step {begun + plan.steps}, "
                f"and a change at step {step} does not: give the changes in the order of their "
                "steps"
            )
        parts.append(plan.before(step - begun))
        plan = plan.change(**change._replace(step=step - begun)._asdict())
        begun = step
    return (*parts, plan)


class _Topology(NamedTuple):
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
    def of(cls, world_size: Any, num_workers: Any, batching: Batching) -> _Topology:
        """A topology that a plan can be made of; raises UsageError for anything else."""
        world_size = checked("world_size", world_size, least=1)
        _check_ranks("world_size=", world_size)
        batch = batching.on(world_size)
        return cls(
            world_size=world_size,
            num_workers=checked("num_workers", num_workers, least=0, below=2**16),
            batch_size=batch.batch_size,
            accumulate=batch.accumulate,
            is_grouped=batching.is_grouped,
        )


def _check_ranks(argument: str, ranks: int) -> None:
    if ranks > MOST_RANKS:
        raise UsageError(
            f"a plan looks at {MOST_RANKS:,} ranks at most, and {argument} says {ranks:,}: give "
            "the number of data-parallel ranks"
        )


def _schedule(
    counts: NDArray[np.int64], checkpoint: Checkpoint, topology: _Topology, even: str
) -> Schedule:
    order = Order(
        counts=counts,
        seed=checkpoint.seed,
        window=checkpoint.window,
        grid=checkpoint.grid,
        steps_per_epoch=checkpoint.steps_per_epoch,
    )
    checkpoint.check_fits(order)
    return Schedule.of(
        order,
        epoch=checkpoint.epoch,
        consumed=checkpoint.consumed,
        world_size=topology.world_size,
        batch_size=topology.batch_size,
        even=even,
        accumulate=topology.accumulate,
    )


class _Dataset(NamedTuple):
    """What a plan knows of its dataset: samples a shard, and what a manifest says besides."""

    counts: NDArray[np.int64]
    digest: str
    names: tuple[str, ...] | None
    sizes: NDArray[np.int64] | None


def _dataset(source: Any, storage_options: Mapping[str, Any] | None) -> _Dataset:
    first = source[0] if isinstance(source, (list, tuple)) and source else source
    if isinstance(first, (str, PathLike)):
        source = open_catalog(source, storage_options=storage_options).manifest
    elif storage_options:
        raise UsageError(
            "storage_options= are those of a store, and the source is no URL: leave them out"
        )
    if isinstance(source, Manifest):
        return _Dataset(source.counts, source.digest, source.names, source.sizes)
    return _Dataset(sample_counts(source), "", None, None)


def _wanted(
    digest: str, epoch: Any, seed: Any, *, window: int | None, steps_per_epoch: int | None
) -> Checkpoint:
    """The start of an epoch, on a grid that is yet to be chosen."""
    epoch = checked("epoch", epoch, least=0, below=2**62)
    seed = checked("seed", seed, least=0, below=MAX_SEED)
    if steps_per_epoch is not None:
        steps_per_epoch = checked("steps_per_epoch", steps_per_epoch, least=1, below=2**40)
    return Checkpoint(
        dataset=digest,
        seed=seed,
        epoch=epoch,
        consumed=0,
        grid=Grid(ranks=1, workers=1, batch=1),
        window=window,
        steps_per_epoch=steps_per_epoch,
    )


def _on_its_grid(
    wanted: Checkpoint, topology: _Topology, given: Grid | None, *, fresh: bool
) -> Checkpoint:
    """The checkpoint on the grid that a loader in this topology would go on with."""
    present = default_grid(
        world_size=topology.world_size,
        num_workers=topology.num_workers,
        batch_size=topology.batch_size,
        shuffled=wanted.window is not None,
    )
    if fresh:
        return replace(wanted, grid=given or present)
    grid = starting_grid(
        wanted.grid,
        present,
        given=given,
        consumed=wanted.consumed,
        steps_per_epoch=wanted.steps_per_epoch,
        global_batch=topology.global_batch if topology.is_grouped else None,
    )
    return replace(wanted, grid=grid)


def _check_agrees(loaded: Checkpoint, digest: str, **given: int | None) -> None:
    """Refuse a state of another dataset, or arguments that say other than the state."""
    if digest and loaded.dataset != digest:
        raise CheckpointError(
            f"a state is planned with the dataset that it was made with, and the state has the "
            f"digest {loaded.dataset!r}, this dataset {digest!r}: give the source of that run"
        )
    for name, value in given.items():
        if value is not None and value != getattr(loaded, name):
            raise _contradicted(name, getattr(loaded, name), value)


def _contradicted(name: str, of_state: Any, given: Any) -> CheckpointError:
    return CheckpointError(
        f"a state says which {name} it is of, {of_state!r}, and {name}={given!r} says another: "
        f"leave {name}= out, or plan without the state"
    )
