"""How do batches get from workers to the training loop?

Through a plain DataLoader over a BatchStream, made when the first batch is asked for: by then the
launcher has spoken, the state is loaded and the epoch set. Kept, so that workers may persist.
"""

from __future__ import annotations

import multiprocessing
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch.utils.data import DataLoader

from shardloader.dataset.recipe import check_pickles
from shardloader.distributed.environment import local_ranks
from shardloader.loader.device import Ahead, side_of
from shardloader.loader.making import ByThreads, ByWorkers
from shardloader.loader.ring import Receiver, Ring
from shardloader.loader.stream import BatchStream, StreamOptions
from shardloader.loader.tally import Tally
from shardloader.planning.least_cache import checked_room, reach_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardloader.dataset.recipe import Recipe
    from shardloader.loader.device import Side
    from shardloader.loader.making import Making
    from shardloader.loader.options import LoaderOptions
    from shardloader.order.dealing import Dealing
    from shardloader.order.grid import Grid
    from shardloader.order.reach import Reach
    from shardloader.order.schedule import Schedule
    from shardloader.reading.counts import Counts
    from shardloader.reading.needs import Room

MOST_THREADS: Final = 16  # more than that, and the interpreter's lock is what they wait for


class _Which(NamedTuple):
    """What tells one pass from another, of the same dataset."""

    process: int
    epoch: int
    grid: Grid
    dealing: Dealing

    @classmethod
    def of(cls, schedule: Schedule, epoch: int) -> _Which:
        """Of this process: a child has none of its parent's threads."""
        return cls(os.getpid(), epoch, schedule.order.grid, schedule.dealing)


class _Begun(NamedTuple):
    """A pass whose first batch is being read, though nobody has asked for it."""

    which: _Which
    batches: Iterator[Any]


class Engine:
    """The DataLoader of one ShardLoader."""

    def __init__(self, options: LoaderOptions) -> None:
        self._options = options
        self._num_workers = options.num_workers
        self._find_side = side_of  # what a device is, when it is first needed
        self._side: Side | None = None
        self._has_looked = False
        self.making: Making | None = None
        self._recipe: Recipe | None = None
        self._room: tuple[Recipe, Reach, Room] | None = None  # of the pass before
        self._made: tuple[BatchStream, DataLoader[Any]] | None = None
        self._receiver: Receiver | None = None
        self._tally = Tally(options.num_workers)
        self._num_ended = 0
        self._begun: _Begun | None = None

    @property
    def counts(self) -> Counts:
        """What reading took so far, in all processes of this loader."""
        return self._tally.counts

    def batches(self, schedule: Schedule, recipe: Recipe, *, epoch: int) -> Iterator[Any]:
        """This rank's batches of a schedule; recipe: the dataset that it is of."""
        begun, self._begun = self._begun, None
        which = _Which.of(schedule, epoch)
        if recipe is not self._recipe:  # workers that persist have another one
            self.forget_workers()
            self._recipe = recipe
            begun = None
        if begun is not None and begun.which == which:
            batches = begun.batches
        else:
            del begun  # its threads have ended then, which read as those to come do
            batches = self._from(schedule, recipe, epoch)
        return batches if self._side is None else self._on_device(batches, self._side)

    def ended(self, schedule: Schedule, recipe: Recipe, *, epoch: int) -> None:
        """A pass was read to its end, and one of `schedule` comes next, if any does.

        A loop that has come again to a pass will do so another time, most likely: the first batch
        is read meanwhile. It counts nothing, and is dropped if another pass is asked for.
        """
        self._num_ended += 1
        if self._num_ended < 2 or self._num_workers or self._made is None:
            return
        stream, loader = self._made
        # DataLoader, which pins, draws from torch's global generator for each iterator.
        if recipe is not self._recipe or loader.pin_memory or not stream.may_be_early:
            return
        batches = self._from(schedule, recipe, epoch, is_early=True)
        self._begun = _Begun(_Which.of(schedule, epoch), batches)

    def _from(
        self, schedule: Schedule, recipe: Recipe, epoch: int, *, is_early: bool = False
    ) -> Iterator[Any]:
        """The batches on the host."""
        dealing, room = schedule.dealing, self._room_of(schedule, recipe)
        stream, loader = self._make(recipe, dealing.batch_size, dealing.accumulate)
        stream.start_at(schedule, epoch=epoch, room=room, is_early=is_early)
        side = self._side
        try:
            with nullcontext() if side is None else side.current():
                return self._on_host(stream, loader)
        except RuntimeError:  # a worker that should have persisted died meanwhile
            if self._receiver is None:
                raise
            self.forget_workers()
            return self._from(schedule, recipe, epoch)

    def _room_of(self, schedule: Schedule, recipe: Recipe) -> Room:
        """The room that each reader has in the node's cache; CacheError where that is too small."""
        reach = reach_of(schedule, num_workers=self._num_workers, ranks_per_node=local_ranks())
        before = self._room
        if before is None or before[0] is not recipe or before[1] != reach:
            before = recipe, reach, checked_room(recipe.catalog, schedule.order, reach)
            self._room = before
        return before[2]

    def _on_device(self, batches: Iterator[Any], side: Side) -> Iterator[Any]:
        making = self.making
        if making is None:
            raise AssertionError
        if self._num_workers == 0:  # each batch ahead is read while the loop waits: one will do
            return Ahead(batches, side, depth=1, may_take=lambda _: True)
        return Ahead(batches, side, depth=self._options.device_prefetch, may_take=making.is_made)

    def _on_host(self, stream: BatchStream, loader: DataLoader[Any]) -> Iterator[Any]:
        if self._num_workers == 0:
            self.making = ByThreads(stream.diary)
            return iter(loader if loader.pin_memory else stream)
        if stream.pages is None:
            stream.pages = ByWorkers.memory(self._num_workers)
        stream.pages.zero_()
        self.making = ByWorkers(stream.pages)
        receiver = self._receiver
        if receiver is None:
            # Blocks belong to the workers that make them: new workers, a new ring.
            stream.ring = Ring.of(self._num_workers)
            receiver = Receiver(stream.ring)
        batches = iter(loader)
        if loader.persistent_workers:
            self._receiver = receiver
        return _holding(receiver, batches)

    def forget_workers(self) -> None:
        """Start new workers next time, also where they persist."""
        self._made = self._receiver = None

    def _make(
        self, recipe: Recipe, batch_size: int, accumulate: int
    ) -> tuple[BatchStream, DataLoader[Any]]:
        if self._made is None:
            options = self._options
            passed_on = options.passed_on
            self._check_pickles()
            if not self._has_looked:
                self._side, self._has_looked = self._find_side(options.named), True
            stream = BatchStream(
                StreamOptions(
                    recipe=recipe,
                    topology=options.source.resolve_topology(),
                    batch_size=batch_size,
                    accumulate=accumulate,
                    is_grouped=options.batching.is_grouped,
                    decode_threads=_cores_of_this_rank()
                    if options.decode_threads is None
                    else options.decode_threads,
                    local_ranks=local_ranks(),
                    in_flight=2 + (passed_on.get("prefetch_factor") or 2),
                    collate_fn=options.collate_fn,
                    meta=options.meta,
                    tally=self._tally,
                    pins=self._side is not None and self._num_workers > 0,
                )
            )
            loader: DataLoader[Any] = DataLoader(
                stream,
                batch_size=None,
                num_workers=self._num_workers,
                collate_fn=_as_it_is,
                **{**passed_on, "pin_memory": self._pins_in_a_thread()},
            )
            self._made = stream, loader
        return self._made

    def _pins_in_a_thread(self) -> bool:
        """Whether DataLoader pins: in a thread of its own where there are workers."""
        if self._side is not None:
            return self._num_workers > 0
        return bool(self._options.passed_on.get("pin_memory"))

    def _check_pickles(self) -> None:
        if self._num_workers == 0:
            return
        options = self._options
        how = _start_method(options.passed_on.get("multiprocessing_context"))
        if how != "fork":
            travelling = {
                "transform": options.source.options.transform,
                "decode": options.source.options.decode,
                "collate_fn": options.collate_fn,
                "worker_init_fn": options.passed_on.get("worker_init_fn"),
            }
            check_pickles(travelling, how=how)


def _cores_of_this_rank() -> int:
    """The cores that this process may use, shared with the other ranks of its node."""
    cores = len(os.sched_getaffinity(0))
    is_bound = cores < (os.cpu_count() or 1)  # a launcher gave this rank cores of its own
    return max(1, min(cores // (1 if is_bound else local_ranks()), MOST_THREADS))


def _start_method(context: Any) -> str:
    """How workers will be started by DataLoader's option, a name, a context or None."""
    if context is None or isinstance(context, str):
        context = multiprocessing.get_context(context)
    return str(context.get_start_method())


def _holding(receiver: Receiver | None, batches: Iterator[Any]) -> Iterator[Any]:
    """Batches, and what they arrive by as long as more may come."""
    yield from batches
    del receiver


def _as_it_is(batch: Any) -> Any:
    return batch
