"""Are a shard's bytes those that were written?

Their xxh3-128, as manifests carry it: of the file's bytes, compressed or not.
"""

from __future__ import annotations

import xxhash

_CHUNK_BYTES = 8 << 20


def content_digest(data: memoryview) -> str:
    """Give the xxh3-128 of a shard's bytes as 32 hex digits."""
    hasher = xxhash.xxh3_128()
    for start in range(0, len(data), _CHUNK_BYTES):
        hasher.update(data[start : start + _CHUNK_BYTES])
    digest: str = hasher.hexdigest()
    return digest
