"""What does the manifest of a dataset say that was written, or added to, just now?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardloader.format.manifest import Manifest
from shardloader.reading.source import SHARD_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardloader.writing.pattern import ShardPattern
    from shardloader.writing.shard_file import FinishedShard


_NOTHING = Manifest(
    names=(),
    sizes=np.zeros(0, np.int64),
    counts=np.zeros(0, np.int64),
    index_digests=(),
    content_digests=(),
)


def manifest_of(base: Manifest | None, shards: Sequence[FinishedShard]) -> Manifest:
    """Give the manifest of some shards, after those of a dataset that they are appended to."""
    base = base or _NOTHING
    content = None
    if base.content_digests is not None:
        content = (*base.content_digests, *(shard.content_digest for shard in shards))
    sizes = np.array([shard.size_bytes for shard in shards], np.int64)
    counts = np.array([shard.num_samples for shard in shards], np.int64)
    return replace(  # whatever else the manifest says of the shards that were there stays
        base,
        names=(*base.names, *(shard.name for shard in shards)),
        sizes=np.concatenate((base.sizes, sizes)),
        counts=np.concatenate((base.counts, counts)),
        index_digests=(*base.index_digests, *(shard.index_digest for shard in shards)),
        content_digests=content,
    )


def next_number(base: Manifest | None, pattern: ShardPattern) -> int:
    """Give the number of the first shard to write: the next after those of the pattern.

    However those are packed, since `a.tar` beside `a.tar.zst` would be taken for one shard.
    """
    names = () if base is None else base.names
    endings = {suffix: pattern.packed_as(suffix) for suffix in SHARD_SUFFIXES}
    numbers = [
        number
        for name in names
        for suffix, each in endings.items()
        if name.endswith(suffix) and (number := each.number(name)) is not None
    ]
    return max(numbers, default=-1) + 1
