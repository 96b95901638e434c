"""How do batches get from workers to the training loop?

Through a plain DataLoader over a BatchStream, made when the first batch is asked for: by then the
launcher has spoken, the state is loaded and the epoch set. Kept, so that workers may persist.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import DataLoader

from shardloader.dataset.recipe import check_pickles
from shardloader.distributed.environment import local_ranks
from shardloader.loader.ring import Receiver, Ring
from shardloader.loader.stream import BatchStream, StreamOptions
from shardloader.loader.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardloader.dataset.recipe import Collate, Recipe
    from shardloader.dataset.shard_dataset import ShardDataset
    from shardloader.order.schedule import Schedule
    from shardloader.reading.traffic import Traffic

MOST_THREADS: Final = 16  # more than that, and the interpreter's lock is what they wait for


class Engine:
    """The DataLoader of one ShardLoader; `options` are those that DataLoader alone understands."""

    def __init__(
        self,
        source: ShardDataset,
        *,
        num_workers: int,
        is_grouped: bool,
        decode_threads: int | None,
        collate_fn: Collate | None,
        meta: str,
        options: Mapping[str, Any],
    ) -> None:
        self._source = source
        self._num_workers = num_workers
        self._is_grouped = is_grouped
        self._decode_threads = decode_threads
        self._collate_fn = collate_fn
        self._meta = meta
        self._options = options
        self._recipe: Recipe | None = None
        self._made: tuple[BatchStream, DataLoader[Any]] | None = None
        self._receiver: Receiver | None = None
        self._tally = Tally(num_workers)

    @property
    def worker_traffic(self) -> Traffic:
        """What all workers so far have asked of the dataset's store."""
        return self._tally.traffic

    def batches(self, schedule: Schedule, recipe: Recipe, *, epoch: int) -> Iterator[Any]:
        """This rank's batches of a schedule; recipe: the dataset that it is of."""
        dealing = schedule.dealing
        if recipe is not self._recipe:  # workers that persist have another one
            self.forget_workers()
            self._recipe = recipe
        stream, loader = self._make(recipe, dealing.batch_size, dealing.accumulate)
        stream.start_at(epoch=epoch, consumed=dealing.consumed, grid=schedule.order.grid)
        if self._num_workers == 0 and not self._options.get("pin_memory"):
            return iter(stream)
        if self._num_workers == 0:
            return iter(loader)
        receiver = self._receiver
        if receiver is None:
            # Blocks belong to the workers that make them: new workers, a new ring.
            stream.ring = Ring.of(self._num_workers)
            receiver = Receiver(stream.ring)
        try:
            batches = iter(loader)
        except RuntimeError:  # a worker that should have persisted died meanwhile
            if self._receiver is None:
                raise
            self.forget_workers()
            return self.batches(schedule, recipe, epoch=epoch)
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
            self._check_pickles()
            stream = BatchStream(
                StreamOptions(
                    recipe=recipe,
                    topology=self._source.resolve_topology(),
                    batch_size=batch_size,
                    accumulate=accumulate,
                    is_grouped=self._is_grouped,
                    decode_threads=_cores_of_this_rank()
                    if self._decode_threads is None
                    else self._decode_threads,
                    in_flight=2 + (self._options.get("prefetch_factor") or 2),
                    collate_fn=self._collate_fn,
                    meta=self._meta,
                    tally=self._tally,
                )
            )
            loader: DataLoader[Any] = DataLoader(
                stream,
                batch_size=None,
                num_workers=self._num_workers,
                collate_fn=_as_it_is,
                **self._options,
            )
            self._made = stream, loader
        return self._made

    def _check_pickles(self) -> None:
        if self._num_workers == 0:
            return
        how = _start_method(self._options.get("multiprocessing_context"))
        if how != "fork":
            travelling = {
                "transform": self._source.options.transform,
                "decode": self._source.options.decode,
                "collate_fn": self._collate_fn,
                "worker_init_fn": self._options.get("worker_init_fn"),
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
