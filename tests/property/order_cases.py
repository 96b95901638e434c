"""Hypothesis strategies for orders and topologies, and what several property tests do with them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from shardloader.order.dealing import EVEN_POLICIES
from shardloader.order.epoch import Order
from shardloader.order.grid import Grid
from shardloader.order.schedule import Schedule, StepSamples
from tests.order.reference import Reference

# Empty shards are common; one big shard among small ones is no rarity either.
COUNTS = st.lists(
    st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 25)), min_size=0, max_size=8
).map(tuple)
GRIDS = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
WINDOWS = st.one_of(st.none(), st.sampled_from([1, 2, 3, 7, 1000]), st.integers(1, 20))
SEEDS = st.one_of(st.sampled_from([0, 1, 2**32, 2**63 - 1]), st.integers(0, 2**63 - 1))
EPOCHS = st.integers(0, 4)
POLICIES = st.sampled_from(sorted(EVEN_POLICIES))


@dataclass(frozen=True)
class Topo:
    """A topology without a rank."""

    world_size: int
    batch_size: int

    @property
    def step(self) -> int:
        return self.world_size * self.batch_size


TOPOLOGIES = st.builds(Topo, st.integers(1, 7), st.integers(1, 6))


@dataclass(frozen=True)
class Case:
    """One order at one position in one topology."""

    counts: tuple[int, ...]
    seed: int
    window: int | None
    grid: tuple[int, int, int]
    steps_per_epoch: int | None
    epoch: int
    consumed: int
    topology: Topo
    even: str

    @property
    def order(self) -> Order:
        ranks, workers, batch = self.grid
        return Order(
            counts=np.array(self.counts, dtype=np.int64),
            seed=self.seed,
            window=self.window,
            grid=Grid(ranks=ranks, workers=workers, batch=batch),
            steps_per_epoch=self.steps_per_epoch,
        )

    @property
    def reference(self) -> Reference:
        return Reference(self.counts, self.seed, self.window, self.grid, self.steps_per_epoch)

    @property
    def schedule(self) -> Schedule:
        return Schedule.of(
            self.order,
            epoch=self.epoch,
            consumed=self.consumed,
            world_size=self.topology.world_size,
            batch_size=self.topology.batch_size,
            even=self.even,
        )

    def at(self, consumed: int, topology: Topo | None = None) -> Case:
        return replace(self, consumed=consumed, topology=topology or self.topology)


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    even: str | None = None,
    endless: bool | None = None,
    least_samples: int = 0,
) -> Case:
    """Any order at any position in any topology.

    even: one policy alone; endless: with steps_per_epoch always, never, or (None) sometimes.
    """
    counts = draw(COUNTS)
    if sum(counts) < least_samples:
        counts = (*counts, least_samples)
    grid = draw(GRIDS)
    lengths = st.integers(1, 9)
    steps_per_epoch = None
    if endless or (endless is None and sum(counts)):
        steps_per_epoch = draw(lengths if endless else st.one_of(st.none(), lengths))
    case = Case(
        counts=counts,
        seed=draw(SEEDS),
        window=draw(WINDOWS),
        grid=grid,
        steps_per_epoch=steps_per_epoch,
        epoch=draw(EPOCHS),
        consumed=0,
        topology=draw(TOPOLOGIES),
        even=even or draw(POLICIES),
    )
    return case.at(draw(st.integers(0, case.order.epoch_length)))


def read_by(schedule: Schedule, rank: int) -> StepSamples:
    """All that a rank reads of a schedule."""
    return schedule.reader(rank).steps(np.arange(schedule.dealing.num_steps))


def batches(schedule: Schedule) -> list[list[list[tuple[int, bool]]]]:
    """Index and validity of each slot of each rank at each step."""
    by_rank = [read_by(schedule, rank) for rank in range(schedule.dealing.world_size)]
    return [
        [
            list(
                zip(
                    read.index[step, : read.size[step]].tolist(),
                    read.valid[step, : read.size[step]].tolist(),
                    strict=True,
                )
            )
            for read in by_rank
        ]
        for step in range(schedule.dealing.num_steps)
    ]


def valid_samples(step: list[list[tuple[int, bool]]]) -> list[int]:
    """The samples that a step trains on, over all ranks, ascending."""
    return sorted(index for batch in step for index, valid in batch if valid)


def rest_of(case: Case) -> list[int]:
    """The samples at the positions not yet consumed of a case's epoch, ascending."""
    return sorted(index for _, index in case.reference.epoch(case.epoch)[case.consumed :])
