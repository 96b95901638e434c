"""One shard while it is written: a temporary file, until it is whole and on disk.

Knows bytes and one file. Does not know when a shard is full, what else is in the folder, nor who
gives the file its final name. Its temporary name begins with a dot and ends in ".partial", so
nothing that looks for shards ever finds half of one.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from shardloader.errors import WorldError
from shardloader.format.index import SampleIndex
from shardloader.format.tar_header import BLOCK_BYTES, END_OF_ARCHIVE, member_header, padding
from shardloader.reading.source import INDEX_SUFFIX
from shardloader.writing.frames import Compression, seek_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from shardloader.writing.encode import EncodedSample

_PARTIAL_SUFFIX = ".partial"
_BUFFER_BYTES = 1 << 20  # one write and one update of the digest for about this much

_PADDINGS = tuple(bytes(padding(size)) for size in range(BLOCK_BYTES))

Members = list[tuple[str, int, int]]  # field, offset of its data, size


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


class TarredSample(NamedTuple):
    """A sample as it will lie in a shard: its bytes in pieces, offsets from its own start."""

    key: str
    members: Members
    pieces: list[bytes]
    size_bytes: int


def tarred(sample: EncodedSample) -> TarredSample:
    """Return the headers, data and padding of a sample's members, in order."""
    key, encoded = sample
    members: Members = []
    pieces: list[bytes] = []
    at = 0
    for field, data in encoded:
        size = len(data)
        header = member_header(f"{key}.{field}", size)
        pad = _PADDINGS[size % BLOCK_BYTES]
        at += len(header)
        members.append((field, at, size))
        pieces += (header, data, pad)
        at += size + len(pad)
    return TarredSample(key, members, pieces, at)


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
    """An open shard. After `seal` or `discard` it is done with.

    `num_samples` are in it; `size_bytes` is the file's size if it were sealed now.
    """

    def __init__(self, partial: Path, name: str) -> None:
        self.name = name
        self.size_bytes = len(END_OF_ARCHIVE)
        self._contents = Contents()
        self._output = _Output(partial)
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0

    @property
    def num_samples(self) -> int:
        """How many samples are in it."""
        return len(self._contents.keys)

    def __contains__(self, key: str) -> bool:
        return key in self._contents.keys

    def add(self, sample: TarredSample) -> None:
        """Append a sample, whose key is new to this shard."""
        key, members, pieces, size_bytes = sample
        self._contents.add(key, members, size_bytes)
        self._pieces += pieces
        self.size_bytes += size_bytes
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= _BUFFER_BYTES:
            self._flush()

    def seal(self) -> Sealed:
        """End the archive and bring it to disk."""
        self._pieces.append(END_OF_ARCHIVE)
        self._flush()
        return self._output.seal(self.name, self._contents.index())

    def discard(self) -> None:
        """Close and remove the file; may be called at any time, also after `seal` failed."""
        self._pieces.clear()
        self._output.discard()

    def _flush(self) -> None:
        big = self._waiting_bytes >= 4 * _BUFFER_BYTES  # a big field is not copied once more
        self._output.write(self._pieces if big else [b"".join(self._pieces)])
        self._pieces = []
        self._waiting_bytes = 0


class FrameFile:
    """An open compressed shard, as `ShardFile` is one that is not: it takes frames."""

    def __init__(self, partial: Path, name: str, compression: Compression) -> None:
        self.name = name
        self._compression = compression
        self._contents = Contents()
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

    def __contains__(self, key: str) -> bool:
        return key in self._contents.keys

    def add_frame(self, frame: bytes, samples: Sequence[TarredSample]) -> None:
        """Append a frame of samples, whose keys are new to this shard."""
        plain_bytes = 0
        for key, members, _, size_bytes in samples:
            self._contents.add(key, members, size_bytes)
            plain_bytes += size_bytes
        self._frames.append((len(frame), plain_bytes))
        self._frames_bytes += len(frame)
        self._output.write([frame])

    def seal(self) -> Sealed:
        """End the archive and bring it to disk."""
        end = self._compression.end
        frames = [*self._frames, (len(end), len(END_OF_ARCHIVE))]
        self._output.write([end, seek_table(frames)])
        return self._output.seal(self.name, self._contents.index())

    def discard(self) -> None:
        """Close and remove the file; may be called at any time, also after `seal` failed."""
        self._output.discard()


class Contents:
    """What lies where in the tar of an open shard: what its index will say.

    Flat lists, since a container for each sample would keep the garbage collector busy.
    """

    def __init__(self) -> None:
        self.keys: dict[str, None] = {}
        self.tar_bytes = 0
        self._starts: list[int] = []
        self._lengths: list[int] = []
        self._members: Members = []

    def add(self, key: str, members: Members, size_bytes: int) -> None:
        """Append a sample."""
        self.keys[key] = None
        self._starts.append(self.tar_bytes)
        self._lengths.append(len(members))
        self._members += members
        self.tar_bytes += size_bytes

    def index(self) -> SampleIndex:
        """Index the archive, if it ended here."""
        shard_bytes = self.tar_bytes + len(END_OF_ARCHIVE)
        return SampleIndex.of_samples(self._located(), shard_bytes=shard_bytes)

    def _located(self) -> Iterator[tuple[str, Members]]:
        """Yield key and members of each sample, with offsets from the start of the tar."""
        at = 0
        for key, start, length in zip(self.keys, self._starts, self._lengths, strict=True):
            members = self._members[at : at + length]
            at += length
            yield key, [(field, start + offset, size) for field, offset, size in members]


class _Output:
    """A file that is written from its start to its end, with the digest of what was written."""

    def __init__(self, partial: Path) -> None:
        self._partial = partial
        self._digest = xxhash.xxh3_128()
        self._size_bytes = 0
        with naming(partial):
            self._file = partial.open("wb")

    def write(self, chunks: Sequence[bytes]) -> None:
        with naming(self._partial):
            for chunk in chunks:
                self._file.write(chunk)
                self._digest.update(chunk)
                self._size_bytes += len(chunk)

    def seal(self, name: str, index: SampleIndex) -> Sealed:
        with naming(self._partial):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        finished = FinishedShard(
            name=name,
            size_bytes=self._size_bytes,
            num_samples=index.num_samples,
            index_digest=index.digest,
            content_digest=self._digest.hexdigest(),
        )
        return Sealed(finished=finished, partial=self._partial, index=index.to_bytes())

    def discard(self) -> None:
        try:
            self._file.close()
        except OSError:  # a full disk says so once more; the file goes anyway
            pass
        finally:
            self._partial.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn the system's error into one that names the file."""
    try:
        yield
    except OSError as error:
        raise WorldError(
            f"the shard {str(path)!r} can't be written: {error.strerror or error}"
        ) from error
