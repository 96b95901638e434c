"""Which files does a word mean, and how are they opened?

A local path is never parsed as a URL; what begins as one is of a store that fsspec opens. Files
below a folder come sorted by the bytes of their names. `FileSource` is what sources of files have
in common.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple

from shardloader.errors import UsageError, WorldError
from shardloader.format.urls import without_secrets
from shardloader.reading.faults import Trouble, trouble_of
from shardloader.reading.patterns import expand, is_url, local_path
from shardloader.reading.remote import RemoteFile, Store
from shardloader.reading.remote_reader import open_remote
from shardloader.reading.store import why_unread
from shardloader.writing.sources.base import Skipped, Survey, printable, utf8_name
from shardloader.writing.sources.mapping import Choice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardloader.writing.sources.base import Part

_PIECE_BYTES = 1 << 20
_OF_A_DATASET = (".index", "manifest.json", "state.json", "dataset_info.json")  # not worth a word
# What names say of a file that a source of another kind must not take for its own.
_OF_A_KIND = (
    *(".tar", ".tgz", ".gz", ".zst", ".jsonl", ".ndjson"),
    *(".csv", ".tsv", ".parquet", ".arrow"),
)


class InputFile(NamedTuple):
    """A file to read: where it is, what it is called below the word it was found by.

    `remote` is the file of a store; None of a local one.
    """

    location: str
    name: str
    size: int
    stamp: str
    remote: RemoteFile | None = None

    @property
    def shown(self) -> str:
        """Where it is, as messages and lists of refused samples may tell."""
        return without_secrets(self.location)

    def stem(self, suffixes: Sequence[str]) -> str:
        """The name without its suffix, for keys: a base name's dots become `_`."""
        folder, slash, base = self.name.rpartition("/")
        stem = base[: len(base) - len(suffix_of(base, suffixes))] or base
        return f"{folder}{slash}{stem.replace('.', '_')}"


class FileSource:
    """Those of the files that words mean which end in one of some suffixes.

    A source says which, and what its kind is called. Raises UsageError where there is no such file,
    and for one that is given twice.
    """

    kind: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        words: Sequence[str],
        *,
        choice: Choice | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._choice = choice or Choice()
        self._folders = local_folders(words)
        stores = (Store(word, storage_options) for word in words if is_remote(word))
        self._roots = tuple(RemoteFile(store=store, url=store.folder_url) for store in stores)
        self._files, self._others = of_kind(find_files(words, storage_options), self.suffixes)
        _refuse_twice(self._files)

    @property
    def about(self) -> dict[str, Any]:
        """The options that decide what is read."""
        return {"kind": self.kind, "choice": self._choice.about}

    @property
    def chosen(self) -> dict[str, tuple[str, ...]]:
        """The fields that are asked for, and the columns or fields that they are taken from."""
        return self._choice.by_field

    @property
    def beside(self) -> dict[str, bytes]:
        """Nothing."""
        return {}

    @property
    def places(self) -> tuple[Path, ...]:
        """The folders among the words."""
        return self._folders

    @property
    def remote_places(self) -> tuple[RemoteFile, ...]:
        """The words that are URLs, and each file of them."""
        files = (file.remote for file in self._files if file.remote is not None)
        return (*self._roots, *files)

    def survey(self) -> Survey:
        """Look at the files' sizes; files of other kinds are left out."""
        survey = Survey()
        for file in self._files:
            survey.saw(file.location, file.size, file.stamp)
        survey.skipped += [
            Skipped(printable(without_secrets(file.name)), "of another kind than what is read")
            for file in self._others
            if not file.name.endswith(_OF_A_DATASET)
        ]
        return survey

    def where(self, part: Part) -> str:
        """Say which file a part is of."""
        shown: str = self._files[part.what.file].shown
        return shown


def _refuse_twice(files: Sequence[InputFile]) -> None:
    seen: set[str] = set()
    for file in files:
        if file.location in seen:
            raise UsageError(
                f"a file is read once, and {file.shown!r} is given twice: leave one of them out"
            )
        seen.add(file.location)


def is_remote(word: str) -> bool:
    """Whether a word is a URL of a store, or of a file that fsspec unpacks from one.

    >>> is_remote("s3://b/c"), is_remote("zip://rows.csv::s3://b/c.zip"), is_remote("a/s3://b")
    (True, True, False)
    """
    return any(map(is_url, word.split("::")))


def find_files(
    words: Sequence[str], storage_options: Mapping[str, Any] | None = None
) -> list[InputFile]:
    """List the files that words mean: files, brace patterns, and folders with what is below them.

    Hidden names are left out. Raises UsageError for a word that means nothing.
    """
    found: list[InputFile] = []
    for word in words:
        files = _remote(word, storage_options) if is_remote(word) else _local(word)
        if not files:
            raise UsageError(
                f"there is nothing to read at {without_secrets(word)!r}: no such file, or an empty "
                "folder"
            )
        found += files
    return found


def local_folders(words: Sequence[str]) -> tuple[Path, ...]:
    """Return those words that are folders here."""
    paths = [Path(local_path(word)) for word in words if not is_remote(word)]
    return tuple(path for path in paths if path.is_dir())


def of_kind(
    found: list[InputFile], suffixes: Sequence[str]
) -> tuple[list[InputFile], list[InputFile]]:
    """Part files whose names end in one of some suffixes from others.

    Where none does, nor in one of another kind, the user said what they are, and all are taken.
    Raises UsageError where nothing is left to read.
    """
    files = [file for file in found if suffix_of(file.name, suffixes)]
    others = [file for file in found if not suffix_of(file.name, suffixes)]
    if files:
        return files, others
    of_another = [file for file in found if suffix_of(file.name, _OF_A_KIND)]
    if of_another:
        raise UsageError(
            f"there is nothing to read: no file ends in {', '.join(suffixes)}, and "
            f"{of_another[0].shown!r} is of another kind"
        )
    return found, []


def suffix_of(name: str, suffixes: Sequence[str]) -> str:
    """Return the longest of some suffixes that a name ends in, or ""."""
    lower = name.lower()
    return max((s for s in suffixes if lower.endswith(s)), key=len, default="")


@contextmanager
def opened(file: InputFile) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, and turn the system's errors into ones that name it."""
    try:
        with _open(file) as handle:
            yield handle
    except OSError as error:
        raise WorldError(f"{file.shown}: the file can't be read: {why_unread(error)}") from error


def pieces_of(file: InputFile) -> Iterator[bytes]:
    """Yield the bytes of a file, some of them at a time; raises WorldError."""
    if file.remote is not None and file.size:
        yield from file.remote.pieces(size=file.size)
        return
    with opened(file) as handle:
        while piece := handle.read(_PIECE_BYTES):
            yield piece


def _open(file: InputFile) -> IO[bytes]:
    return Path(file.location).open("rb") if file.remote is None else open_remote(file.remote)


def _local(word: str) -> list[InputFile]:
    if Path(word).exists():
        return list(_below(word)) if Path(word).is_dir() else [_file(word, Path(word).name)]
    paths = [local_path(path) for path in expand(word)]
    missing = next((path for path in paths if not Path(path).exists()), None)
    if missing is not None:
        raise UsageError(f"there is no {missing!r}")
    return [
        file
        for path in paths
        for file in (_below(path) if Path(path).is_dir() else [_file(path, Path(path).name)])
    ]


def _file(path: str, name: str) -> InputFile:
    status = Path(path).stat()
    stamp = str(status.st_mtime_ns)
    return InputFile(str(Path(path).absolute()), utf8_name(name), status.st_size, stamp)


def _below(folder: str) -> Iterator[InputFile]:
    names: list[str] = []
    for place, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        prefix = os.path.relpath(place, folder)
        prefix = "" if prefix == "." else f"{prefix}/"
        names += [f"{prefix}{name}" for name in files if not name.startswith(".")]
    for name in sorted(names, key=os.fsencode):
        if (Path(folder) / name).is_file():
            yield _file(f"{folder}/{name}", name)


def _raise(error: OSError) -> None:
    raise WorldError(f"the folder {error.filename!r} can't be read: {why_unread(error)}") from error


def _remote(pattern: str, options: Mapping[str, Any] | None) -> list[InputFile]:
    is_literal = "::" in pattern or "?" in pattern
    words = [pattern] if is_literal else expand(pattern)
    return [file for word in words for file in _in_store(Store(word, options))]


def _in_store(store: Store) -> list[InputFile]:
    """List the files at and below a URL, and of a store that lists nothing the one that it names.

    A folder that a store does not have is empty.
    """

    def found(client: Any) -> list[InputFile]:
        url = store.folder_url
        client.invalidate_cache()
        try:
            listed = client.find(url, detail=True)
            if not isinstance(listed, dict) or not listed:  # adlfs lists a file as a list of one
                listed = {client._strip_protocol(url): client.info(url)}  # noqa: SLF001
        except FileNotFoundError as error:
            if trouble_of(error) is not Trouble.MISSING:
                raise
            return []
        root = client._strip_protocol(url).rstrip("/")  # noqa: SLF001
        # An empty file under whose name others lie is what some stores have for a folder.
        folders = {place[:at] for place in listed for at in _slashes(place)}
        return [
            _stored(store, client.unstrip_protocol(place), place, root, about)
            for place, about in sorted(listed.items(), key=lambda item: item[0].encode())
            if about.get("type") != "directory" and (about.get("size") or place not in folders)
        ]

    files = store.ask(found, shown=store.name, wanted="list its files")
    return [
        file
        for file in files
        if file.name and not any(part.startswith(".") for part in file.name.split("/"))
    ]


def _slashes(place: str) -> list[int]:
    return [at for at, letter in enumerate(place) if letter == "/"]


def _stored(store: Store, url: str, place: str, root: str, about: Mapping[str, Any]) -> InputFile:
    name = place[len(root) :].lstrip("/") or place.rpartition("/")[2]
    told = (about.get(tag) for tag in ("ETag", "etag", "mtime", "created"))
    stamp = next((str(tag) for tag in told if tag), "None")
    remote = RemoteFile(store=store, url=url)
    return InputFile(url, name, int(about.get("size") or 0), stamp, remote)
