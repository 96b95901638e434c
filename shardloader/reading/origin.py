"""Where does a shard come from, and is it still the same?

The seam between a store and the node's cache: the cache asks for an origin's identity and version,
which name the cached file, and for its bytes. It knows nothing else of a store, and a store
nothing of the cache.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from shardloader.errors import WorldError
from shardloader.reading.store import why_unread

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_BYTES: Final = 256 << 10


class Origin(Protocol):
    """A shard as its store has it.

    name: what messages call it, without secrets. identity: what tells it from every other shard:
    the whole path or URL, not its last part.
    """

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def identity(self) -> str:
        """What tells it from every other shard."""
        ...

    @property
    def tar_bytes(self) -> int | None:
        """How many bytes its tar has, as far as that is known before they are here; else None."""
        ...

    def version(self) -> str:
        """What tells this content from earlier and later ones: size and time, or an etag.

        Raises WorldError where the store does not answer.
        """
        ...

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes from the first on; raises WorldError if they can't all be had."""
        ...


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of this machine, or of a file system that it has mounted. It is only ever read.

    piece_bytes: how much is read at once.
    """

    path: str
    piece_bytes: int = field(default=PIECE_BYTES, kw_only=True)

    @property
    def tar_bytes(self) -> None:
        """Not known: it may be compressed."""

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    @property
    def identity(self) -> str:
        """The whole path, with no link in it."""
        return f"file://{os.path.realpath(self.path)}"

    def version(self) -> str:
        """Size, times and inode: what is put in its place, or written into it, has others.

        ctime is among them, as it can't be set back.
        """
        status = self.status()
        return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}-{status.st_ino}"

    def status(self) -> os.stat_result:
        """What the file system says of it; raises WorldError where it says nothing."""
        try:
            return Path(self.path).stat()
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def first(self, num_bytes: int) -> bytes:
        """Its first bytes, fewer where it has fewer."""
        try:
            with Path(self.path).open("rb", buffering=0) as file:
                return file.read(num_bytes)
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def pieces(self) -> Iterator[bytes]:
        """Yield the file piece by piece."""
        try:
            with Path(self.path).open("rb", buffering=0) as file:
                while piece := file.read(self.piece_bytes):
                    yield piece
        except OSError as error:
            raise _unreadable(self.path, error) from error


def _unreadable(path: str, error: OSError) -> WorldError:
    return WorldError(f"{path}: the file can't be read: {why_unread(error)}")
