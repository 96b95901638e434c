"""How are samples put into a random order that do not fit into memory?

Each sample gets 64 bits that follow from its key and the seed, and the samples are written in the
order of these: so the order depends on neither the form of the input nor the number of workers.
Two passes: the first writes each chunk of the input, sorted, to a temporary file; the second takes
one stretch of the 64-bit words after another from all of these files, sorts it in memory and gives
it as a part, of about `BUCKET_BYTES`. The temporary files take as much room as the shards would
uncompressed, in the destination, until it is finished.
"""

from __future__ import annotations

import json
import os
import shutil
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Self

import msgspec

from shardloader.errors import WorldError
from shardloader.reading.store import publish
from shardloader.writing.selection import keyed_word
from shardloader.writing.shard_file import naming
from shardloader.writing.sources.base import Part, Survey
from shardloader.writing.tarring import Made, TarredSample, ordinary, tar_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardloader.reading.remote import RemoteFile
    from shardloader.writing.chunks import Chunk
    from shardloader.writing.sources.base import Refused, Sample

BUCKET_BYTES = 48 << 20
_TABLE_BITS = 12
_TABLE_ENTRIES = (1 << _TABLE_BITS) + 1  # where the samples of each prefix begin, and the end
_OFFSET_BYTES = 8
_COMPLETE = "complete.json"
_AT_ONCE = 256  # samples whose bytes are made together
_encode = msgspec.msgpack.Encoder().encode


class _Record(msgspec.Struct, array_like=True, frozen=True):
    """What stands before a sample's tar in a run: its word and place in the input, and its head."""

    word: int
    part: int
    row: int
    key: str
    fields: tuple[str, ...]
    headers: tuple[int, ...]
    sizes: tuple[int, ...]


_decode = msgspec.msgpack.Decoder(_Record).decode


class Spill:
    """Takes chunks of the input and keeps them as sorted runs in a folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self._seed = seed

    def clear(self) -> Self:
        """Begin with an empty folder."""
        with naming(self.folder):
            if self.folder.exists():
                shutil.rmtree(self.folder)
            self.folder.mkdir(parents=True)
        return self

    def write(self, chunk: Chunk) -> None:
        """Write a chunk as a run, and forget its samples."""
        head = chunk.head
        tagged = sorted(
            (keyed_word(sample.key, self._seed), row, at)
            for at, (sample, row) in enumerate(zip(chunk.samples, head.rows, strict=True))
        )
        words = [word for word, _, _ in tagged]
        path = self.folder / f"{head.part:08d}-{head.start:012d}.run"
        offsets = [_TABLE_ENTRIES * _OFFSET_BYTES]
        with naming(path), path.open("wb") as file:
            file.seek(offsets[0])
            for first in range(0, len(tagged), _AT_ONCE):
                some = tagged[first : first + _AT_ONCE]
                samples = [chunk.samples[at] for _, _, at in some]
                tar, tar_at = memoryview(tar_of(samples)), 0
                for (word, row, _), sample in zip(some, samples, strict=True):
                    size = sample.size_bytes
                    headers, sizes, _ = sample.made or ordinary(sample)
                    about = (word, head.part, row, sample.key, sample.fields, headers, sizes)
                    record = _encode(_Record(*about))
                    lengths = len(record).to_bytes(4, "little") + size.to_bytes(8, "little")
                    file.writelines((lengths, record, tar[tar_at : tar_at + size]))
                    tar_at += size
                    offsets.append(offsets[-1] + len(lengths) + len(record) + size)
            file.seek(0)
            file.write(_table(words, offsets))
            file.flush()
            os.fsync(file.fileno())  # a run of zeros, after a power cut, would hold no samples
        chunk.samples.clear()

    def complete(self, facts: dict[str, int]) -> None:
        """Note that all of the input is in runs, with what is to be known about it."""
        publish(self.folder / _COMPLETE, json.dumps(facts).encode("ascii"))

    @property
    def is_complete(self) -> bool:
        """Whether all of the input is in runs."""
        return self.facts is not None

    @property
    def facts(self) -> dict[str, int] | None:
        """What `complete` noted; None if the runs are not complete."""
        try:
            found: dict[str, int] = json.loads((self.folder / _COMPLETE).read_bytes())
        except FileNotFoundError:
            return None
        return found


class SortedRuns:
    """The complete runs of a folder as a source, in the order of the words."""

    def __init__(self, folder: Path, *, num_bytes: int) -> None:
        self._folder = folder
        self._num_bytes = num_bytes
        self._bits = 0
        while self._bits < _TABLE_BITS and num_bytes >> self._bits > BUCKET_BYTES:
            self._bits += 1
        self._runs: list[Path] | None = None

    @property
    def about(self) -> dict[str, Any]:
        """Nothing: the source that was spilled has told what is read."""
        return {}

    @property
    def chosen(self) -> dict[str, tuple[str, ...]]:
        """Nothing: that was done when they were written."""
        return {}

    @property
    def beside(self) -> dict[str, bytes]:
        """Nothing."""
        return {}

    @property
    def places(self) -> tuple[Path, ...]:
        """None: these are the writer's own files."""
        return ()

    @property
    def remote_places(self) -> tuple[RemoteFile, ...]:
        """None."""
        return ()

    def survey(self) -> Survey:
        """Give the size of all samples."""
        return Survey(num_bytes=self._num_bytes)

    def parts(self) -> Iterator[Part]:
        """Give the stretches of words."""
        count = 1 << self._bits
        for number in range(count):
            yield Part(number, self._num_bytes // count, None)

    def where(self, part: Part) -> str:
        """Say where a part lies."""
        return f"stretch {part.number} of the shuffled samples"

    def read(self, part: Part, *, outline: bool = False) -> Iterator[Sample | Refused]:
        """Yield the samples of a stretch, in order."""
        del outline
        if self._runs is None:
            self._runs = sorted(self._folder.glob("*.run"))
        found: list[tuple[int, int, int, TarredSample]] = []
        step = 1 << (_TABLE_BITS - self._bits)
        for run in self._runs:
            found += _segment(run, part.number * step, (part.number + 1) * step)
        found.sort(key=lambda each: each[:3])
        for each in found:
            yield each[3]  # type: ignore[misc]  # it is encoded already


def _segment(run: Path, start: int, stop: int) -> Iterator[tuple[int, int, int, TarredSample]]:
    """Yield the samples of a run whose words begin with the prefixes start to stop-1."""
    try:
        handle = os.open(run, os.O_RDONLY | os.O_CLOEXEC)
        try:
            first = int.from_bytes(_read_at(handle, start * _OFFSET_BYTES, 8, run), "little")
            last = int.from_bytes(_read_at(handle, stop * _OFFSET_BYTES, 8, run), "little")
            data = memoryview(_read_at(handle, first, last - first, run))
        finally:
            os.close(handle)
    except OSError as error:
        raise WorldError(f"{run}: can't be read: {error.strerror or error}") from error
    at = 0
    while at < len(data):
        record_bytes = int.from_bytes(data[at : at + 4], "little")
        size = int.from_bytes(data[at + 4 : at + 12], "little")
        at += 12
        record = _decode(data[at : at + record_bytes])
        at += record_bytes
        tar = data[at : at + size]
        at += size
        made = Made(record.headers, record.sizes, [tar])  # type: ignore[list-item]
        sample = TarredSample(record.key, record.fields, (), size, made)
        yield record.word, record.part, record.row, sample


def _read_at(handle: int, offset: int, size: int, run: Path) -> bytes:
    pieces = []
    while size:
        piece = os.pread(handle, min(size, 1 << 30), offset)
        if not piece:
            raise WorldError(f"{run}: the temporary file is cut short: was the disk full?")
        pieces.append(piece)
        offset += len(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _table(words: list[int], offsets: list[int]) -> bytes:
    """Give where the samples of each prefix of their words begin."""
    shift = 64 - _TABLE_BITS
    starts = array(
        "Q", (offsets[bisect_left(words, prefix << shift)] for prefix in range(_TABLE_ENTRIES))
    )
    return starts.tobytes()
