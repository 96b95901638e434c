"""Random runs and launches, and the loaders of all ranks of a launch in one process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

import shardloader as sl
from shardloader.reading.catalog import open_catalog
from tests.corpora import content, kept_corpus, loaders_of

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from shardloader.format.manifest import Manifest
    from shardloader.planning.planned import Plan
    from tests.stress.ledger import Place

CORPORA = (
    (7,),
    (5, 0, 4, 7),
    (3, 0, 4, 1),
    (2, 2, 2, 2, 2),
    (17, 1, 0, 6),
    (1,) * 11,
    (23, 20),
    (0, 0, 31),
    (40, 0, 1, 13, 9, 0),
    (6,) * 12,
    (1,),
)
EMPTY_CORPUS = (0, 0)
WINDOWS = (None, 1, 2, 5, 13, 1000)
MAX_STATE_BYTES = 1024


@lru_cache(maxsize=64)
def manifest_of(counts: tuple[int, ...]) -> Manifest:
    return open_catalog(kept_corpus(counts)).manifest


@dataclass(frozen=True, kw_only=True)
class Run:
    """What defines an order."""

    counts: tuple[int, ...]
    seed: int
    window: int | None
    steps_per_epoch: int | None

    @property
    def num_samples(self) -> int:
        return sum(self.counts)

    @property
    def source(self) -> Path:
        return kept_corpus(self.counts)

    @property
    def order(self) -> dict[str, Any]:
        """The options of a dataset, and of a plan without a state."""
        return {
            "seed": self.seed,
            "shuffle": False if self.window is None else sl.Shuffle(window=self.window),
            "steps_per_epoch": self.steps_per_epoch,
        }

    @classmethod
    def drawn(cls, rng: Random) -> Run:
        steps = rng.randint(1, 9) if rng.random() < 0.25 else None
        counts = rng.choice(CORPORA)
        if steps is None and rng.random() < 0.02:
            counts = EMPTY_CORPUS
        seed = rng.choice([0, 1, 2**63 - 1, rng.randrange(2**63)])
        return cls(counts=counts, seed=seed, window=rng.choice(WINDOWS), steps_per_epoch=steps)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A topology, and what else one launch chooses."""

    world_size: int
    batch_size: int
    num_workers: int
    persistent: bool
    even: str
    grid: sl.Grid | None

    @property
    def options(self) -> dict[str, Any]:
        """What a plan asks, too."""
        return {
            "world_size": self.world_size,
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "even": self.even,
            "grid": self.grid,
        }

    @classmethod
    def drawn(cls, rng: Random, *, grid: sl.Grid | None, workers: bool) -> Launch:
        """Any launch; workers: whether it may have DataLoader workers."""
        num_workers = rng.randint(1, 3) if workers else 0
        return cls(
            world_size=rng.randint(1, 2 if workers else 6),
            batch_size=rng.choice([1, 2, 2, 3, 4, 5, 9]),
            num_workers=num_workers,
            persistent=num_workers > 0 and rng.random() < 0.5,
            even=rng.choice(["pad", "pad", "drop", "join"]),
            grid=grid,
        )


def drawn_grid(rng: Random) -> sl.Grid:
    return sl.Grid(ranks=rng.randint(1, 6), workers=rng.randint(1, 3), batch=rng.randint(1, 4))


def planned(
    run: Run, launch: Launch, at: Place, state: dict[str, Any] | None, **other: Any
) -> Plan:
    """The plan of what is left at a place; state: any of the run, None at its start."""
    epoch, consumed = at
    options = {**launch.options, **other}
    if state is None:
        assert consumed == 0
        return sl.plan(manifest_of(run.counts), epoch=epoch, **run.order, **options)
    return sl.plan(
        manifest_of(run.counts), state={**state, "epoch": epoch, "consumed": consumed}, **options
    )


Content = tuple[tuple[int, ...], tuple[bool, ...], int]


class Fleet:
    """The loaders of all ranks."""

    def __init__(self, run: Run, launch: Launch, *, log: Path | None, number: int) -> None:
        persistent = {"persistent_workers": True} if launch.persistent else {}
        options = {**launch.options, **run.order, **persistent}
        self.loaders = loaders_of(run.source, options.pop("world_size"), **options)
        if log is not None:
            for loader in self.loaders:
                loader.log_samples(log, attempt=number)

    def state(self) -> dict[str, Any]:
        """The state, as it comes back from JSON; it is small and the same on every rank."""
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states), f"states differ: {states}"
        told = json.dumps(states[-1])
        assert len(told) < MAX_STATE_BYTES
        loaded: dict[str, Any] = json.loads(told)
        assert loaded == states[0]
        return loaded

    def load(self, state: dict[str, Any]) -> None:
        for loader in self.loaders:
            loader.load_state_dict(json.loads(json.dumps(state)))

    def set_epoch(self, epoch: int, *, by_sampler: bool = False) -> None:
        for loader in self.loaders:
            (loader.sampler if by_sampler else loader).set_epoch(epoch)

    def skip(self, steps: int) -> None:
        for loader in self.loaders:
            loader.skip(steps)

    def iterators(self) -> list[Any]:
        return [iter(loader) for loader in self.loaders]

    @property
    def steps_left(self) -> list[int]:
        return [loader.steps_left for loader in self.loaders]

    @property
    def lengths(self) -> list[int]:
        return [len(loader) for loader in self.loaders]


def next_step(iterators: list[Any]) -> list[Content | None]:
    """What each rank gets next; None at its end."""
    batches = [next(iterator, None) for iterator in iterators]
    return [None if batch is None else content(batch) for batch in batches]


def planned_steps(plan: Plan) -> list[list[Content | None]]:
    """What each rank should get at each step."""
    found: list[list[Content | None]] = [[] for _ in range(plan.steps)]
    for rank in range(plan.dealing.world_size if plan.steps else 0):
        read = plan.schedule.reader(rank).steps(np.arange(plan.steps))
        for step, size in enumerate(read.size.tolist()):
            index, valid = read.index[step, :size].tolist(), read.valid[step, :size].tolist()
            told = (tuple(index), tuple(valid), int(read.global_valid[step]))
            found[step].append(told if size else None)
    return found


def told_by(plan: Plan, step: int, rank: int) -> Content | None:
    """The same of one batch, as `plan.batch` tells it."""
    batch = plan.batch(step, rank)
    told = (tuple(batch.index.tolist()), tuple(batch.valid.tolist()), batch.global_valid)
    return told if batch.index.size else None


def valid_in(step: list[Content | None]) -> list[int]:
    """The samples that a step trains on, rank after rank."""
    return [
        sample
        for batch in step
        if batch is not None
        for sample, is_valid in zip(batch[0], batch[1], strict=True)
        if is_valid
    ]
