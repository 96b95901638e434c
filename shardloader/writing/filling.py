"""How is a shard filled by several, who write at places that were decided before?

`Filling` is what whoever decides keeps of a shard: what its index needs, so that nobody has to look
for that in the file. `Filler` is what each of those who write has: a few open files. A shard that
has all its bytes is sealed by one of them, which reads it once more, for its digest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from shardloader.errors import WorldError
from shardloader.format.seek_table import seek_table
from shardloader.format.tar_header import END_OF_ARCHIVE
from shardloader.reading.store import WRITE_BYTES, map_file
from shardloader.writing.contents import Contents
from shardloader.writing.shard_file import FinishedShard, Sealed, naming

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardloader.writing.chunks import Chunk, Head, Recipe
    from shardloader.writing.layout import Closed, Run
    from shardloader.writing.pattern import ShardPattern
    from shardloader.writing.sources.base import Source
    from shardloader.writing.spill import Spill

_OPEN_FILES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """What everybody who works on a write knows."""

    source: Source
    recipe: Recipe
    folder: Path
    pattern: ShardPattern
    spill: Spill | None = None


class Seal(NamedTuple):
    """What is to be known to seal a shard whose bytes are there; `frames` of a compressed one."""

    shard: int
    name: str
    size_bytes: int
    num_samples: int
    index_bytes: bytes
    index_digest: str
    frames: list[tuple[int, int]]


@dataclass(slots=True)
class Filling:
    """A shard that is being filled: chunks not yet written, and what its index needs."""

    waiting: set[tuple[int, int]] = field(default_factory=set)
    closed: Closed | None = None
    contents: Contents = field(default_factory=Contents)
    frames: list[tuple[int, int]] = field(default_factory=list)

    def take(self, head: Head, run: Run) -> None:
        """Note that a run of a chunk lies in it."""
        samples: Sequence[int] = range(run.first, run.last)
        if run.frame is not None:
            samples = run.frame.samples
            self.frames.append((run.frame.size_bytes, run.frame.plain_bytes))
        if head.outline is None:
            raise AssertionError("a chunk that others write is told with its outline")
        self.contents.keys.update(dict.fromkeys([head.keys[at] for at in samples]))
        self.contents.add(head.outline.take(samples))

    def seal(self, shop: Shop, closed: Closed) -> Seal:
        """Give what is needed to seal it."""
        index = self.contents.index()
        if shop.recipe.compression is not None:
            index = replace(index, compressed_bytes=closed.size_bytes)
        if (index.num_samples, index.file_bytes) != (closed.num_samples, closed.size_bytes):
            raise AssertionError("a shard is as long as what was put into it")
        return Seal(
            shard=closed.shard,
            name=shop.pattern.name(closed.shard),
            size_bytes=closed.size_bytes,
            num_samples=closed.num_samples,
            index_bytes=index.to_bytes(),
            index_digest=index.digest,
            frames=self.frames,
        )


class Filler:
    """Writes chunks to shards in a folder, and seals them; may be one of many."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._files: dict[str, int] = {}

    def write(self, chunk: Chunk, runs: Sequence[Run]) -> None:
        """Write the samples of a chunk to where its runs say."""
        for run in runs:
            name = self._shop.pattern.name(run.shard)
            offset = run.offset
            with naming(self._path(name)):
                handle = self._opened(name)
                if run.frame is not None:
                    _write_at(handle, chunk.frame_bytes(run.frame), offset)
                    continue
                for data in chunk.plain_bytes(run.first, run.last):
                    _write_at(handle, data, offset)
                    offset += len(data)

    def seal(self, seal: Seal) -> Sealed:
        """End a shard, bring it to disk, and read it for its digest; any thread may do that."""
        path = self._path(seal.name)
        end = END_OF_ARCHIVE
        compression = self._shop.recipe.compression
        if compression is not None:
            table = seek_table([*seal.frames, (len(compression.end), len(end))])
            end = compression.end + table
        with naming(path), path.open("r+b", buffering=0) as file:
            _write_at(file.fileno(), end, seal.size_bytes - len(end))
            os.fsync(file.fileno())
        data = map_file(path)
        if len(data) != seal.size_bytes:
            raise WorldError(f"{path}: what lies on the disk is not what was written to it")
        finished = FinishedShard(
            name=seal.name,
            size_bytes=seal.size_bytes,
            num_samples=seal.num_samples,
            index_digest=seal.index_digest,
            content_digest=xxhash.xxh3_128_hexdigest(data),
        )
        return Sealed(finished=finished, partial=path, index=seal.index_bytes)

    def sync(self) -> None:
        """Bring to disk what was written to the files that are open."""
        for name, handle in self._files.items():
            with naming(self._path(name)):
                os.fsync(handle)

    def close(self) -> None:
        """Close all files."""
        for handle in self._files.values():
            os.close(handle)
        self._files = {}

    def _path(self, name: str) -> Path:
        return self._shop.folder / name

    def _opened(self, name: str) -> int:
        handle = self._files.get(name)
        if handle is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            handle = self._files[name] = os.open(self._path(name), flags, 0o666)
            while len(self._files) > _OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
        return handle


def _write_at(handle: int, data: bytes | bytearray, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view[:WRITE_BYTES], offset)
        view, offset = view[written:], offset + written
