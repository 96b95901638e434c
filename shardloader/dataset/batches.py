"""Which rows does a worker read, and what does a batch look like?

A worker w of W makes the steps w, w+W, ... of the rest of an epoch. Positions are evaluated many
steps at a time; samples are read a batch at a time, no earlier than they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shardloader.dataset.collate import collate
from shardloader.dataset.recipe import META
from shardloader.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.dataset.recipe import Collate
    from shardloader.dataset.samples import SampleReader
    from shardloader.order.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One rank's part of one step.

    step: counted from where the schedule starts; shard, sample, index, passes: int64 [size], as in
    StepSamples; valid: bool [size]; global_valid: valid samples over all ranks.
    """

    step: int
    shard: NDArray[np.int64]
    sample: NDArray[np.int64]
    index: NDArray[np.int64]
    passes: NDArray[np.int64]
    valid: NDArray[np.bool_]
    global_valid: int


def rows(
    schedule: Schedule, rank: int, *, worker: int = 0, num_workers: int = 1, skip: int = 0
) -> Iterator[Row]:
    """The rows that a worker makes, after the first `skip` of them."""
    reader = schedule.reader(rank)
    steps = range(worker, schedule.dealing.num_batches(rank), num_workers)[skip:]
    at_once = 1  # the first batch should not wait for a window's worth of evaluation
    while steps:
        now, steps = steps[:at_once], steps[at_once:]
        read = reader.steps(np.array(now, dtype=np.int64))
        for i, step in enumerate(now):
            size = int(read.size[i])
            yield Row(
                step=step,
                shard=read.shard[i, :size],
                sample=read.sample[i, :size],
                index=read.index[i, :size],
                passes=read.passes[i, :size],
                valid=read.valid[i, :size],
                global_valid=int(read.global_valid[i]),
            )
        at_once = schedule.steps_at_once(num_workers)


class BatchMaker:
    """Reads rows and joins them to batches."""

    def __init__(
        self, reader: SampleReader, *, collate_fn: Collate | None, meta: str, world_size: int
    ) -> None:
        self._reader = reader
        self._collate = collate if collate_fn is None else collate_fn
        self._meta = META[meta]
        self._world_size = world_size

    def batch(self, row: Row) -> Any:
        """The batch of a row: what collate_fn makes of the samples, and the `__...__` entries."""
        keys, batch = self._joined(row)
        if not self._meta:
            return batch
        if not isinstance(batch, Mapping):
            raise UsageError(
                f"the entries {', '.join(self._meta)} are added to the mapping that collate_fn "
                f"returns, and it returned a {type(batch).__name__}: return a mapping, or give "
                'meta="none"'
            )
        return {**batch, **self._entries(row, keys)}

    def sample(self, row: Row) -> Any:
        """The one sample of a row, with its own `__key__`, `__index__` and `__valid__`."""
        keys, sample = self._joined(row)
        entries = {
            "__key__": keys[0],
            "__index__": int(row.index[0]),
            "__valid__": bool(row.valid[0]),
        }
        return {**sample, **{name: entries[name] for name in self._meta if name in entries}}

    def _joined(self, row: Row) -> tuple[list[str], Any]:
        keys, samples = [], []
        for shard, sample, index, number in zip(
            row.shard.tolist(),
            row.sample.tolist(),
            row.index.tolist(),
            row.passes.tolist(),
            strict=True,
        ):
            key, read = self._reader.read(shard=shard, sample=sample, index=index, number=number)
            keys.append(key)
            samples.append(read)
        return keys, self._collate(samples)

    def _entries(self, row: Row, keys: list[str]) -> dict[str, Any]:
        entries = {
            "__valid__": torch.from_numpy(row.valid.copy()),
            "__global_valid__": row.global_valid,
            "__world_size__": self._world_size,
            "__index__": torch.from_numpy(row.index.copy()),
            "__key__": keys,
        }
        return {name: entries[name] for name in self._meta}
