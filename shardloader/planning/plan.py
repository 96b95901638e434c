"""How is a plan made: from which dataset, for which topology, and from which position on?"""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

from shardloader.errors import CheckpointError, UsageError
from shardloader.format.manifest import Manifest
from shardloader.order.batching import Batching
from shardloader.order.checkpoint import Checkpoint, starting_grid
from shardloader.order.epoch import Order, sample_counts
from shardloader.order.grid import Grid, default_grid
from shardloader.order.integers import MAX_SEED, checked
from shardloader.order.schedule import Schedule
from shardloader.order.window import Shuffle
from shardloader.planning.planned import Plan
from shardloader.planning.topology import PlannedTopology, check_ranks
from shardloader.reading.catalog import open_catalog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import ArrayLike, NDArray


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
    if batch_size is None and global_batch is None:
        raise UsageError("a plan deals batches: give batch_size=, or global_batch=")
    batching = Batching(batch_size=batch_size, accumulate=accumulate, global_batch=global_batch)
    topology = PlannedTopology.of(world_size, num_workers, batching)
    asked = _Asked(epoch, seed, shuffle, steps_per_epoch)
    begun = asked.begun(dataset.digest) if state is None else asked.loaded(dataset.digest, state)
    checkpoint = _on_its_grid(begun, topology, grid, fresh=state is None)
    check_ranks("grid=", checkpoint.grid.ranks)
    return Plan(
        schedule=_schedule(dataset.counts, checkpoint, topology, even),
        checkpoint=replace(checkpoint, global_batch=topology.global_batch),
        batching=batching,
        num_workers=topology.num_workers,
        names=dataset.names,
        sizes=dataset.sizes,
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


class _Asked(NamedTuple):
    """Which epoch was asked for; None where nothing was said, shuffle=True where that is so."""

    epoch: Any
    seed: Any
    shuffle: bool | Shuffle | None
    steps_per_epoch: Any

    @property
    def window(self) -> int | None:
        """Samples of the shuffle's window; None without one."""
        shuffled = Shuffle.of(self.shuffle)
        return shuffled.window if shuffled else None

    def begun(self, digest: str) -> Checkpoint:
        """The start of the epoch, on a grid that is yet to be chosen."""
        steps = self.steps_per_epoch
        if steps is not None:
            steps = checked("steps_per_epoch", steps, least=1, below=2**40)
        return Checkpoint(
            dataset=digest,
            seed=checked("seed", self.seed or 0, least=0, below=MAX_SEED),
            epoch=checked("epoch", self.epoch or 0, least=0, below=2**62),
            consumed=0,
            grid=Grid(ranks=1, workers=1, batch=1),
            window=self.window,
            steps_per_epoch=steps,
        )

    def loaded(self, digest: str, state: Mapping[str, Any]) -> Checkpoint:
        """The position of a state; refuses that of another dataset, or what contradicts it."""
        found = Checkpoint.from_state(state)
        if digest and found.dataset != digest:
            raise CheckpointError(
                f"a state is planned with the dataset that it was made with, and the state has the "
                f"digest {found.dataset!r}, this dataset {digest!r}: give the source of that run"
            )
        for name in ("epoch", "seed", "steps_per_epoch"):
            given = getattr(self, name)
            if given is not None and given != getattr(found, name):
                raise _contradicted(name, getattr(found, name), given)
        if self.shuffle is not True and self.window != found.window:
            raise _contradicted("shuffle", found.window, self.shuffle)
        return found


def _on_its_grid(
    begun: Checkpoint, topology: PlannedTopology, given: Grid | None, *, fresh: bool
) -> Checkpoint:
    """The checkpoint on the grid that a loader in this topology would go on with."""
    present = default_grid(
        world_size=topology.world_size,
        num_workers=topology.num_workers,
        batch_size=topology.batch_size,
        shuffled=begun.window is not None,
    )
    if fresh:
        return replace(begun, grid=given or present)
    grid = starting_grid(
        begun.grid,
        present,
        given=given,
        consumed=begun.consumed,
        steps_per_epoch=begun.steps_per_epoch,
        global_batch=topology.global_batch if topology.is_grouped else None,
    )
    return replace(begun, grid=grid)


def _schedule(
    counts: NDArray[np.int64], checkpoint: Checkpoint, topology: PlannedTopology, even: str
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


def _contradicted(name: str, of_state: Any, given: Any) -> CheckpointError:
    return CheckpointError(
        f"a state says which {name} it is of, {of_state!r}, and {name}={given!r} says another: "
        f"leave {name}= out, or plan without the state"
    )
