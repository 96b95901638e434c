"""Who makes the chunks and writes the bytes?

`Hands` is the seam: this process alone here, other processes in `pool`. Chunks come in the order of
the input; where they go is decided by whoever asks for them, and told by `put`; shards that are
whole and on disk come back in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from shardloader.writing.chunks import chunks_of
from shardloader.writing.contents import outline_of
from shardloader.writing.shard_file import FrameFile, ShardFile, partial_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from shardloader.writing.chunks import Chunk, Frame, Head, Recipe
    from shardloader.writing.layout import Closed, Position, Run
    from shardloader.writing.pattern import ShardPattern
    from shardloader.writing.shard_file import Sealed
    from shardloader.writing.sources.base import Part, Source
    from shardloader.writing.spill import Spill


class Hands(Protocol):
    """What makes chunks of parts and shards of chunks."""

    def chunks(self, parts: Iterator[Part], start: Position | None) -> Iterator[Head]:
        """Yield the heads of all chunks from a position on, in order."""
        ...

    def recut(self, groups: Sequence[Sequence[int]]) -> list[Frame]:
        """Make other frames of the chunk that was yielded last."""
        ...

    def put(self, runs: Sequence[Run]) -> None:
        """Write the chunk that was yielded last to where its runs say."""
        ...

    def close(self, closed: Closed) -> None:
        """Seal a shard, once all that was put into it is there."""
        ...

    def sealed(self, *, wait: bool = False) -> Iterator[Sealed]:
        """Yield shards that are sealed, in their order; all that were closed, if `wait`."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class OwnHands:
    """This process."""

    def __init__(
        self,
        source: Source,
        recipe: Recipe,
        folder: Path,
        pattern: ShardPattern,
        spill: Spill | None = None,
    ) -> None:
        self._source = source
        self._recipe = recipe
        self._folder = folder
        self._pattern = pattern
        self._spill = spill
        self._chunk: Chunk | None = None
        self._files: dict[int, ShardFile | FrameFile] = {}  # not yet sealed, by shard
        self._plain: dict[int, ShardFile] = {}  # the one that was written to last
        self._framed: dict[int, FrameFile] = {}
        self._sealed: list[Sealed] = []

    def chunks(self, parts: Iterator[Part], start: Position | None) -> Iterator[Head]:
        """Yield the heads of all chunks from a position on, in order."""
        for part, row in remaining(parts, start):
            for chunk in chunks_of(self._source, part, self._recipe, start=row):
                if self._spill is not None:
                    self._spill.write(chunk)
                    chunk.head.sizes = [chunk.num_bytes]
                self._chunk = chunk
                yield chunk.head
                self._chunk = None

    def recut(self, groups: Sequence[Sequence[int]]) -> list[Frame]:
        """Make other frames of the chunk that was yielded last."""
        return self._now().recut(groups)

    def put(self, runs: Sequence[Run]) -> None:
        """Write the chunk that was yielded last to where its runs say."""
        chunk = self._now()
        for run in runs:
            self._seal_all_but(run.shard)
            if run.frame is None:
                file = self._opened(run)
                for sample in chunk.samples[run.first : run.last]:
                    file.add(sample)
            else:
                samples = [chunk.samples[at] for at in run.frame.samples]
                keys = [sample.key for sample in samples]
                frame = chunk.frame_bytes(run.frame)
                self._opened_framed(run).add_frame(frame, keys, outline_of(samples))

    def close(self, closed: Closed) -> None:
        """Seal a shard, once all that was put into it is there."""
        if closed.shard in self._files:
            self._seal(closed.shard)

    def _seal_all_but(self, shard: int) -> None:
        """Seal what the runs have gone past, so that few files are open at a time."""
        for number in [number for number in self._files if number != shard]:
            self._seal(number)

    def _seal(self, shard: int) -> None:
        file = self._files[shard]
        file.end()
        self._sealed.append(file.seal())
        del self._files[shard]

    def _opened(self, run: Run) -> ShardFile:
        file = self._plain.get(run.shard)
        if file is None:
            name = self._pattern.name(run.shard)
            file = ShardFile(self._folder / partial_name(name), name)
            self._plain = {run.shard: file}
            self._files[run.shard] = file
        return file

    def _opened_framed(self, run: Run) -> FrameFile:
        file = self._framed.get(run.shard)
        if file is None and self._recipe.compression is not None:
            name = self._pattern.name(run.shard)
            partial = self._folder / partial_name(name)
            file = FrameFile(partial, name, self._recipe.compression)
            self._framed = {run.shard: file}
            self._files[run.shard] = file
        if file is None:
            raise AssertionError("only compressed chunks have frames")
        return file

    def sealed(self, *, wait: bool = False) -> Iterator[Sealed]:
        """Yield shards that are sealed, in their order."""
        del wait
        while self._sealed:
            yield self._sealed.pop(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            file.discard()
        self._files = {}

    def _now(self) -> Chunk:
        if self._chunk is None:
            raise AssertionError("a chunk was yielded before")
        return self._chunk


def remaining(parts: Iterator[Part], start: Position | None) -> Iterator[tuple[Part, int]]:
    """Yield the parts from a position on, each with the row at which it is to be taken up."""
    for part in parts:
        if start is None or part.number > start.part:
            yield part, 0
        elif part.number == start.part:
            yield part, start.chunk_row
