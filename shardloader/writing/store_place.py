"""How is a folder of a remote store a place for a writer?

As `place` wants it: each file is put whole, shards from temporary files in a local folder, which
goes when the write is done. A store can't append: what is appended to a file lies beside it, in
pieces of many lines that are put anew with each line. Shards that are finished need nothing of
the local folder, so that another machine can end what this one began.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import xxhash

from shardloader.errors import UsageError, WorldError
from shardloader.format.urls import without_secrets
from shardloader.reading.clients import READ_ONLY
from shardloader.reading.remote import Store
from shardloader.reading.storing import make_folder, put, put_file, remove, sizes_in
from shardloader.writing.lease import Lease, Rhythm, machine_of
from shardloader.writing.lock import LOCK_NAME, FolderLock
from shardloader.writing.shard_file import naming

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_PIECE_BYTES: Final = 256 << 10  # of what was appended, then another piece begins
_PIECE: Final = re.compile(r"\.[0-9a-f]{16}\.[0-9]{6}")
_KEPT: Final = ".shardloader-kept-"
_WORK_OF_A_WRITER: Final = "writer"  # which can't be repeated, and so has no fingerprint


class StorePlace:
    """A folder of a store that fsspec opens.

    `temporary` is the local folder for temporary files; the system's if it is None.
    """

    keeps_work = False

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        *,
        temporary: str | os.PathLike[str] | None = None,
        rhythm: Rhythm | None = None,
    ) -> None:
        self.store = Store(url.rstrip("/"), options)
        _refuse_what_takes_no_files(self.store)
        self.shown = self.store.name
        name = xxhash.xxh3_64_hexdigest(self.store.identity_of(self.store.folder_url).encode())
        self._temporary = Path(temporary or tempfile.gettempdir()).absolute()
        self._local = self._temporary / f"shardloader-{os.geteuid()}-{name}"
        self._lock = FolderLock(Path(f"{self._local}.lock"), self.shown)
        self._lease = Lease(self.store, LOCK_NAME, rhythm)
        self._grown: dict[str, _Grown] = {}
        self._kept_bytes: dict[str, int] = {}
        self.work = self._local / _WORK_OF_A_WRITER

    @property
    def partials(self) -> Path:
        """The folder of temporary files."""
        return self.work

    @property
    def is_held(self) -> bool:
        """Whether this object holds the place."""
        return self._lock.is_held

    @property
    def handle(self) -> int | None:
        """The descriptor of the local lock."""
        return self._lock.handle

    def exists(self) -> bool:
        """A store has no folders without files: it is always there."""
        return True

    def take(self, *, fingerprint: str | None = None) -> None:
        """Hold it, here and on the store."""
        self.work = self._local / (fingerprint or _WORK_OF_A_WRITER)
        with naming(self._local):
            self._temporary.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self._local.mkdir(mode=0o700, exist_ok=True)
            self._refuse_what_is_not_ours()
        make_folder(self.store)
        self._lease.acquire(machine_of(self._temporary))

    def make_work(self) -> None:
        """Make the local folder; what writes with other fingerprints left there goes."""
        with naming(self._local):
            for item in self._local.iterdir():
                if item != self.work or item.name == _WORK_OF_A_WRITER:
                    shutil.rmtree(item)
            self.work.mkdir(exist_ok=True)

    def release(self) -> None:
        """Let other writers in."""
        try:
            self._lease.release()
        finally:
            if self._lock.is_held and self._local.is_dir() and not any(self._local.iterdir()):
                self._local.rmdir()
            self._lock.release()

    def path(self, name: str) -> str:
        """Give the URL of a file, without secrets."""
        return self.store.at(name).name

    def names(self) -> list[str]:
        """Give the names of the files that are there."""
        return list(sizes_in(self.store))

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Give the sizes of those files that are there; asks once for all."""
        found = sizes_in(self.store)
        return {name: found[name] for name in names if name in found}

    def read(self, name: str) -> bytes | None:
        """Read a file with what was appended to it; None if it is not there."""
        head = self.store.at(name).whole_if_there()
        if head is None or not name.startswith("."):
            return head
        pieces = [head]
        while (more := self._piece(name, head, len(pieces))) is not None:
            pieces.append(more)
        return b"".join(pieces)

    def _piece(self, name: str, head: bytes, number: int) -> bytes | None:
        return self.store.at(_piece_name(name, head, number)).whole_if_there()

    def publish(self, name: str, data: bytes) -> None:
        """Put a file, in place of an older one and all that was appended to that."""
        self._lease.check()
        put(self.store.at(name), data)
        if name.startswith("."):
            self._grown[name] = _Grown(name, data)
            self._remove_pieces(name)

    def publish_file(self, path: Path, name: str) -> None:
        """Put a file, and remove the local one."""
        self._lease.check()
        put_file(self.store.at(name), path)
        with naming(path):
            path.unlink()

    def append(self, name: str, data: bytes) -> None:
        """Put the last piece of a file anew, with this at its end."""
        self._lease.check()
        piece, content = self._grown[name].with_more(data)
        put(self.store.at(piece), content)

    def remove(self, name: str) -> None:
        """Remove a file, and what was appended to it."""
        remove(self.store.at(name))
        if name.startswith("."):
            self._remove_pieces(name)
            for kept in self._names_of_kept():
                remove(self.store.at(kept))

    def keep(self, path: Path) -> None:
        """Put a temporary file on the store, if it has grown."""
        size = path.stat().st_size
        if size and size != self._kept_bytes.get(path.name):
            self._lease.check()
            put_file(self.store.at(f"{_KEPT}{path.name}"), path)
            self._kept_bytes[path.name] = size

    def restore(self, path: Path) -> None:
        """Fetch a temporary file that was put on the store."""
        data = self.store.at(f"{_KEPT}{path.name}").whole_if_there()
        if data is not None:
            with naming(path):
                path.write_bytes(data)

    def clear_work(self) -> None:
        """Remove the local folder's files."""
        shutil.rmtree(self.work, ignore_errors=True)

    def _names_of_kept(self) -> list[str]:
        return [name for name in self.names() if name.startswith(_KEPT)]

    def _remove_pieces(self, name: str) -> None:
        for found in self.names():
            rest = found.removeprefix(name)
            if rest != found and _PIECE.fullmatch(rest):
                remove(self.store.at(found))

    def _refuse_what_is_not_ours(self) -> None:
        status = self._local.lstat()
        if status.st_uid != os.geteuid() or self._local.is_symlink():
            raise WorldError(
                f"{self._local} belongs to somebody else: give another folder for temporary files"
            )


class _Grown:
    """A file that is appended to: the piece that is last."""

    def __init__(self, name: str, head: bytes) -> None:
        self._name = name
        self._head = head
        self._number = 1
        self._last = b""

    def with_more(self, data: bytes) -> tuple[str, bytes]:
        """Give the last piece's name, and its content with more at its end."""
        if len(self._last) >= _PIECE_BYTES:
            self._number, self._last = self._number + 1, b""
        self._last += data
        return _piece_name(self._name, self._head, self._number), self._last


def _piece_name(name: str, head: bytes, number: int) -> str:
    """Name a piece so that it is of this head: older ones' pieces are none of it."""
    return f"{name}.{xxhash.xxh3_64_hexdigest(head)}.{number:06d}"


def _refuse_what_takes_no_files(store: Store) -> None:
    url = store.folder_url
    if "::" in url or store.scheme in READ_ONLY or "?" in url:
        raise UsageError(
            f"a writer writes to a folder, here or on a store such as s3://bucket/corpus, not to "
            f"{without_secrets(url)!r}: write to a folder here, and upload that"
        )
