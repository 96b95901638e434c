"""One shard while it is written: a temporary file that gets its final name when it is whole.

Knows bytes and one file. Does not know when a shard is full, nor what else is in the folder. The
file's name begins with a dot and ends in ".partial" until the archive is finished and on disk, so
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
from shardloader.reading.store import publish

if TYPE_CHECKING:
    from collections.abc import Iterator
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
    """An open shard. After `finish` or `discard` it is done with.

    `num_samples` are in it; `size_bytes` is the file's size if it were finished now.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.num_samples = 0
        self.size_bytes = len(END_OF_ARCHIVE)
        self._path = folder / name
        self._partial = folder / partial_name(name)
        # By sample: key, where it starts, how many members; the members of all in one list.
        # Flat, since a container for each sample would keep the garbage collector busy.
        self._keys: dict[str, None] = {}
        self._starts: list[int] = []
        self._lengths: list[int] = []
        self._members: Members = []
        self._digest = xxhash.xxh3_128()
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        with _naming(self._partial):
            self._file = self._partial.open("wb")

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, sample: TarredSample) -> None:
        """Append a sample, whose key is new to this shard."""
        key, members, pieces, size_bytes = sample
        self._keys[key] = None
        self._starts.append(self.size_bytes - len(END_OF_ARCHIVE))
        self._lengths.append(len(members))
        self._members += members
        self._pieces += pieces
        self.num_samples += 1
        self.size_bytes += size_bytes
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= _BUFFER_BYTES:
            self._flush()

    def finish(self) -> FinishedShard:
        """End the archive, bring it to disk, give it its name, and publish its index."""
        self._pieces.append(END_OF_ARCHIVE)
        self._flush()
        with _naming(self._partial):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        index = SampleIndex.of_samples(self._located(), shard_bytes=self.size_bytes)
        with _naming(self._path):
            self._partial.replace(self._path)
        publish(str(self._path) + INDEX_SUFFIX, index.to_bytes())
        return FinishedShard(
            name=self.name,
            size_bytes=self.size_bytes,
            num_samples=self.num_samples,
            index_digest=index.digest,
            content_digest=self._digest.hexdigest(),
        )

    def discard(self) -> None:
        """Close and remove the file; may be called at any time, also after `finish` failed."""
        self._pieces.clear()
        try:
            self._file.close()
        except OSError:  # a full disk says so once more; the file goes anyway
            pass
        finally:
            self._partial.unlink(missing_ok=True)

    def _located(self) -> Iterator[tuple[str, Members]]:
        """Yield key and members of each sample, with offsets from the start of the file."""
        at = 0
        for key, start, length in zip(self._keys, self._starts, self._lengths, strict=True):
            members = self._members[at : at + length]
            at += length
            yield key, [(field, start + offset, size) for field, offset, size in members]

    def _flush(self) -> None:
        big = self._waiting_bytes >= 4 * _BUFFER_BYTES  # a big field is not copied once more
        chunks = self._pieces if big else [b"".join(self._pieces)]
        with _naming(self._partial):
            for chunk in chunks:
                self._file.write(chunk)
                self._digest.update(chunk)
        self._pieces = []
        self._waiting_bytes = 0


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn the system's error into one that names the file."""
    try:
        yield
    except OSError as error:
        raise WorldError(
            f"the shard {str(path)!r} can't be written: {error.strerror or error}"
        ) from error
