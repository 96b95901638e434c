"""Which local shards does a user's `source` mean, and where do their indexes lie?

A source is a folder, a brace pattern, or a list of paths. Resolving it looks at folders and names
only; no shard is opened. A path in a list is literal, and never parsed as a URL. Of remote ones
`remote_source` says the same.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from shardloader.errors import UsageError, WorldError
from shardloader.reading.patterns import expand, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardloader.reading.remote import Store

logger = logging.getLogger("shardloader")

MANIFEST_NAME = "manifest.json"
UNFINISHED_NAME = ".shardloader-unfinished"  # while a writer has not published the manifest
INDEX_SUFFIX = ".index"
# In a folder names tell which files are shards; what they are packed in, their first bytes do.
SHARD_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_OTHER_SUFFIXES = (".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.lz4", ".tar.zstd", ".tzst", ".zip")

PathText: TypeAlias = "str | os.PathLike[str]"
SourceText: TypeAlias = "PathText | Sequence[PathText]"


def earlier_manifest_name(digest: str) -> str:
    """Return the name of the manifest of a dataset that was appended to since."""
    return f"manifest-{digest}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a dataset's files lie; both folders are absolute paths.

    Shards are named relative to `root`, and their indexes lie under `index_root` by the same
    names. `names` is None for a folder, which `find_shards` or a manifest lists; only a folder
    has a manifest on disk. `location` is what the user gave, for messages. Of shards on a remote
    store, `store`, the paths are URLs without secrets, for messages only; so are those of indexes
    and manifest, unless `index_store` is None: they lie in a local folder then.
    """

    root: str
    index_root: str
    names: tuple[str, ...] | None
    location: str
    store: Store | None = None
    index_store: Store | None = None

    def shard_path(self, name: str) -> str:
        """Give the path of the shard that is called `name`."""
        return f"{self.root}/{name}" if self.store is None else self.store.at(name).name

    def index_path(self, name: str) -> str:
        """Give the path of that shard's index."""
        if self.index_store is not None:
            return self.index_store.at(f"{name}{INDEX_SUFFIX}").name
        return f"{self.index_root}/{name}{INDEX_SUFFIX}"

    def ahead(self, is_needed: Callable[[], bool]) -> Source:
        """The same, for what is fetched before somebody waits for it: see `Store.ahead`."""
        if self.store is None:
            return self
        store = self.store.ahead(is_needed)
        index_store = None if self.index_store is None else store  # indexes lie beside shards
        return replace(self, store=store, index_store=index_store)

    @property
    def manifest_path(self) -> str | None:
        """Where the manifest lies; None where it is kept in memory only."""
        if self.names is not None:
            return None
        if self.index_store is not None:
            return self.index_store.at(MANIFEST_NAME).name
        return f"{self.index_root}/{MANIFEST_NAME}"


def resolve(source: SourceText, *, index_dir: PathText | None = None) -> Source:
    """Find out what `source` means.

    A string is an existing folder, an existing shard or manifest, or else a brace pattern.
    Raises UsageError for a URL, for a folder that is not there, and for no shards at all.
    """
    index_root = None if index_dir is None else str(Path(local_path(str(index_dir))).resolve())
    if not isinstance(source, str | os.PathLike):
        paths = [local_path(os.fspath(path)) for path in source]
        return _listed(paths, index_root, f"a list of {len(paths)} shards")
    text = os.fspath(source)
    found = _existing(text)
    if found is None:
        return _listed(_expanded(source), index_root, text)
    folder = found.parent if found.name == MANIFEST_NAME else found
    if folder.is_dir():
        root = str(folder.resolve())
        return Source(root=root, index_root=index_root or root, names=None, location=text)
    return _listed([str(found)], index_root, text)


def is_unfinished(folder: str) -> bool:
    """Whether a writer was broken off in a local folder, or still writes.

    Of a folder that can't be read it is False: listing its shards says so in words.
    """
    return os.path.exists(f"{folder}/{UNFINISHED_NAME}")  # noqa: PTH110 - which raises nothing


def unfinished(location: str) -> UsageError:
    """The error of a folder with a dataset that is not whole."""
    return UsageError(
        f"{location}: a writer was broken off here, or still writes: finish it, or write "
        "anew with overwrite=True; to take the shards that are there as the dataset, run "
        "`shardloader index`"
    )


def find_shards(folder: str) -> tuple[str, ...]:
    """List the shards in a folder and its sub-folders, relative to it, sorted by their bytes.

    Hidden names are skipped. Raises UsageError if there are none, or if a shard lies there twice,
    packed and unpacked. Files that seem to be shards of other kinds are named then, or logged.
    Raises WorldError for a folder that can't be read.
    """
    names = _files(folder, "", ())
    if not any(name.endswith(SHARD_SUFFIXES) for name in names) and is_unfinished(folder):
        raise UsageError(
            f"{folder}: a writer was broken off here before its first shard was whole, or still "
            "writes: finish it with the same `shardloader write`, or write anew with overwrite=True"
        )
    return shards_among(names, folder)


def shards_among(names: Sequence[str], folder: str) -> tuple[str, ...]:
    """Give those of a folder's files that are shards, as `find_shards` does; folder: for messages.

    names: of all that is there and not hidden, relative to it.
    """
    _refuse_several_datasets(folder, names)
    shards = sorted((n for n in names if n.endswith(SHARD_SUFFIXES)), key=os.fsencode)
    others = [n for n in names if n.endswith(_OTHER_SUFFIXES)]
    remark = (
        f"{len(others)} files, such as {min(others)}, are there that are not read: pack them anew "
        "as .tar, .tar.gz or .tar.zst"
        if others
        else ""
    )
    if not shards:
        raise UsageError(
            f"a dataset's folder holds shards ({', '.join(SHARD_SUFFIXES)}): {folder} has none, "
            f"also not in its sub-folders; {remark or 'give the folder they lie in'}"
        )
    _refuse_twice(folder, shards)
    if remark:
        logger.warning("%s: %s", folder, remark)
    return tuple(shards)


def _refuse_twice(folder: str, shards: Sequence[str]) -> None:
    """Refuse `a.tar` beside `a.tar.gz`: unpacking may leave both, and each sample twice."""
    seen: dict[str, str] = {}
    for name in shards:
        suffix = next(each for each in SHARD_SUFFIXES if name.endswith(each))
        other = seen.setdefault(name.removesuffix(suffix), name)
        if other != name:
            raise UsageError(
                f"{folder} holds {other} and {name}, which seem to be one shard, packed and "
                "unpacked: move one of them away, or give a list of the shards that you mean"
            )


def _refuse_several_datasets(folder: str, names: Sequence[str]) -> None:
    """Folders with manifests of their own, `train` and `val` say, are datasets, and not one."""
    inside = {name.rpartition("/")[0] for name in names if name.endswith(f"/{MANIFEST_NAME}")}
    datasets = sorted(inside & {n.rpartition("/")[0] for n in names if n.endswith(SHARD_SUFFIXES)})
    if datasets:
        raise UsageError(
            f"{folder} holds datasets of their own, with a {MANIFEST_NAME} each: "
            f"{', '.join(datasets[:3])}{', ...' if len(datasets) > 3 else ''}: give one of them, "
            "or a list of the shards that you mean"
        )


def _existing(text: str) -> Path | None:
    """Give the path if something lies there, also where the text looks like a pattern."""
    if text and Path(text).exists():
        return Path(text)
    if "::" in text or not text:
        return None
    path = Path(local_path(text))
    return path if path.exists() else None


def _expanded(source: PathText) -> list[str]:
    """Give the paths of a text under whose own name nothing lies."""
    text = os.fspath(source)
    paths = [local_path(path) for path in expand(text)] if isinstance(source, str) else [text]
    if len(paths) == 1 and not Path(paths[0]).exists():
        raise UsageError(
            f"a dataset is a folder, a brace pattern or a list of shards; there is no {text!r}"
            + ("; for what * stands for, give sorted(glob.glob(...))" if "*" in text else "")
        )
    return paths


def _listed(paths: Sequence[str], index_root: str | None, location: str) -> Source:
    if not paths:
        raise UsageError("a dataset has at least one shard, and the list of shards is empty")
    folder_of = lru_cache(maxsize=1024)(lambda parent: str(parent.resolve()))
    files = [Path(path) for path in paths]
    folders = [folder_of(file.parent) for file in files]
    absolute = [f"{folder}/{file.name}" for folder, file in zip(folders, files, strict=True)]
    if len(set(absolute)) != len(absolute):
        twice = next(path for path, count in Counter(absolute).items() if count > 1)
        raise UsageError(f"a dataset has each shard once; the list has {twice!r} twice")
    inside = next((path for path in absolute if os.path.isdir(path)), None)  # noqa: PTH112 - 1 us
    if inside is not None:
        raise UsageError(
            f"a list holds shards, and {inside} is a folder, a dataset of its own: give one "
            "folder, or list the shards in it"
        )
    root = os.path.commonpath(folders)
    return Source(
        root=root,
        index_root=index_root or root,
        names=tuple(path[len(root) :].lstrip("/") for path in absolute),
        location=location,
    )


def _files(folder: str, prefix: str, above: tuple[tuple[int, int], ...]) -> list[str]:
    """List files below `folder` that are not hidden; links are followed, but not in circles."""
    try:
        status = Path(folder).stat()
        with os.scandir(folder) as scan:
            entries = [entry for entry in scan if not entry.name.startswith(".")]
    except OSError as error:
        raise WorldError(
            f"{folder}: the folder can't be read: {error.strerror or error}: shards may lie in it; "
            "make it readable, or move it away"
        ) from error
    here = (status.st_dev, status.st_ino)
    if here in above:
        return []
    names: list[str] = []
    for entry in entries:
        if _is_folder(entry):
            names += _files(entry.path, f"{prefix}{entry.name}/", (*above, here))
        else:
            names.append(prefix + entry.name)
    return names


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle, say: as a shard it can't be read, and that is said then
        return False
