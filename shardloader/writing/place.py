"""Where do a writer's files come to lie: what must such a place be able to do?

`Place` is the seam; a local folder is one, here, and a folder of a remote store in `store_place`.
A file appears under its name whole or not at all; one writer at a time holds the place; what is
temporary lies in a local folder of its own. A place knows names and bytes, not what they mean.
"""

from __future__ import annotations

import os
import secrets
import shutil
from typing import TYPE_CHECKING, Protocol

from shardloader.errors import UsageError, WorldError
from shardloader.reading.store import sync_folder, write_and_sync
from shardloader.writing.lock import LOCK_NAME, FolderLock
from shardloader.writing.shard_file import naming

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

WORK_NAME = ".shardloader-work"


class Place(Protocol):
    """A folder, here or on a store."""

    @property
    def shown(self) -> str:
        """What messages call it; without secrets."""
        ...

    @property
    def work(self) -> Path:
        """The local folder of temporary files; may not be there."""
        ...

    @property
    def partials(self) -> Path:
        """A local folder for files that `publish_file` will take, there once it is taken."""
        ...

    @property
    def keeps_work(self) -> bool:
        """Whether an unfinished write's temporary files are sure to be seen by whoever ends it."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether this object holds the place."""
        ...

    @property
    def handle(self) -> int | None:
        """The descriptor that a forked child has to close."""
        ...

    def exists(self) -> bool:
        """Whether it is there. Raises UsageError if something else is."""
        ...

    def take(self, *, fingerprint: str | None = None) -> None:
        """Make it if need be, and hold it; raises UsageError if another writer does."""
        ...

    def make_work(self) -> None:
        """Make the folder of temporary files, where it does not lie in the place itself."""
        ...

    def release(self) -> None:
        """Let other writers in; does nothing if it is not held."""
        ...

    def path(self, name: str) -> str:
        """What messages call a file of it."""
        ...

    def names(self) -> list[str]:
        """Give the names of what is there."""
        ...

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Give the sizes of those files that are there."""
        ...

    def read(self, name: str) -> bytes | None:
        """Read a small file, with all that was appended to it; None if it is not there."""
        ...

    def publish(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all."""
        ...

    def publish_file(self, path: Path, name: str) -> None:
        """Give a finished local file its place and name."""
        ...

    def append(self, name: str, data: bytes) -> None:
        """Add to a file that was published; it is safe when this returns."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...

    def keep(self, path: Path) -> None:
        """Have a temporary file outlive this machine, where the place does and its files do not."""
        ...

    def restore(self, path: Path) -> None:
        """Make a temporary file again that was kept."""
        ...

    def clear_work(self) -> None:
        """Remove all that is temporary."""
        ...


class FolderPlace:
    """A local folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / WORK_NAME
        self.partials = folder
        self.shown = str(folder)
        self.keeps_work = True
        self._lock = FolderLock(folder / LOCK_NAME, self.shown)

    @property
    def is_held(self) -> bool:
        """Whether this object holds the folder."""
        return self._lock.is_held

    @property
    def handle(self) -> int | None:
        """The descriptor that holds the lock, which a forked child closes."""
        return self._lock.handle

    def exists(self) -> bool:
        """Whether there is a folder. Raises UsageError if there is a file."""
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"a destination is a folder, and {self.shown!r} is none")
        return self.folder.is_dir()

    def take(self, *, fingerprint: str | None = None) -> None:
        """Make the folder, and lock it."""
        del fingerprint
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()

    def make_work(self) -> None:
        """Do nothing: whoever writes a temporary file makes its folder."""

    def release(self) -> None:
        """Let other writers in."""
        self._lock.release()

    def path(self, name: str) -> str:
        """Give the path of a file."""
        return str(self.folder / name)

    def names(self) -> list[str]:
        """Give the names of what is there."""
        return [item.name for item in self.folder.iterdir()]

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Give the sizes of those files that are there."""
        found = {name: self.folder / name for name in names}
        return {name: path.stat().st_size for name, path in found.items() if path.is_file()}

    def read(self, name: str) -> bytes | None:
        """Read a file; None if it is not there."""
        path = self.folder / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WorldError(f"{path}: can't be read: {error.strerror or error}") from error

    def publish(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all, also after a power cut.

        What a kill leaves of it lies where the next write clears up.
        """
        path, temporary = self.folder / name, self.work / secrets.token_hex(8)
        with naming(path):
            self.work.mkdir(exist_ok=True)
            write_and_sync(temporary, data)
            temporary.replace(path)
            sync_folder(self.folder)

    def publish_file(self, path: Path, name: str) -> None:
        """Rename a file that is on disk."""
        with naming(self.folder / name):
            path.replace(self.folder / name)
            sync_folder(self.folder)

    def append(self, name: str, data: bytes) -> None:
        """Add to a file, and bring it to disk."""
        path = self.folder / name
        try:
            with path.open("ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise WorldError(f"{path}: can't be written: {error.strerror or error}") from error

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self.folder / name).unlink(missing_ok=True)

    def keep(self, path: Path) -> None:
        """Do nothing: temporary files lie in the folder, and stay."""

    def restore(self, path: Path) -> None:
        """Do nothing: a temporary file that is gone is gone."""

    def clear_work(self) -> None:
        """Remove all that is temporary."""
        shutil.rmtree(self.work, ignore_errors=True)
