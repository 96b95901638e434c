"""One shard while it is written: a temporary file, until it is whole and on disk.

Knows bytes and one file. Does not know when a shard is full, what else is in the folder, nor who
gives the file its final name. Its temporary name begins with a dot and ends in ".partial", so
nothing that looks for shards ever finds half of one.
"""

from __future__ import annotations

import mmap
import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import xxhash

from shardloader.errors import WorldError
from shardloader.format.seek_table import seek_table
from shardloader.format.tar_header import END_OF_ARCHIVE
from shardloader.reading.source import INDEX_SUFFIX
from shardloader.reading.store import WRITE_BYTES
from shardloader.writing.beside import Beside
from shardloader.writing.contents import Contents
from shardloader.writing.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from shardloader.format.index import SampleIndex
    from shardloader.writing.contents import Outline
    from shardloader.writing.frames import Compression
    from shardloader.writing.layout import Limits
    from shardloader.writing.tarring import TarredSample

_PARTIAL_SUFFIX = ".partial"
_BUFFER_BYTES = 1 << 23  # of samples that wait: made into bytes and digested at a time
_BIG_BYTES = 1 << 14  # of a sample
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
        self._written_bytes = 0
        self._waiting = Waiting(self.keys)
        self.take = self._waiting.take

    @property
    def num_samples(self) -> int:
        """How many samples are in it."""
        return len(self.keys)

    @property
    def size_bytes(self) -> int:
        """The file's size if it were sealed now."""
        return self._written_bytes + self._waiting.num_bytes + len(END_OF_ARCHIVE)

    def add(self, sample: TarredSample) -> None:
        """Append a sample, whose key is new to this shard."""
        self._waiting.add(sample)
        if self._waiting.num_bytes >= _BUFFER_BYTES:
            self._flush()

    def expect(self, names: tuple[str, ...], limits: Limits) -> None:
        """Let `take` take samples with these entries, as long as the shard is not full then."""
        waiting = self._waiting
        waiting.expect(
            names,
            max_samples=limits.max_samples - 1,
            num_bytes=min(limits.max_bytes - self.size_bytes, _BUFFER_BYTES - waiting.num_bytes),
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

    def _flush(self) -> None:
        waiting = self._waiting
        if not waiting:
            return
        # where most is headers and small fields they are joined; a big field is not copied again
        are_small = waiting.num_bytes < _BIG_BYTES * len(waiting)
        pieces: Sequence[bytes | bytearray]
        if are_small:
            tar, outline = waiting.tar()
            pieces = (tar,)
        else:
            pieces, outline = waiting.pieces()
        self._output.write(pieces)
        self._contents.add(outline)
        self._written_bytes += waiting.num_bytes
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

    def add_frame(self, frame: bytes, keys: Sequence[str], outline: Outline) -> None:
        """Append a frame of samples: their keys, which are new to this shard, and their outline."""
        start = self._contents.tar_bytes
        self.keys.update(dict.fromkeys(keys))
        self._contents.add(outline)
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


class _Output:
    """A file that is written from its start to its end, with the digest of what lies in it.

    The digest is made beside the writing, of the pages that the system has of the file anyway.
    """

    def __init__(self, partial: Path) -> None:
        self._partial = partial
        self._digest = xxhash.xxh3_128()
        self._beside = Beside(ahead=_DIGESTS_AHEAD)
        self._size_bytes = 0
        self._digested_bytes = 0  # or to be, by what was asked for beside
        with naming(partial):
            self._file = partial.open("w+b", buffering=0)

    def write(self, chunks: Sequence[bytes | bytearray]) -> None:
        with naming(self._partial):
            for call in _calls(chunks):
                write_all(self._file.fileno(), call)
        self._size_bytes += sum(map(len, chunks))
        if self._size_bytes - self._digested_bytes >= _BUFFER_BYTES:
            self._beside.do(self._update, self._digested_bytes, self._size_bytes)
            self._digested_bytes = self._size_bytes

    def seal(self, name: str, index: SampleIndex) -> Sealed:
        with naming(self._partial):
            os.fsync(self._file.fileno())
        self._beside.finish()
        self._beside.end()
        if self._digested_bytes < self._size_bytes:
            self._update(self._digested_bytes, self._size_bytes)
        with naming(self._partial):
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
        self._beside.end()
        try:
            self._file.close()
        except OSError:  # a full disk says so once more; the file goes anyway
            pass
        finally:
            self._partial.unlink(missing_ok=True)

    def _update(self, start: int, stop: int) -> None:
        """Take a stretch of the file into the digest."""
        skipped = start % mmap.ALLOCATIONGRANULARITY
        with (
            naming(self._partial),
            mmap.mmap(
                self._file.fileno(),
                stop - start + skipped,
                flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
                prot=mmap.PROT_READ,
                offset=start - skipped,
            ) as stretch,
            memoryview(stretch) as data,
            data[skipped:] as wanted,
        ):
            self._digest.update(wanted)


def _calls(pieces: Sequence[bytes | bytearray]) -> Iterator[list[Any]]:
    """Give pieces to be written as those of one call of the system each."""
    call: list[Any] = []
    call_bytes = 0
    for piece in pieces:
        if len(piece) > WRITE_BYTES:
            yield call
            call, call_bytes = [], 0
            view = memoryview(piece)
            for at in range(0, len(view), WRITE_BYTES):
                yield [view[at : at + WRITE_BYTES]]
            continue
        call.append(piece)
        call_bytes += len(piece)
        if call_bytes >= WRITE_BYTES or len(call) == _MAX_PIECES:
            yield call
            call, call_bytes = [], 0
    yield call


def write_all(handle: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
    """Write all of some pieces, however little the system takes at a time."""
    size = sum(map(len, pieces))
    if not size:
        return
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
