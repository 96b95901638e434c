"""What is in a folder of a tree, and in its files: of a local tree, or one on a store?

Lists one folder at a time and reads files whose sizes were seen before. Does not decide what
becomes of them.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from shardloader.errors import UsageError, WorldError
from shardloader.reading.faults import Trouble, trouble_of
from shardloader.reading.remote import RemoteFile, Store
from shardloader.reading.store import why_unread
from shardloader.writing.sources.base import system_name, utf8_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

Kind: TypeAlias = Literal["file", "folder", "empty folder", "hidden", "symlink", "special file"]

_TOGETHER_BYTES: Final = 8 << 20  # of small files that are asked for at once
_TOGETHER: Final = 64


class Entry(NamedTuple):
    """Something found in a folder; `path` is relative to the source, with "/" after a folder.

    `changed` tells one content from another: the time of change, or a store's tag.
    """

    path: str
    kind: Kind
    size: int = 0
    changed: int | str = 0


class Wanted(NamedTuple):
    """A file to read, and the size that it had when it was seen."""

    path: str
    size: int


class Tree(Protocol):
    """A folder with files and folders in it."""

    @property
    def shown(self) -> str:
        """What messages call it; without secrets."""
        ...

    def require(self) -> None:
        """Raise UsageError if there is no such folder."""
        ...

    def entries(self, prefix: str) -> list[Entry]:
        """List a folder of the tree; `prefix` is "" or ends in "/". A hidden folder is one entry.

        Raises UsageError if the tree is no folder, WorldError for one that can't be read.
        """
        ...

    def contents(self, files: Sequence[Wanted]) -> Iterator[bytes]:
        """Yield what is in some files, in order. Raises WorldError where it is not to be had."""
        ...


class LocalTree:
    """A folder here; links are not followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shown = str(folder)

    def require(self) -> None:
        """Raise UsageError if there is no such folder."""
        if not self.folder.is_dir():
            raise UsageError(f"the source is a folder, and {self.shown!r} is none")

    def entries(self, prefix: str) -> list[Entry]:
        """List a folder of the tree."""
        try:
            with os.scandir(self.folder / system_name(prefix)) as found:
                return [_entry(prefix, item) for item in found]
        except NotADirectoryError:
            raise UsageError(f"the source is a folder, and {self.shown!r} is none") from None
        except OSError as error:
            raise WorldError(
                f"the folder {str(self.folder / prefix)!r} can't be read: {why_unread(error)}"
            ) from error

    def contents(self, files: Sequence[Wanted]) -> Iterator[bytes]:
        """Yield what is in some files, in order."""
        for file in files:
            path = self.folder / system_name(file.path)
            try:
                data = path.read_bytes()
            except OSError as error:
                raise WorldError(
                    f"the file {str(path)!r} can't be read: {why_unread(error)}"
                ) from error
            yield _unchanged(data, file, str(path))


class StoreTree:
    """A folder on a store; several small files are asked for at once."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._store = Store(url.rstrip("/"), options)
        self.shown = self._store.name

    @property
    def root(self) -> RemoteFile:
        """The folder itself."""
        return RemoteFile(store=self._store, url=self._store.folder_url)

    def require(self) -> None:
        """Raise UsageError if there is nothing in it: a store has no other folders."""
        if not self.entries(""):
            raise UsageError(f"there is nothing to read at {self.shown!r}: no such folder")

    def entries(self, prefix: str) -> list[Entry]:
        """List a folder of the tree."""
        url = f"{self._store.folder_url}/{prefix}".rstrip("/")

        def found(client: Any) -> list[Entry]:
            client.invalidate_cache()
            try:
                listed = client.ls(url, detail=True)
            except FileNotFoundError as error:
                if trouble_of(error) is not Trouble.MISSING:
                    raise
                return []
            folder = client._strip_protocol(url).rstrip("/")  # noqa: SLF001
            inside = [each for each in listed if each["name"].rstrip("/") != folder]
            if listed and not inside and listed[0]["type"] != "directory":
                raise self._hidden(prefix)
            return without_marks([_stored(prefix, each) for each in inside])

        return self._store.ask(found, shown=self.shown, wanted="list its files")

    def contents(self, files: Sequence[Wanted]) -> Iterator[bytes]:
        """Yield what is in some files, in order."""
        for some in _together(files):
            filled = [file for file in some if file.size]
            found = dict(zip(filled, self._fetched(filled), strict=True))
            for file in some:
                name = self._store.at(file.path).name
                yield _unchanged(found[file] if file.size else b"", file, name)

    def _hidden(self, prefix: str) -> UsageError:
        """The error of a file that is listed where a folder was asked for."""
        if prefix == "":
            return UsageError(f"the source is a folder, and {self.shown!r} is a file")
        name = self._store.at(prefix.rstrip("/")).name
        return UsageError(
            f"{name} is a folder, and the store lists only an empty file of that name in its "
            "place: remove that file"
        )

    def _fetched(self, files: Sequence[Wanted]) -> list[bytes]:
        urls = [self._store.at(file.path).url for file in files]
        if len(urls) == 1:
            return [self._store.at(files[0].path).whole()]

        def ask(client: Any) -> list[bytes]:
            # to one byte behind its size, so that a file that has grown is noticed
            ends = [file.size + 1 for file in files]
            found = client.cat_ranges(urls, [0] * len(urls), ends, on_error="return")
            for each in found:
                if isinstance(each, BaseException):
                    raise each
            return [bytes(each) for each in found]

        return self._store.ask(ask, shown=self.shown) if urls else []


def without_marks(entries: list[Entry]) -> list[Entry]:
    """Leave out what stands for folders that are listed beside it: empty files, and doubles."""
    folders = {entry.path[:-1] for entry in entries if entry.kind == "folder"}
    return [
        entry
        for entry in dict.fromkeys(entries)
        if entry.kind != "file" or entry.size or entry.path not in folders
    ]


def _together(files: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    some: list[Wanted] = []
    size = 0
    for file in files:
        if some and (len(some) >= _TOGETHER or size + file.size > _TOGETHER_BYTES):
            yield some
            some, size = [], 0
        some.append(file)
        size += file.size
    if some:
        yield some


def _unchanged(data: bytes, file: Wanted, shown: str) -> bytes:
    if len(data) != file.size:
        raise WorldError(
            f"the file {shown!r} had {file.size} bytes when it was planned and has {len(data)} "
            "now: pack when nothing writes to the source"
        )
    return data


def _stored(prefix: str, about: Mapping[str, Any]) -> Entry:
    """Describe what a store lists."""
    name = about["name"].rstrip("/").rpartition("/")[2]
    is_folder = about["type"] == "directory"
    path = f"{prefix}{name}{'/' if is_folder else ''}"
    if name.startswith("."):
        return Entry(path, "hidden")
    if is_folder:
        return Entry(path, "folder")
    told = (about.get(tag) for tag in ("ETag", "etag", "mtime", "created"))
    stamp = next((str(tag) for tag in told if tag), "")
    return Entry(path, "file", int(about.get("size") or 0), stamp)


def _entry(prefix: str, item: os.DirEntry[str]) -> Entry:
    """Describe what was found; a "folder" is one to go into."""
    path = prefix + utf8_name(item.name)
    if item.is_symlink():
        return Entry(path, "symlink")
    is_folder = item.is_dir(follow_symlinks=False)
    if item.name.startswith("."):
        return Entry(f"{path}/" if is_folder else path, "hidden")
    if is_folder:
        return Entry(f"{path}/", "folder")
    status = item.stat(follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        return Entry(path, "special file")
    return Entry(path, "file", status.st_size, status.st_mtime_ns)
