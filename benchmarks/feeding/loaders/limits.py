"""The limits of this machine: nothing that reads the shards can be faster.

`cat` copies the shards to nowhere. `floor` is a bare loop of slices over mmap with a ready index,
in random order in blocks of four shards. `idle` starts torch's DataLoader on nothing: its memory
is what any loader with workers has.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.feeding.decoding import decoded
from benchmarks.feeding.work import (
    BATCHES,
    NUM_WORKERS,
    OWN,
    RAW,
    SEED,
    Loader,
    Opened,
    many_samples,
)
from tools.corpora.shards import opened, paths, slices_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.feeding.work import Work

BLOCK_SHARDS = 4


def _cat(work: Work) -> Opened:
    def items() -> Iterator[None]:
        command = ["cat", *(str(path) for path in paths(work.folder))]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        yield None

    return Opened(items=items(), item_samples=work.corpus.num_samples, columns=many_samples)


def _floor(work: Work) -> Opened:
    shards = [opened(path) for path in paths(work.folder)]
    extents = [np.load(slices_path(path)) for path in paths(work.folder)]
    return Opened(
        items=_slices(work, shards, extents),
        item_samples=work.corpus.raw_batch,
        columns=lambda batch: dict(zip(work.corpus.fields, batch, strict=True)),
    )


def _slices(work: Work, shards: list[Any], extents: list[Any]) -> Iterator[list[list[bytes]]]:
    """Lists of slices, one list a field."""
    random = np.random.Generator(np.random.Philox(SEED))
    turn = random.permutation(len(shards))
    size = work.corpus.raw_batch
    for first in range(0, len(turn), BLOCK_SHARDS):
        block = turn[first : first + BLOCK_SHARDS]
        counts = [len(extents[shard]) for shard in block]
        order = random.permutation(sum(counts))
        where = np.concatenate([extents[shard] for shard in block])[order]
        maps = [shards[shard] for shard in np.repeat(block, counts)[order]]
        for start in range(0, len(order), size):
            near = slice(start, start + size)
            yield [
                [each[a:b] for each, a, b in zip(maps[near], *field.T.tolist(), strict=True)]
                for field in where[near].transpose(1, 0, 2)
            ]


def _decoded_floor(work: Work) -> Opened:
    raw = _floor(work)
    return Opened(
        items=(decoded(raw.columns(item)) for item in raw.items),
        item_samples=raw.item_samples,
        columns=many_samples,
    )


def _idle(work: Work) -> Opened:
    from torch.utils.data import DataLoader

    numbers: Any = range(work.corpus.num_samples)
    loader: Any = DataLoader(numbers, batch_size=work.corpus.batch, num_workers=NUM_WORKERS)
    return Opened(items=loader, item_samples=work.corpus.batch, columns=many_samples)


LOADERS = (
    Loader(name="cat", form="tar", opens={RAW: _cat}, gives_samples=False),
    Loader(
        name="floor",
        form="tar",
        # decoded in this process: what the digests of all others are held against
        opens={RAW: _floor, BATCHES: _decoded_floor, OWN: _decoded_floor},
    ),
    Loader(
        name="idle", form="tar", opens={"idle": _idle}, gives_samples=False, packages=("torch",)
    ),
)
