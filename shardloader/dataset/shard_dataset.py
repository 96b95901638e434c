"""The dataset that users make: options and a catalog, and torchdata's protocol.

`ShardLoader` takes it as it is. Under a plain `StatefulDataLoader` it divides itself over ranks
and workers and resumes exactly in the same topology. Facts of torchdata 0.11 that shape this
module: a state must be a fresh plain value; a worker that was exhausted is asked again after a
load and must stop again; a state goes to `load_state_dict` and then `iter` follows, so `__iter__`
must not reset what was loaded.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import IterableDataset, get_worker_info

from shardloader.dataset.batches import BatchMaker
from shardloader.dataset.dealt_again import refuse_second_dealing
from shardloader.dataset.looking_ahead import looking_ahead
from shardloader.dataset.map_dataset import MapDataset
from shardloader.dataset.recipe import (
    Options,
    Recipe,
    checked_fields,
)
from shardloader.dataset.samples import SampleReader
from shardloader.dataset.skipping import Carrier, Watch, check_damage, checked_on_error
from shardloader.dataset.torch_fields import TORCH_DECODERS
from shardloader.distributed.environment import local_ranks
from shardloader.distributed.resolve import resolve_topology
from shardloader.errors import CheckpointError, TopologyError, UnsupportedError, UsageError
from shardloader.order.checkpoint import Checkpoint
from shardloader.order.grid import default_grid
from shardloader.order.integers import checked
from shardloader.order.schedule import Schedule
from shardloader.order.window import Shuffle
from shardloader.planning.least_cache import checked_room, reach_of
from shardloader.reading.cache import DEFAULT
from shardloader.reading.catalog import open_catalog, refuse_damage
from shardloader.reading.decode import resolve

if TYPE_CHECKING:
    from os import PathLike

    from shardloader.dataset.recipe import Collate, Source
    from shardloader.dataset.skipping import Skip
    from shardloader.dataset.transform import Transform
    from shardloader.format.manifest import Manifest
    from shardloader.order.grid import Grid
    from shardloader.order.topology import Topology
    from shardloader.reading.cache import Cache

log = logging.getLogger("shardloader")


class ShardDataset(IterableDataset[Any]):
    """Samples of tar shards, dealt to ranks and workers in one global order.

    source: a folder with a manifest or with shards, a brace pattern, or a list of shards; or URLs:
    of a remote folder with a manifest (`s3://bucket/corpus`), a pattern or list of shards that have
    their indexes beside them. fsspec opens those with storage_options, which are passed on to
    workers, and shown nowhere.
    seed, shuffle: what the order is drawn from; shuffle is True (`Shuffle()`), a
    `Shuffle(window=)` or False. fields: which fields are read (None: all). decode: "default", a
    mapping of fields to decoders (callables, `Jpeg`, `Png`, `RawArray`, or names: "text", "json",
    "int", "npy", "jpeg", "png", "rgb", "mask", "torch", "bytes"), or None for raw bytes.
    transform: a function from sample to sample, both mappings, or to None, which refuses it; if it
    takes `rng` it gets a numpy generator keyed by seed, epoch and sample. reseed: seed the global
    generators of random, numpy and torch before each sample instead, in worker processes. even:
    "pad", "drop" or "join", what the epoch's last step is. on_error: "raise" stops at a bad sample;
    "skip", or a `Skip` with limits of its own, fills its slot with another sample and marks it
    invalid. topology, grid: see `Topology` and `Grid`; by default the process's own.
    steps_per_epoch: an epoch of fixed length over an endless order. index_dir: where indexes lie
    if not beside the shards. cache: a `Cache`, where remote and compressed shards are kept;
    "default" is ~/.cache/shardloader, of at most 50 GB; with None nothing is kept, remote shards
    are read by ranges alone, and compressed ones are refused, but for remote ones that have a seek
    table. on_change: "raise" refuses a state of another dataset; with "next-epoch" a ShardLoader
    ends the epoch of a state that was made before shards were appended on the shards that it had,
    and takes the others from the next epoch on.

    batch_size, collate_fn, meta: for use without ShardLoader. With a batch_size it yields
    batches as ShardLoader's are, for `DataLoader(dataset, batch_size=None)`. Without, it yields
    samples: mappings of the decoded fields, with `__key__` (str), `__index__` (int, the sample's
    number in the dataset) and `__valid__` (bool, False for a pad).

    Raises UsageError for options that make no sense. The source is opened when first needed (by
    `iter`, `num_samples`, or a loader's `len` or `state_dict`), which writes the indexes of shards
    that have none, and raises UsageError, ManifestError or ShardError for what is no dataset.
    """

    def __init__(
        self,
        source: Source,
        *,
        seed: int = 0,
        shuffle: bool | Shuffle | None = True,
        fields: Any = None,
        decode: str | Mapping[str, Callable[[bytes], Any] | str | None] | None = "default",
        transform: Transform | None = None,
        reseed: bool = False,
        even: str = "pad",
        on_error: str | Skip = "raise",
        topology: Topology | None = None,
        grid: Grid | None = None,
        steps_per_epoch: int | None = None,
        index_dir: str | PathLike[str] | None = None,
        cache: Cache | str | None = DEFAULT,
        storage_options: Mapping[str, Any] | None = None,
        on_change: str = "raise",
        batch_size: int | None = None,
        collate_fn: Collate | None = None,
        meta: str = "all",
    ) -> None:
        super().__init__()
        self.options = Options(
            source=source,
            seed=seed,
            shuffle=Shuffle.of(shuffle),
            fields=checked_fields(fields),
            decode=resolve(decode, named=TORCH_DECODERS),
            transform=transform,
            reseed=reseed,
            even=even,
            skip=checked_on_error(on_error),
            topology=topology,
            grid=grid,
            steps_per_epoch=steps_per_epoch,
            index_dir=index_dir,
            cache=cache,
            storage_options=storage_options,
            on_change=on_change,
            batch_size=batch_size,
            collate_fn=collate_fn,
            meta=meta,
        )
        # The epoch, and whether set_epoch named it; shared, so that it reaches workers that live.
        self._epoch = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._recipe: Recipe | None = None
        self._resolved: Topology | None = None
        self._of_parent: Topology | None = None
        self._unpickled_in: int | None = None
        self._reader: SampleReader | None = None
        self._watch: Watch | None = None
        self._loaded: _WorkerState | None = None
        self._running: _Running | None = None

    @property
    def recipe(self) -> Recipe:
        """The options with the opened catalog; opens it at the first call."""
        if self._recipe is None:
            options = self.options
            catalog = open_catalog(
                options.source,
                index_dir=options.index_dir,
                cache=options.cache,
                keep_damaged=options.skip is not None,
                storage_options=options.storage_options,
            )
            if options.skip is None:
                refuse_damage(catalog)
            else:
                check_damage(options.skip, catalog.manifest)
            self._recipe = Recipe(options=options, catalog=catalog)
        return self._recipe

    @property
    def manifest(self) -> Manifest:
        """The dataset's list of shards."""
        return self.recipe.catalog.manifest

    @property
    def num_samples(self) -> int:
        """Samples of the whole dataset, N. There is no `len`: it would depend on the loader."""
        return self.manifest.num_samples

    def resolve_topology(self) -> Topology:
        """This process's data-parallel topology, looked up once."""
        if self._resolved is None:
            spawned_worker = get_worker_info() and self._unpickled_in == os.getpid()
            self._resolved = (spawned_worker and self._of_parent) or resolve_topology(
                self.options.topology
            )
        return self._resolved

    def as_map(self) -> MapDataset:
        """The map-style dataset of the same samples, in the manifest's order."""
        return MapDataset(self.recipe)

    def __getitem__(self, index: object) -> NoReturn:
        """Refused: samples by number are `as_map()`'s."""
        raise UnsupportedError(
            f"a ShardDataset gives its samples in the order of an epoch, and [{index!r}] asks for "
            "one by number: dataset.as_map() has len and [i], in the order of the shards"
        )

    def set_epoch(self, epoch: int) -> None:
        """Read epoch `epoch` next; reaches persistent workers too. Call it before each epoch."""
        self._epoch[0] = checked("set_epoch(epoch)", epoch, least=0, below=2**62)
        self._epoch[1] = 1

    def __iter__(self) -> Iterator[Any]:
        """This rank's and worker's samples, or batches if the dataset has a batch_size.

        Raises UsageError under a trainer that would divide them over the ranks again.
        """
        refuse_second_dealing(self, world_size=self.resolve_topology().world_size)
        self._adopt_loaded_epoch()
        running = self._plan(int(self._epoch[0]))
        if self._loaded is not None:
            running.taken = self._loaded.taken_in(running)
            self._loaded = None
        self._running = running
        return self._items(running)

    def _items(self, running: _Running) -> Iterator[Any]:
        if self._reader is None:
            num_readers = local_ranks() * max(1, running.num_workers)
            self._reader = SampleReader(self.recipe, num_readers=num_readers)
        options, one = self.options, self.options.batch_size is None
        rank, worker, num_workers = running.reader
        ranks_per_node = local_ranks() * (running.num_workers // num_workers)
        reach = reach_of(
            running.schedule,
            num_workers=0 if get_worker_info() is None else num_workers,
            ranks_per_node=ranks_per_node,
        )
        room = checked_room(self.recipe.catalog, running.schedule.order, reach)
        maker = BatchMaker(
            self._reader,
            schedule=running.schedule,
            rank=running.reading_rank,
            skip=options.skip,
            collate_fn=options.collate_fn,
            meta=options.meta,
        )
        if self._watch is None:
            self._watch = Watch(options.skip, self.manifest.names)
        watch = self._watch
        for carried in looking_ahead(
            self._reader,
            running.schedule,
            rank,
            worker=worker,
            num_workers=num_workers,
            skip=running.taken,
            room=room,
            reach=reach,
            items=lambda blocks: chain.from_iterable(
                map(maker.samples if one else maker.batches, blocks)
            ),
        ):
            item, faults = carried if type(carried) is Carrier else Carrier(carried)
            watch.take(options.batch_size or 1, faults)
            running.taken += 1
            yield item

    def _plan(self, epoch: int) -> _Running:
        """What this worker of this rank reads of an epoch."""
        topology = self.resolve_topology()
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        options = self.options
        by_sample = options.batch_size is None and options.shuffle is None
        default = default_grid(
            world_size=topology.world_size * (num_workers if by_sample else 1),
            num_workers=num_workers,
            batch_size=options.batch_size or 1,
            shuffled=options.shuffle is not None,
        )
        recipe = self.recipe
        checkpoint = recipe.start_of(epoch, options.grid or default)
        return _Running(
            recipe, checkpoint, topology, worker, num_workers, options.batch_size, taken=0
        )

    def state_dict(self) -> dict[str, Any]:
        """The state of this process's iterator, for the same rank and worker; plain and fresh."""
        if self._loaded is not None:
            return self._loaded.to_state()
        running = self._running or self._plan(int(self._epoch[0]))
        return running.state().to_state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state at the next `iter`.

        Raises CheckpointError for what is no state; the next `iter` does if it does not fit.
        """
        self._loaded = _WorkerState.from_state(state_dict)

    def _adopt_loaded_epoch(self) -> None:
        """A loaded position belongs to its epoch, unless set_epoch named another."""
        if self._loaded is None:
            return
        loaded, named = self._loaded, int(self._epoch[0])
        if not self._epoch[1]:
            self._epoch[0] = loaded.checkpoint.epoch
        elif loaded.checkpoint.epoch != named:
            self._loaded = None
            unread = self._plan(loaded.checkpoint.epoch).num_items - loaded.taken
            if unread > 0:
                log.warning(
                    "set_epoch(%d) drops the loaded position of epoch %d, with %d items of this "
                    "worker unread: epoch %d starts from its beginning",
                    named,
                    loaded.checkpoint.epoch,
                    unread,
                    named,
                )

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is spawned, not forked, can't see the process group of the rank that
        # starts it, so its topology travels along; a spawned rank must look for itself.
        try:
            travelling = self._resolved or resolve_topology(self.options.topology)
        except TopologyError:
            travelling = None
        here = dict.fromkeys(("_reader", "_watch", "_running", "_resolved"))
        return {**self.__dict__, **here, "_of_parent": travelling}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._unpickled_in = os.getpid()


class _Running:
    """One pass of one worker: what it reads, and how many items it has given."""

    def __init__(
        self,
        recipe: Recipe,
        checkpoint: Checkpoint,
        topology: Topology,
        worker: int,
        num_workers: int,
        batch_size: int | None,
        *,
        taken: int,
    ) -> None:
        self.checkpoint = checkpoint
        self.world_size = topology.world_size
        self.num_workers = num_workers
        self.batch_size = batch_size
        self.taken = taken
        self._recipe = recipe
        self._rank = topology.rank
        self._worker = worker
        self._made: Schedule | None = None

    @property
    def reader(self) -> tuple[int, int, int]:
        """The rank that reads, and its worker of so many.

        Batches: worker w makes the steps w, w + W, ... of its rank. Samples: every worker of
        every rank is a reader of its own, so that all have equally many.
        """
        if self.batch_size is None:
            return self._rank * self.num_workers + self._worker, 0, 1
        return self._rank, self._worker, self.num_workers

    @property
    def reading_rank(self) -> int:
        """The rank of the schedule that this worker reads for."""
        return self.reader[0]

    @property
    def schedule(self) -> Schedule:
        """What all readers read of the epoch."""
        if self._made is None:
            self._made = self._schedule()
        return self._made

    def _schedule(self) -> Schedule:
        readers = self.world_size * (self.num_workers if self.batch_size is None else 1)
        return Schedule.of(
            self._recipe.order(self.checkpoint.grid),
            epoch=self.checkpoint.epoch,
            consumed=0,
            world_size=readers,
            batch_size=self.batch_size or 1,
            even=self._recipe.options.even,
        )

    @property
    def num_items(self) -> int:
        """Items of the whole pass."""
        rank, worker, num_workers = self.reader
        return len(range(worker, self.schedule.dealing.num_batches(rank), num_workers))

    def state(self) -> _WorkerState:
        """The state of this pass now."""
        return _WorkerState(
            self.checkpoint, self.taken, self.world_size, self.num_workers, self.batch_size
        )


class _WorkerState:
    """A position of one worker, which only the same worker of the same topology can take."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        taken: int,
        world_size: int,
        num_workers: int,
        batch_size: int | None,
    ) -> None:
        self.checkpoint = checkpoint
        self.taken = taken
        self.world_size = world_size
        self.num_workers = num_workers
        self.batch_size = batch_size

    def to_state(self) -> dict[str, Any]:
        return {
            **self.checkpoint.to_state(),
            "taken": self.taken,
            "world_size": self.world_size,
            "num_workers": self.num_workers,
            "batch_size": self.batch_size,
        }

    @classmethod
    def from_state(cls, state: Any) -> _WorkerState:
        own = ("taken", "world_size", "num_workers", "batch_size")
        if not isinstance(state, Mapping) or any(name not in state for name in own):
            raise CheckpointError(
                f"a state of ShardDataset has the keys {', '.join(own)} besides those of a "
                "ShardLoader's: load what this dataset's state_dict() returned, or use ShardLoader"
            )
        checkpoint = Checkpoint.from_state({k: v for k, v in state.items() if k not in own})
        try:
            taken = checked("taken", state["taken"], least=0)
        except UsageError as error:
            raise CheckpointError(f"not a state of a dataset: {error}") from None
        return cls(checkpoint, taken, *(state[name] for name in own[1:]))

    def taken_in(self, running: _Running) -> int:
        """Items to leave out in a pass; raises CheckpointError if this is no position of it."""
        self.checkpoint.check_matches(running.checkpoint)
        for name in ("world_size", "num_workers", "batch_size"):
            was, now = getattr(self, name), getattr(running, name)
            if was != now:
                raise CheckpointError(
                    f"under a plain StatefulDataLoader a state resumes in the topology that it was "
                    f"made in, and {name} was {was} and is {now}: use ShardLoader, whose state "
                    "resumes in any"
                )
        if self.checkpoint.grid != running.checkpoint.grid:
            raise CheckpointError(
                f"the state was made on the grid {self.checkpoint.grid.to_list()}, and this "
                f"dataset reads on {running.checkpoint.grid.to_list()}: give the same grid="
            )
        if self.taken > running.num_items:
            raise CheckpointError(
                f"this worker's pass has {running.num_items} items, and the state has taken "
                f"{self.taken}: it is damaged, or was not made by this dataset"
            )
        return self.taken
