"""How do a corpus's tar shards come about, and where in them does each field lie?

The shards are shardloader's own, with plain ustar headers. Beside them lies the ready index that
the floor loop and the makers of other forms read by: per shard an int64 array
[samples, fields, 2] of starts and stops. It is made by a scan of its own, so that no loader's
index decides what is in the corpus.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tools.corpora.samples import sample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tools.corpora.corpus import Corpus

BLOCK: Final = 512
SLICES: Final = ".slices.npy"


def make(corpus: Corpus, folder: Path) -> None:
    """Write the shards, shardloader's index and the ready index."""
    from shardloader import ShardWriter

    with ShardWriter(folder, max_samples=corpus.shard_samples, max_bytes="4GB") as writer:
        for number in range(corpus.num_samples):
            writer.write({"__key__": corpus.key(number), **sample(corpus, number)})
    for shard in paths(folder):
        found = scanned(shard.read_bytes(), num_fields=len(corpus.fields))
        np.save(slices_path(shard), found)


def paths(folder: Path) -> list[Path]:
    """The shards, in order."""
    return sorted(folder.glob("*.tar"))


def slices_path(shard: Path) -> Path:
    """Where the ready index of a shard lies."""
    return shard.with_name(shard.name + SLICES)


def scanned(data: bytes, *, num_fields: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Starts and stops of all members of a plain ustar file, int64 [samples, fields, 2]."""
    found, at = [], 0
    while data[at]:
        size = int(data[at + 124 : at + 135], 8)
        found.append((at + BLOCK, at + BLOCK + size))
        at += BLOCK + -(-size // BLOCK) * BLOCK
    return np.array(found, dtype=np.int64).reshape(-1, num_fields, 2)


def opened(shard: Path) -> mmap.mmap:
    """The shard as a read-only map."""
    with shard.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def stored(corpus: Corpus, folder: Path) -> Iterator[dict[str, bytes]]:
    """All samples in order, read back from the shards: their fields' bytes."""
    for shard in paths(folder):
        data = opened(shard)
        for extents in np.load(slices_path(shard)).tolist():
            yield {
                field: data[start:stop]
                for field, (start, stop) in zip(corpus.fields, extents, strict=True)
            }
