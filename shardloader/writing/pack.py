"""Packing: which files of a folder tree make which samples, and writing them.

`scan_folder` looks, `plan_pack` decides (a pure function of names), `run_pack` writes;
`pack_folder` does all three. Memory holds the names; contents are read sample by sample. Samples
are ordered by key in byte order, whatever the file system's order or the locale, so the same tree
gives the same dataset. What can't be packed is listed with its reason, never dropped in silence.

A file's key and field are those of its path below the source (`a/001.seg.png`: key `a/001`, field
`seg.png`; `UP.JPG`: field `jpg`), as any reader of the shards will find them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from shardloader.errors import UsageError, WorldError
from shardloader.format.samples import is_reserved, split_name
from shardloader.order.integers import MAX_SEED, checked
from shardloader.order.permutation import PACKING, permutation
from shardloader.writing.encode import field_layout, key_problem
from shardloader.writing.writer import ShardWriter

if TYPE_CHECKING:
    from shardloader.format.manifest import Manifest

Kind: TypeAlias = Literal["file", "folder", "empty folder", "hidden", "symlink", "special file"]


class Entry(NamedTuple):
    """Something found in the tree; `path` is relative, with "/", and ends in "/" for a folder."""

    path: str
    kind: Kind
    size: int = 0


class PlannedFile(NamedTuple):
    """A file that becomes a field; `path` is relative to the source."""

    field: str
    path: str
    size: int


class PlannedSample(NamedTuple):
    """A key and the files that become its fields, in byte order of the fields."""

    key: str
    files: tuple[PlannedFile, ...]


class Skipped(NamedTuple):
    """A path that is not packed, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """What will be written, in order, and what will not."""

    samples: tuple[PlannedSample, ...]
    skipped: tuple[Skipped, ...]
    num_not_included: int

    @property
    def total_bytes(self) -> int:
        """The size of all files that will be read."""
        return sum(file.size for sample in self.samples for file in sample.files)

    def shuffled(self, seed: int) -> PackPlan:
        """The same samples in an order drawn from `seed`; raises UsageError for no seed."""
        seed = checked("seed", seed, least=0, below=MAX_SEED)
        order = permutation((seed, 0), PACKING, len(self.samples))
        return replace(self, samples=tuple(self.samples[i] for i in order.tolist()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What `pack_folder` did."""

    plan: PackPlan
    manifest: Manifest


Progress = Callable[[int, int], None]
"""Called after each sample with how many samples and how many bytes of files it added."""


def pack_folder(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    include: Sequence[str] = ("*",),
    progress: Progress | None = None,
    **writer_options: Any,
) -> Packed:
    """Pack the tree below `source` into shards in `folder`; the options are ShardWriter's.

    `include` holds glob patterns: one with a "/" is matched with the whole relative path, one
    without with the file's name; "*" also matches "/". Raises UsageError for a destination inside
    the source and where nothing is found to pack.
    """
    source = Path(source)
    writer = ShardWriter(folder, **writer_options)
    plan = plan_folder(source, writer.folder, include=include)
    return Packed(plan=plan, manifest=run_pack(plan, source, writer, progress=progress))


def plan_folder(
    source: Path,
    folder: Path,
    *,
    include: Sequence[str] = ("*",),
    watch: Callable[[Iterable[Entry]], Iterable[Entry]] = iter,
) -> PackPlan:
    """Plan to pack `source` into `folder`; `watch` may follow the entries as they are found.

    Raises UsageError for a destination inside the source and where nothing is found to pack.
    """
    _check_apart(source, folder)
    plan = plan_pack(watch(scan_folder(source)), include=include)
    if not plan.samples:
        raise UsageError(
            f"nothing to pack: no file below {str(source)!r} makes a sample "
            f"({len(plan.skipped)} paths skipped, {plan.num_not_included} files not included)"
        )
    return plan


def scan_folder(source: Path) -> Iterator[Entry]:
    """Yield what lies below a folder, in no particular order; links are not followed.

    A hidden folder is one entry: what is in it is not looked at. Raises UsageError if `source` is
    no folder, WorldError for a folder that can't be read.
    """
    if not source.is_dir():
        raise UsageError(f"the source is a folder, and {str(source)!r} is none")
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            with os.scandir(source / prefix) as found:
                entries = [_entry(prefix, item) for item in found]
        except OSError as error:
            raise WorldError(
                f"the folder {str(source / prefix)!r} can't be read: {error.strerror or error}"
            ) from error
        if prefix and not entries:
            yield Entry(prefix, "empty folder")
        for entry in entries:
            if entry.kind == "folder":
                waiting.append(entry.path)
            else:
                yield entry


def plan_pack(entries: Iterable[Entry], *, include: Sequence[str] = ("*",)) -> PackPlan:
    """Decide what becomes of each entry; does not look at the file system.

    Of files whose names differ only in the case of their extension, the first in byte order is
    packed and the others are listed as skipped.
    """
    included = _matcher(include)
    skipped: list[Skipped] = []
    groups: dict[str, dict[str, PlannedFile]] = {}
    num_not_included = 0
    for entry in sorted(entries):  # str sorts by code point, which is UTF-8's byte order
        if entry.kind == "file" and not included(entry.path):
            num_not_included += 1
            continue
        reason = _reason(entry)
        if reason is None:
            key, field = _split(entry.path)
            files = groups.setdefault(key, {})
            if field in files:
                reason = f"{files[field].path!r} has the same key and field"
            else:
                files[field] = PlannedFile(field, entry.path, entry.size)
        if reason is not None:
            skipped.append(Skipped(_printable(entry.path), reason))
    samples = (PlannedSample(key, tuple(sorted(groups[key].values()))) for key in sorted(groups))
    return PackPlan(
        samples=tuple(samples), skipped=tuple(skipped), num_not_included=num_not_included
    )


def run_pack(
    plan: PackPlan, source: Path, writer: ShardWriter, *, progress: Progress | None = None
) -> Manifest:
    """Write the samples of a plan and close the writer.

    Raises WorldError for a file that can't be read, or whose size is no longer the planned one.
    """
    with writer:
        for key, files in plan.samples:
            sample: dict[str, Any] = {"__key__": key}
            for file in files:
                sample[file.field] = _contents(source, file)
            writer.write(sample)
            if progress is not None:
                progress(1, sum(file.size for file in files))
    return writer.manifest


def _entry(prefix: str, item: os.DirEntry[str]) -> Entry:
    """Describe what was found; a "folder" is one to go into."""
    path = prefix + item.name
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
    return Entry(path, "file", status.st_size)


def _reason(entry: Entry) -> str | None:
    """Return why an entry is not packed, or None."""
    if entry.kind != "file":
        return entry.kind
    parts = split_name(entry.path)
    if parts is None:
        return "reserved name" if is_reserved(entry.path) else "no extension"
    key, field = parts
    problem = key_problem(key)
    if problem is not None:
        return f"its name can't be a key: {problem}"
    try:
        field_layout((field,))
    except ValueError as error:
        return f"its extension can't be a field: {error}"
    return None


def _split(path: str) -> tuple[str, str]:
    parts = split_name(path)
    if parts is None:
        raise AssertionError("only names that split come here")
    return parts


def _matcher(include: Sequence[str]) -> Callable[[str], bool]:
    if isinstance(include, str) or not all(isinstance(pattern, str) for pattern in include):
        raise UsageError(f"include is a list of glob patterns such as ['*.jpg'], not {include!r}")
    whole = [pattern for pattern in include if "/" in pattern]
    names = [pattern for pattern in include if "/" not in pattern]

    def included(path: str) -> bool:
        name = path.rpartition("/")[2]
        return any(fnmatchcase(name, pattern) for pattern in names) or any(
            fnmatchcase(path, pattern) for pattern in whole
        )

    return included


def _contents(source: Path, file: PlannedFile) -> bytes:
    path = source / file.path
    try:
        data = path.read_bytes()
    except OSError as error:
        raise WorldError(
            f"the file {str(path)!r} can't be read: {error.strerror or error}"
        ) from error
    if len(data) != file.size:
        raise WorldError(
            f"the file {str(path)!r} had {file.size} bytes when it was planned and has {len(data)} "
            "now: pack when nothing writes to the source"
        )
    return data


def _check_apart(source: Path, folder: Path) -> None:
    inside, outside = folder.resolve(), source.resolve()
    if inside == outside or outside in inside.parents:
        raise UsageError(
            f"the destination {str(folder)!r} lies in the source {str(source)!r}, and would be "
            "packed into itself: give a folder outside it"
        )


def _printable(path: str) -> str:
    """Return a path that can be printed and written to JSON, also where it is no valid UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
