"""What runs in a worker: the batches of one rank, from a position that the main process sets.

The position travels in a shared tensor, so that it reaches workers that live through epochs. A
stream is read by ShardLoader alone; whoever else iterates it would divide the data twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
from torch.multiprocessing import get_sharing_strategy
from torch.utils.data import IterableDataset, get_worker_info

from shardloader.dataset.batches import BatchMaker
from shardloader.dataset.looking_ahead import looking_ahead
from shardloader.dataset.recipe import pickling_error
from shardloader.dataset.samples import SampleReader
from shardloader.dataset.skipping import Carrier
from shardloader.errors import UnsupportedError, UsageError
from shardloader.loader.device import ToPin
from shardloader.loader.orphan import end_with_parent
from shardloader.loader.parcel import Parcel
from shardloader.loader.read_ahead import TASKS_MORE, read_ahead
from shardloader.loader.ring import Sender
from shardloader.order.grid import Grid
from shardloader.order.schedule import Schedule
from shardloader.planning.least_cache import reach_of
from shardloader.reading.diary import Diary, Stage
from shardloader.reading.needs import ALL_ROOM, Room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor
    from torch.utils.data._utils.worker import WorkerInfo

    from shardloader.dataset.batches import RowBlock, RowGroup
    from shardloader.dataset.recipe import Collate, Recipe
    from shardloader.dataset.shard_dataset import ShardDataset
    from shardloader.loader.ring import Ring
    from shardloader.loader.tally import Tally
    from shardloader.order.topology import Topology

BLOCKS_A_BATCH: Final = 4  # large pieces that a batch may have before blocks are made for once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamOptions:
    """What a stream needs to know besides its position.

    accumulate: steps of an optimiser step; is_grouped: whether batches carry `__group_valid__`;
    decode_threads: threads that decode what is slow to decode, where there are no workers;
    in_flight: batches of a worker that are made or being read at a time; local_ranks: that read on
    this node; tally: where whoever reads counts; pins: whether batches of workers are pinned for a
    device.
    """

    recipe: Recipe
    topology: Topology
    batch_size: int
    accumulate: int
    is_grouped: bool
    decode_threads: int
    in_flight: int
    local_ranks: int
    collate_fn: Collate | None
    meta: str
    tally: Tally
    pins: bool


class BatchStream(IterableDataset[Any]):
    """This rank's batches from the position last set."""

    def __init__(self, options: StreamOptions) -> None:
        super().__init__()
        self._options = options
        self.ring: Ring | None = None  # what batches cross in, where there are workers
        self.pages: Tensor | None = None  # where they write what they do
        self.diary = Diary(counts=options.tally.own)  # of this process, where there are none
        self._sender: Sender | None = None
        self._schedule: Schedule | None = None  # of the position, where there are no workers
        self._is_early = False
        # epoch, consumed, ranks, workers, batch; and the room in the cache
        self._position = torch.zeros(7, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._reader: SampleReader | None = None

    def start_at(
        self, schedule: Schedule, *, epoch: int, room: Room = ALL_ROOM, is_early: bool = False
    ) -> None:
        """Let the next iterator give a schedule's batches.

        room: that each reader has in the node's cache; is_early: whether it begins to read the
        first one when it is made, in a thread.
        """
        order, dealing = schedule.order, schedule.dealing
        position = [epoch, dealing.consumed, *order.grid.to_list(), *room]
        self._position.copy_(torch.tensor(position, dtype=torch.int64))
        # Of its own, since a schedule remembers passes, and rows may be evaluated in a thread.
        self._schedule, self._is_early = Schedule(order, dealing), is_early

    @property
    def may_be_early(self) -> bool:
        """Whether nothing is fetched, and so nothing is counted, before a batch is asked for.

        Known after the first pass.
        """
        reader = self._reader
        return reader is not None and not (reader.fetches_ahead or reader.waits_for_a_store)

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is None and self._schedule is not None:
            return self._batches(self._schedule)
        epoch, consumed, ranks, workers, batch, *_ = self._position.tolist()
        options = self._options
        schedule = Schedule.of(
            options.recipe.order(Grid(ranks=ranks, workers=workers, batch=batch)),
            epoch=epoch,
            consumed=consumed,
            world_size=options.topology.world_size,
            batch_size=options.batch_size,
            even=options.recipe.options.even,
            accumulate=options.accumulate,
        )
        return self._batches(schedule)

    def _batches(self, schedule: Schedule) -> Iterator[Any]:
        options = self._options
        info = get_worker_info()
        reader = self._reader = self._reader or self._new_reader(info)
        self.diary.start_pass()
        maker = BatchMaker(
            reader,
            schedule=schedule,
            rank=options.topology.rank,
            skip=options.recipe.options.skip,
            collate_fn=options.collate_fn,
            meta=options.meta,
            is_grouped=options.is_grouped,
            reads_together=info is None,
        )
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        threads = options.decode_threads if info is None else 0
        reach = reach_of(
            schedule,
            num_workers=info.num_workers if info else 0,
            ranks_per_node=options.local_ranks,
        )
        room = Room(*self._position[5:].tolist())
        if reader.fetches_ahead and room != ALL_ROOM:
            threads = min(threads, max(1, reach.rows_ahead - TASKS_MORE - 1))
        read = maker.read if info is not None else self._noted(maker.read)

        def batches_of(blocks: Iterator[RowBlock]) -> Iterator[Any]:
            groups = read_ahead(
                chain.from_iterable(map(maker.groups, blocks)),
                read,
                is_worth_it=maker.is_slow,
                num_threads=threads,
                is_early=self._is_early,
            )
            return chain.from_iterable(starmap(maker.join, groups))

        batches = looking_ahead(
            reader,
            schedule,
            options.topology.rank,
            worker=worker,
            num_workers=num_workers,
            room=room,
            reach=reach,
            items=batches_of,
        )
        if info is None:
            return batches
        strategy: str = get_sharing_strategy()  # type: ignore[no-untyped-call]
        pack = _as_it_is if strategy == "file_system" else self._packer(info.id)
        return self._handed_over(batches, pack)

    def _new_reader(self, info: WorkerInfo | None) -> SampleReader:
        """A reader of this process, which may be a worker's."""
        options = self._options
        if info is not None:
            end_with_parent()
        if info is not None and self.pages is not None:
            counts = options.tally.of_worker(info.id)
            self.diary = Diary(self.pages[info.id].numpy(), counts=counts)
        num_readers = options.local_ranks * (info.num_workers if info else 1)
        return SampleReader(options.recipe, num_readers=num_readers, diary=self.diary)

    def _noted(self, read: Callable[[RowGroup], Any]) -> Callable[[RowGroup], Any]:
        """The same, with a note of how many batches were read."""

        def noted(group: RowGroup) -> Any:
            result = read(group)
            page = self.diary.page
            page.begin(Stage.IDLE)
            page.made(len(group.rows))
            return result

        return noted

    def _handed_over(self, batches: Iterator[Any], pack: Callable[[Any], Any]) -> Iterator[Any]:
        """What crosses to the main process, and is a batch there."""
        page = self.diary.page

        def packed(batch: Any) -> Any:
            return ToPin(pack(batch)) if self._options.pins else pack(batch)

        for batch in batches:
            if type(batch) is Carrier:
                crossing = batch._replace(batch=packed(batch.batch))
            else:
                crossing = packed(batch)
            page.begin(Stage.IDLE)
            page.made()
            yield crossing

    def _packer(self, worker: int) -> Callable[[Any], Parcel]:
        ring = self.ring
        if ring is None:
            raise AssertionError
        if self._sender is None:
            self._sender = Sender(ring, worker, most=BLOCKS_A_BATCH * self._options.in_flight)
        sender = self._sender
        return lambda batch: _parcel(batch, sender, ring.token)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None, "_sender": None, "_schedule": None}


def _as_it_is(batch: Any) -> Any:
    return batch


def _parcel(batch: Any, sender: Sender, token: str) -> Parcel:
    """The batch, packed here: what can't be pickled later, in a thread, is waited for for ever.

    Raises UsageError that names the entry which can't cross.
    """
    try:
        return Parcel(batch, sender, token)
    except Exception as error:
        entries = batch.items() if isinstance(batch, Mapping) else [("batch", batch)]
        bad = [name for name, value in entries if pickling_error(value) is not None] or ["batch"]
        raise UsageError(
            f"a batch crosses from its worker by pickle, and its {', '.join(map(repr, bad))} can't "
            f"be pickled ({error}): return plain values from transform= or collate_fn=, or use "
            "num_workers=0"
        ) from error


class LoaderDataset(IterableDataset[Any]):
    """What `loader.dataset` is: the dataset, for ShardLoader alone."""

    def __init__(self, source: ShardDataset) -> None:
        super().__init__()
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        raise UsageError(
            "this dataset is already divided over ranks and workers by its ShardLoader, and "
            "whatever iterates it now would divide it again: iterate the ShardLoader itself, or "
            "give the ShardDataset (loader.dataset.source) to a loader of your own. To go on in "
            "mid-epoch, loader.load_state_dict(state) or loader.skip(steps) takes the place of "
            "Accelerate's skip_first_batches, which Hugging Face's Trainer leaves out with "
            "TrainingArguments(ignore_data_skip=True)"
        )

    def __getitem__(self, index: object) -> NoReturn:
        """Refused: samples by number are `as_map()`'s."""
        raise UnsupportedError(
            f"a loader's dataset is read by the loader, and [{index!r}] asks for a sample by "
            "number: loader.dataset.source.as_map() has len and [i], in the order of the shards"
        )

    def set_epoch(self, epoch: int) -> None:
        """Refused: the position is the loader's."""
        raise UsageError(
            f"the epoch belongs to the loader: call loader.set_epoch({epoch}), not "
            "loader.dataset.set_epoch"
        )
