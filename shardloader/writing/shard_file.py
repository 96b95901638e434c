"""One shard while it is written: a temporary file, until it is whole and on disk.

Knows bytes and one file. Does not know when a shard is full, what else is in the folder, nor who
gives the file its final name. Its temporary name begins with a dot and ends in ".partial", so
nothing that looks for shards ever finds half of one.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from shardloader.errors import WorldError
from shardloader.format.index import SampleIndex
from shardloader.format.tar_header import BLOCK_BYTES, END_OF_ARCHIVE
from shardloader.reading.source import INDEX_SUFFIX
from shardloader.writing.beside import Beside
from shardloader.writing.frames import Compression, seek_table
from shardloader.writing.tarring import is_ordinary, ordinary, pieces_of, tar_of
from shardloader.writing.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from shardloader.writing.layout import Limits
    from shardloader.writing.tarring import TarredSample

_PARTIAL_SUFFIX = ".partial"
_BUFFER_BYTES = 1 << 20  # one write and one update of the digest for about this much
_MANY_BYTES = 1 << 23  # where fields are big, which are not joined: long writes cost less
_BIG_BYTES = 1 << 14  # of a sample
_WORTH_A_THREAD = 1 << 18  # fewer bytes have a digest sooner than another thread has woken up
_DIGESTS_AHEAD = 2
_MAX_PIECES = 1024  # that the system takes in one call


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedShard:
    """What a manifest says of a shard."""

    name: str
    size_bytes: int
    num_samples: int
    index_digest: str
    content_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A shard that is whole and on disk, and has yet to get its name: its file and its index."""

    finished: FinishedShard
    partial: Path
    index: bytes


def partial_name(shard: str) -> str:
    """Return the name that a shard has until it is finished."""
    return f".{shard}{_PARTIAL_SUFFIX}"


def shard_of_partial(name: str) -> str:
    """Return the shard whose unfinished file has this name, or "" if none has."""
    is_one = name.startswith(".") and name.endswith(_PARTIAL_SUFFIX)
    return name[1 : -len(_PARTIAL_SUFFIX)] if is_one else ""


def shard_of_index(name: str) -> str:
    """Return the shard whose index has this name, or "" if none has."""
    return name[: -len(INDEX_SUFFIX)] if name.endswith(INDEX_SUFFIX) else ""


class ShardFile:
    """An open shard. After `end` it is sealed; after `seal` or `discard` it is done with.

    `keys` are those of the samples in it, and `take` appends a sample as `Waiting.take` does.
    """

    def __init__(self, partial: Path, name: str) -> None:
        self.name = name
        self._contents = Contents()
        self.keys = self._contents.keys
        self._output = _Output(partial)
        self._waiting = Waiting(self.keys)
        self.take = self._waiting.take

    @property
    def num_samples(self) -> int:
        """How many samples are in it."""
        return len(self.keys)

    @property
    def size_bytes(self) -> int:
        """The file's size if it were sealed now."""
        return self._contents.tar_bytes + self._waiting.num_bytes + len(END_OF_ARCHIVE)

    def add(self, sample: TarredSample) -> None:
        """Append a sample, whose key is new to this shard."""
        self._waiting.add(sample)
        if self._waiting.num_bytes >= self._buffer_bytes:
            self._flush()

    def expect(self, names: tuple[str, ...], limits: Limits) -> None:
        """Let `take` take samples with these entries, as long as the shard is not full then."""
        waiting = self._waiting
        waiting.expect(
            names,
            max_samples=limits.max_samples - 1,
            num_bytes=min(
                limits.max_bytes - self.size_bytes, self._buffer_bytes - waiting.num_bytes
            ),
        )

    def end(self) -> None:
        """Write the last samples, and the archive's end."""
        self._flush()
        self._output.write([END_OF_ARCHIVE])

    def seal(self) -> Sealed:
        """Bring a file that has its end to disk; any thread may do that."""
        return self._output.seal(self.name, self._contents.index())

    def discard(self) -> None:
        """Close and remove the file; may be called at any time, also after `seal` failed."""
        self._waiting.clear()
        self._output.discard()

    @property
    def _are_small(self) -> bool:
        return self._waiting.num_bytes < _BIG_BYTES * len(self._waiting)

    @property
    def _buffer_bytes(self) -> int:
        return _BUFFER_BYTES if self._are_small else _MANY_BYTES

    def _flush(self) -> None:
        waiting = self._waiting
        if not waiting:
            return
        # where most is headers and small fields they are joined; a big field is not copied again
        are_small, samples = self._are_small, waiting.samples
        if samples:
            self._output.write([tar_of(samples)] if are_small else pieces_of(samples))
            self._contents.add(samples)
        else:
            members = waiting.members()
            self._output.write([members.tar()] if are_small else members.pieces())
            self._contents.add_alike(waiting.fields, members.sizes)
        waiting.clear()


class FrameFile:
    """An open compressed shard, as `ShardFile` is one that is not: it takes frames."""

    def __init__(self, partial: Path, name: str, compression: Compression) -> None:
        self.name = name
        self._compression = compression
        self._contents = Contents()
        self.keys = self._contents.keys
        self._output = _Output(partial)
        self._frames: list[tuple[int, int]] = []
        self._frames_bytes = 0

    @property
    def num_samples(self) -> int:
        """How many samples are in it."""
        return len(self._contents.keys)

    @property
    def size_bytes(self) -> int:
        """The file's size if it were sealed now."""
        return self._frames_bytes + self._compression.end_bytes(len(self._frames))

    def add_frame(self, frame: bytes, samples: Sequence[TarredSample]) -> None:
        """Append a frame of samples, whose keys are new to this shard."""
        start = self._contents.tar_bytes
        self.keys.update(dict.fromkeys([sample.key for sample in samples]))
        self._contents.add(samples)
        plain_bytes = self._contents.tar_bytes - start
        self._frames.append((len(frame), plain_bytes))
        self._frames_bytes += len(frame)
        self._output.write([frame])

    def end(self) -> None:
        """Write the archive's end."""
        end = self._compression.end
        frames = [*self._frames, (len(end), len(END_OF_ARCHIVE))]
        self._output.write([end, seek_table(frames)])

    def seal(self) -> Sealed:
        """Bring a file that has its end to disk; any thread may do that."""
        index = replace(self._contents.index(), compressed_bytes=self.size_bytes)
        return self._output.seal(self.name, index)

    def discard(self) -> None:
        """Close and remove the file; may be called at any time, also after `seal` failed."""
        self._output.discard()


class Contents:
    """What lies where in the tar of an open shard: what its index will say.

    `keys` are those of all its samples; whoever adds samples adds them, perhaps before.
    """

    def __init__(self) -> None:
        self.keys: dict[str, None] = {}
        self.tar_bytes = 0
        self._kinds: list[tuple[tuple[str, ...], int]] = []  # fields, of so many samples
        self._offsets: list[NDArray[np.int64]] = []  # of members, some of them at a time
        self._sizes: list[NDArray[np.int64]] = []

    def add(self, samples: Sequence[TarredSample]) -> None:
        """Append samples."""
        for fields, alike in groupby([sample.fields for sample in samples]):
            self._note(fields, len(list(alike)))
        if all(map(is_ordinary, samples)):
            header_bytes = np.array(BLOCK_BYTES, np.int64)
            data = chain.from_iterable([sample.data for sample in samples])
            data_bytes = np.array(list(map(len, data)), np.int64)
        else:
            made = [sample.made or ordinary(sample) for sample in samples]
            header_bytes = np.array([size for each in made for size in each.headers], np.int64)
            data_bytes = np.array([size for each in made for size in each.sizes], np.int64)
        self._place(header_bytes, data_bytes)

    def add_alike(self, fields: tuple[str, ...], data_bytes: NDArray[np.int64]) -> None:
        """Append samples with these fields and ordinary headers; `data_bytes` of each member."""
        self._note(fields, len(data_bytes) // len(fields))
        self._place(np.array(BLOCK_BYTES, np.int64), data_bytes)

    def _note(self, fields: tuple[str, ...], num_samples: int) -> None:
        if self._kinds and self._kinds[-1][0] == fields:
            num_samples += self._kinds.pop()[1]
        self._kinds.append((fields, num_samples))

    def _place(self, header_bytes: NDArray[np.int64], data_bytes: NDArray[np.int64]) -> None:
        in_blocks = -(-data_bytes // BLOCK_BYTES) * BLOCK_BYTES
        ends = self.tar_bytes + np.cumsum(header_bytes + in_blocks)
        self._offsets.append(ends - in_blocks)
        self._sizes.append(data_bytes)
        self.tar_bytes = int(ends[-1])

    def index(self) -> SampleIndex:
        """Index the archive, if it ended here."""
        kinds = {fields for fields, _ in self._kinds}
        names = tuple(sorted({name for fields in kinds for name in fields}, key=str.encode))
        numbers = {name: number for number, name in enumerate(names)}
        member_fields = [
            np.tile(np.array([numbers[name] for name in fields], np.uint32), count)
            for fields, count in self._kinds
        ]
        lengths = [np.full(count, len(fields), np.int64) for fields, count in self._kinds]
        text = "".join(self.keys)
        key_bytes = text.encode()
        is_ascii = len(key_bytes) == len(text)
        sizes = [len(key) if is_ascii else len(key.encode()) for key in self.keys]
        key_lengths = np.array(sizes, np.int64)
        none = np.zeros(0, np.int64)
        return SampleIndex(
            shard_bytes=self.tar_bytes + len(END_OF_ARCHIVE),
            fields=names,
            sample_starts=_starts(np.concatenate([none, *lengths])),
            member_offsets=np.concatenate([none, *self._offsets]),
            member_sizes=np.concatenate([none, *self._sizes]),
            member_fields=np.concatenate([np.zeros(0, np.uint32), *member_fields]),
            key_starts=_starts(key_lengths),
            key_bytes=np.frombuffer(key_bytes, dtype=np.uint8),
        )


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


class _Output:
    """A file that is written from its start to its end, with the digest of what was written.

    Of much that is written at a time the digest is made beside the writing.
    """

    def __init__(self, partial: Path) -> None:
        self._partial = partial
        self._digest = xxhash.xxh3_128()
        self._beside = Beside(ahead=_DIGESTS_AHEAD)
        self._size_bytes = 0
        with naming(partial):
            self._file = partial.open("wb", buffering=0)

    def write(self, chunks: Sequence[bytes | bytearray]) -> None:
        size_bytes = sum(map(len, chunks))
        if size_bytes >= _WORTH_A_THREAD:
            self._beside.do(_update, self._digest, chunks)
        else:
            self._beside.finish()
            _update(self._digest, chunks)
        with naming(self._partial):
            for at in range(0, len(chunks), _MAX_PIECES):
                write_all(self._file.fileno(), chunks[at : at + _MAX_PIECES])
        self._size_bytes += size_bytes

    def seal(self, name: str, index: SampleIndex) -> Sealed:
        with naming(self._partial):
            os.fsync(self._file.fileno())
            self._file.close()
        self._beside.finish()
        self._beside.end()
        finished = FinishedShard(
            name=name,
            size_bytes=self._size_bytes,
            num_samples=index.num_samples,
            index_digest=index.digest,
            content_digest=self._digest.hexdigest(),
        )
        return Sealed(finished=finished, partial=self._partial, index=index.to_bytes())

    def discard(self) -> None:
        self._beside.end()
        try:
            self._file.close()
        except OSError:  # a full disk says so once more; the file goes anyway
            pass
        finally:
            self._partial.unlink(missing_ok=True)


def _update(digest: xxhash.xxh3_128, chunks: Sequence[bytes | bytearray]) -> None:
    for chunk in chunks:
        digest.update(chunk)


def write_all(handle: int, pieces: Sequence[bytes | bytearray]) -> None:
    """Write all of some pieces, however little the system takes at a time."""
    size = sum(map(len, pieces))
    done = os.writev(handle, pieces)
    if done < size:
        rest = memoryview(b"".join(pieces))[done:]
        while rest:
            rest = rest[os.write(handle, rest) :]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn the system's error into one that names the file."""
    try:
        yield
    except OSError as error:
        raise WorldError(
            f"the shard {str(path)!r} can't be written: {error.strerror or error}"
        ) from error
