"""How do the samples of a part become bytes, ready to lie in a shard?

A chunk is what follows one another in a part, encoded: bounded in memory, the same whoever makes
it. What is needed to place it, its head, is apart from the bytes, which stay where they were made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from shardloader.errors import SampleError
from shardloader.writing.contents import outline_of
from shardloader.writing.frames import Compression, compress
from shardloader.writing.selection import Selection
from shardloader.writing.sources.base import Refused, printable
from shardloader.writing.tarring import TarredSample, tar_of, tarred

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardloader.writing.contents import Outline
    from shardloader.writing.sources.base import Part, Source

CHUNK_BYTES = 16 << 20
_WRITE_BYTES = 1 << 19
_EVERYTHING = Selection()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How samples are made of what a source yields."""

    selection: Selection = _EVERYTHING
    compression: Compression | None = None
    outline: bool = False
    chunk_bytes: int = CHUNK_BYTES


@dataclass(slots=True)
class Frame:
    """A compressed piece of a chunk: which of its samples, by number, and its sizes."""

    samples: Sequence[int]
    size_bytes: int
    plain_bytes: int


@dataclass(slots=True)
class Head:
    """What is to be known of a chunk to place it: a list entry for each sample.

    `rows` are the samples' numbers in the part, `refused` what was no sample, with its row.
    """

    part: int
    start: int
    keys: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    refused: list[tuple[int, Refused]] = field(default_factory=list)
    num_left_out: int = 0
    frames: list[Frame] | None = None
    outline: Outline | None = None  # of the samples, where others are to index them
    is_last: bool = False
    num_bytes: int = 0
    num_samples: int = 0


class Chunk:
    """A head with its bytes."""

    def __init__(self, part: int, compression: Compression | None, start: int) -> None:
        self.head = Head(part, start)
        self.samples: list[TarredSample] = []
        self.num_bytes = 0
        self._compression = compression
        self._frame_starts = [0]
        self._frame_bytes = 0
        self._frames: dict[tuple[int, ...], bytes] = {}

    def add(self, sample: TarredSample, row: int) -> None:
        """Append a sample."""
        head = self.head
        head.keys.append(sample.key)
        head.sizes.append(sample.size_bytes)
        head.rows.append(row)
        self.samples.append(sample)
        self.num_bytes += sample.size_bytes
        if self._compression is not None:
            self._frame_bytes += sample.size_bytes
            count = len(self.samples)
            if self._compression.is_full(count - self._frame_starts[-1], self._frame_bytes):
                self._frame_starts.append(count)
                self._frame_bytes = 0

    @property
    def is_at_frame_end(self) -> bool:
        """Whether no frame would be cut if it ended here."""
        return self._compression is None or self._frame_starts[-1] == len(self.samples)

    def finish(self, *, is_last: bool) -> Chunk:
        """Cut the frames, where there are any, and complete the head."""
        head = self.head
        head.is_last, head.num_samples = is_last, len(self.samples)
        if self._compression is not None:
            edges = [*self._frame_starts, len(self.samples)]
            head.frames = self.recut([range(start, stop) for start, stop in pairwise(edges)])
        return self

    def outlined(self) -> Head:
        """Give the head with all that is to be known to index the samples."""
        self.head.outline = outline_of(self.samples)
        return self.head

    def recut(self, groups: Sequence[Sequence[int]]) -> list[Frame]:
        """Make a frame of each group of samples."""
        frames = []
        for group in groups:
            if group:
                packed = self._packed(group)
                plain_bytes = sum(self.samples[at].size_bytes for at in group)
                frames.append(Frame(group, len(packed), plain_bytes))
        return frames

    def frame_bytes(self, frame: Frame) -> bytes:
        """Give the bytes of a frame."""
        return self._packed(frame.samples)

    def _packed(self, group: Sequence[int]) -> bytes:
        """Compress samples; what was compressed before is kept."""
        name = tuple(group)
        packed = self._frames.get(name)
        if packed is None and self._compression is not None:
            plain = tar_of([self.samples[at] for at in group])
            packed = self._frames[name] = compress(plain, self._compression.level)
        if packed is None:
            raise AssertionError("only compressed chunks have frames")
        return packed

    def plain_bytes(self, first: int, last: int) -> Iterator[bytes | bytearray]:
        """Yield the tar of the samples first to last-1, some of them at a time."""
        waiting: list[TarredSample] = []
        waiting_bytes = 0
        for sample in self.samples[first:last]:
            waiting.append(sample)
            waiting_bytes += sample.size_bytes
            if waiting_bytes >= _WRITE_BYTES:
                yield tar_of(waiting)
                waiting, waiting_bytes = [], 0
        yield tar_of(waiting)


def chunks_of(source: Source, part: Part, recipe: Recipe, *, start: int = 0) -> Iterator[Chunk]:
    """Yield the chunks of a part; at least one, which may be empty.

    Where a chunk ends follows from the part, the recipe and where it starts; so with the `start`
    of a chunk, a row, the same chunks come from there on.
    """
    chunk = Chunk(part.number, recipe.compression, start)
    left = part.num_bytes
    wants_all = recipe.selection.is_all
    row = -1
    for row, item in enumerate(source.read(part, outline=recipe.outline)):
        if row < start:
            continue
        if isinstance(item, TarredSample):
            chunk.add(item, row)
        elif isinstance(item, Refused):
            chunk.head.refused.append((row, item))
        elif wants_all or recipe.selection.wants(str(item.get("__key__"))):
            try:
                chunk.add(tarred(item), row)
            except SampleError as error:
                key = printable(str(item.get("__key__", "")))
                chunk.head.refused.append((row, Refused(key, source.where(part), str(error))))
        else:
            chunk.head.num_left_out += 1
        if chunk.num_bytes >= recipe.chunk_bytes and chunk.is_at_frame_end:
            chunk.head.num_bytes = min(left, chunk.num_bytes)
            left -= chunk.head.num_bytes
            yield chunk.finish(is_last=False)
            chunk = Chunk(part.number, recipe.compression, row + 1)
    chunk.head.num_bytes = left
    yield chunk.finish(is_last=True)
