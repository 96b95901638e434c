"""Which files of a folder tree make which samples?

A file's key and field are those of its path below the source (`a/001.seg.png`: key `a/001`, field
`seg.png`; `UP.JPG`: field `jpg`), as any reader of the shards will find them. The tree is walked
folder by folder in the byte order of the keys, whatever the file system's order or the locale, and
memory holds one folder's names at a time. What can't be packed is listed with its reason, never
dropped in silence. With `classes` the folders at the top are classes, as torchvision's ImageFolder
has them, and each sample gets a field `cls`.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from shardloader.errors import UsageError
from shardloader.format.samples import is_reserved, split_name
from shardloader.reading.patterns import local_path
from shardloader.writing.encode import field_layout, key_problem
from shardloader.writing.sources.base import (
    PART_BYTES,
    PART_SAMPLES,
    Part,
    Refused,
    Sample,
    Skipped,
    Survey,
    printable,
    unwritable,
)
from shardloader.writing.sources.files import is_remote
from shardloader.writing.sources.mapping import Choice, TwoSourcesError
from shardloader.writing.sources.trees import Entry, LocalTree, StoreTree, Wanted

if TYPE_CHECKING:
    from shardloader.reading.remote import RemoteFile

_log = logging.getLogger("shardloader")

_SPELLINGS: Final = (("jpg", "jpeg"), ("tif", "tiff"), ("htm", "html"), ("yml", "yaml"))
_SHOWN: Final = 3

CLASS_MAP_NAME = "classes.json"


class TreeFile(NamedTuple):
    """A file that becomes a field; `path` is relative to the source."""

    field: str
    path: str
    size: int
    changed: int | str


class TreeSample(NamedTuple):
    """A key and the files that become its fields, in byte order of the fields."""

    key: str
    files: tuple[TreeFile, ...]


@dataclass(slots=True)
class Arranged:
    """What becomes of a folder's entries: samples and folders by key, and what is left out."""

    places: list[tuple[str, TreeSample | None]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    num_not_included: int = 0


class FolderTree:
    """A folder whose files are fields: a local one, or a URL of one on a store."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        include: Sequence[str] = ("*",),
        choice: Choice | None = None,
        classes: Mapping[str, int] | Literal["by name"] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._tree: LocalTree | StoreTree
        if is_remote(str(folder)):
            self._tree = StoreTree(str(folder), storage_options)
        else:
            self._tree = LocalTree(Path(local_path(os.fspath(folder))).absolute())
        self._include = tuple(include)
        self._included = _matcher(include)
        self._choice = choice or Choice()
        if self._choice.key is not None:
            raise UsageError("a folder's samples have their paths as keys: give no key column")
        if classes is not None and any(pair[0] == "cls" != pair[1] for pair in self._choice.pairs):
            raise UsageError("the field cls of class folders is the folder's number: take another")
        self._asked_classes = classes
        self._classes: dict[str, int] | None = None

    @property
    def about(self) -> dict[str, Any]:
        """The options that decide what is read."""
        return {
            "kind": "classes" if self._asked_classes is not None else "folder",
            "folder": printable(self._tree.shown),
            "include": list(self._include),
            "choice": self._choice.about,
            "classes": self.class_map,
        }

    @property
    def chosen(self) -> dict[str, tuple[str, ...]]:
        """The fields that are asked for, and those that they are taken from."""
        return self._choice.by_field

    @property
    def class_map(self) -> dict[str, int] | None:
        """The number of each class, where the folders at the top are classes."""
        if self._asked_classes is None:
            return None
        if self._classes is None:
            self._classes = self._numbered()
        return self._classes

    @property
    def beside(self) -> dict[str, bytes]:
        """The class map, where there is one."""
        classes = self.class_map
        if classes is None:
            return {}
        return {CLASS_MAP_NAME: (json.dumps(classes, indent=1) + "\n").encode("ascii")}

    @property
    def places(self) -> tuple[Path, ...]:
        """The folder."""
        return (self._tree.folder,) if isinstance(self._tree, LocalTree) else ()

    @property
    def remote_places(self) -> tuple[RemoteFile, ...]:
        """The folder, if it is on a store."""
        return (self._tree.root,) if isinstance(self._tree, StoreTree) else ()

    def survey(self) -> Survey:
        """Walk the tree without reading a file."""
        survey = Survey()
        num_samples = 0
        fields = Counter[str]()
        for found in self._walk():
            if isinstance(found, TreeSample):
                num_samples += 1
                for file in found.files:
                    survey.saw(file.path, file.size, file.changed)
                    fields[file.field] += 1
            else:
                survey.skipped += found.skipped
                survey.num_not_included += found.num_not_included
        survey.skipped.sort()
        if not num_samples:
            raise UsageError(
                f"nothing to pack: no file below {self._tree.shown!r} makes a sample "
                f"({len(survey.skipped)} paths skipped, {survey.num_not_included} files not "
                "included)"
            )
        self._check_chosen(set(fields))
        for doubt in doubts(fields, is_chosen=bool(self._choice.pairs)):
            _log.warning("%s: %s", self._tree.shown, doubt)
        return survey

    def _check_chosen(self, fields: set[str]) -> None:
        """Raise UsageError for a field that is asked for and that no sample has."""
        known = fields if self.class_map is None else fields | {"cls"}
        for taken in self._choice.by_field.values():
            if known.isdisjoint(taken):
                raise UsageError(
                    f"a field that is chosen is one that some sample has: none below "
                    f"{self._tree.shown!r} has {' or '.join(map(repr, taken))}; they have "
                    f"{sorted(known)}"
                )

    def parts(self) -> Iterator[Part]:
        """Cut the tree into stretches of samples."""
        number, total, samples = 0, 0, list[TreeSample]()
        for found in self._walk():
            if not isinstance(found, TreeSample):
                continue
            samples.append(found)
            total += sum(file.size for file in found.files)
            if total >= PART_BYTES or len(samples) >= PART_SAMPLES:
                yield Part(number, total, tuple(samples))
                number, total, samples = number + 1, 0, []
        if samples:
            yield Part(number, total, tuple(samples))

    def where(self, part: Part) -> str:
        """Say which file or folder a part is of."""
        del part
        return self._tree.shown

    def read(self, part: Part, *, outline: bool = False) -> Iterator[Sample | Refused]:
        """Yield the samples of a part; an outline reads no file."""
        chosen = [self._chosen(sample) for sample in part.what]
        fields = [each for each in chosen if not isinstance(each, Refused)]
        wanted = [Wanted(file.path, file.size) for each in fields for _, file in each]
        contents = (bytes(file.size) for file in wanted) if outline else self._tree.contents(wanted)
        for (key, _), found in zip(part.what, chosen, strict=True):
            if isinstance(found, Refused):
                yield found
                continue
            sample: dict[str, Any] = {"__key__": key}
            for name, _ in found:
                sample[name] = next(contents)
            if self.class_map is not None:
                sample["cls"] = self.class_map[key.partition("/")[0]]
            yield sample

    def _chosen(self, sample: TreeSample) -> list[tuple[str, TreeFile]] | Refused:
        """Give the fields to write, each with its file."""
        if not self._choice.pairs:
            return [(file.field, file) for file in sample.files]
        found = {file.field: file for file in sample.files}
        try:
            return [(name, found[taken]) for name, taken in self._choice.taken(found)]
        except TwoSourcesError as error:
            return unwritable(sample.key, self._tree.shown, error)

    def _walk(self) -> Iterator[TreeSample | Arranged]:
        """Yield the samples by key, and before those of a folder what was left out of it."""
        self._tree.require()
        waiting: list[Iterator[tuple[str, TreeSample | None]]] = [iter([("", None)])]
        while waiting:
            place = next(waiting[-1], None)
            if place is None:
                waiting.pop()
                continue
            path, sample = place
            if sample is not None:
                yield sample
                continue
            arranged = self._arranged(path)
            yield arranged
            waiting.append(iter(arranged.places))

    def _arranged(self, prefix: str) -> Arranged:
        entries = self._tree.entries(prefix)
        return arrange(prefix, entries, included=self._included, classes=self.class_map)

    def _numbered(self) -> dict[str, int]:
        """Number the classes: as given, or in byte order of the folders' names."""
        if isinstance(self._asked_classes, Mapping):
            return dict(self._asked_classes)
        entries = self._tree.entries("")
        names = sorted(entry.path[:-1] for entry in entries if entry.kind == "folder")
        return {name: number for number, name in enumerate(names)}


def arrange(
    prefix: str,
    entries: Sequence[Entry],
    *,
    included: Callable[[str], bool],
    classes: Mapping[str, int] | None = None,
) -> Arranged:
    """Decide what becomes of a folder's entries; does not look at the file system.

    Of files whose names differ only in the case of their extension, the first in byte order is
    packed and the others are listed as skipped.
    """
    arranged = Arranged()
    groups: dict[str, dict[str, TreeFile]] = {}
    if prefix and not entries:
        arranged.skipped.append(Skipped(printable(prefix), "empty folder"))
    for entry in sorted(entries):  # str sorts by code point, which is UTF-8's byte order
        if entry.kind == "file" and not included(entry.path):
            arranged.num_not_included += 1
            continue
        reason = _reason(entry, classes)
        if reason is None and entry.kind == "folder":
            arranged.places.append((entry.path, None))
        elif reason is None:
            key, name = _split(entry.path)
            files = groups.setdefault(key, {})
            if name in files:
                reason = f"{files[name].path!r} has the same key and field"
            else:
                files[name] = TreeFile(name, entry.path, entry.size, entry.changed)
        if reason is not None:
            arranged.skipped.append(Skipped(printable(entry.path), reason))
    for key, files in groups.items():
        arranged.places.append((key, TreeSample(key, tuple(sorted(files.values())))))
    # a folder's path ends in "/", as all keys below it go on, so this is the order of all keys
    arranged.places.sort(key=lambda place: place[0])
    return arranged


def doubts(num_samples: Mapping[str, int], *, is_chosen: bool = False) -> Iterator[str]:
    """Say what seems not to be meant, of fields and the number of samples that have each.

    Names of files with several dots: they are what a key's rest is if each is another's, as
    `v2.jpg` and `v3.jpg` of `a.v2.jpg` and `a.v3.jpg`. And two spellings of one extension, unless
    fields were chosen.
    """
    dotted = [name for name, times in num_samples.items() if "." in name and times == 1]
    if len(dotted) > 1:
        shown = ", ".join(map(repr, dotted[:_SHOWN]))
        more = f" and {len(dotted) - _SHOWN} more" if len(dotted) > _SHOWN else ""
        yield (
            f"{len(dotted)} fields are of one sample each: {shown}{more}. A key ends at the first "
            "dot of a file's name, so that a.v2.jpg is the field v2.jpg of the sample a. Where "
            "each such file is a sample, rename them with another sign for the dots: a_v2.jpg"
        )
    for one, other in _SPELLINGS:
        if one in num_samples and other in num_samples and not is_chosen:
            yield (
                f"some files end in {one} and some in {other}, and become fields of these names: "
                f"--field {one} --field {one}={other}, with each other field, makes them one field"
            )


def _reason(entry: Entry, classes: Mapping[str, int] | None) -> str | None:
    """Return why an entry is not packed, or None."""
    if entry.kind == "folder":
        is_known = classes is None or "/" in entry.path[:-1] or entry.path[:-1] in classes
        return None if is_known else "not in the class map"
    if entry.kind != "file":
        return entry.kind
    if classes is not None and "/" not in entry.path:
        return "in no class folder"
    return _name_problem(entry.path, has_class=classes is not None)


def _name_problem(path: str, *, has_class: bool) -> str | None:
    """Return why a file's name gives no key and field, or None."""
    parts = split_name(path)
    if parts is None:
        return "reserved name" if is_reserved(path) else "no extension"
    key, name = parts
    problem = key_problem(key)
    if problem is not None:
        return f"its name can't be a key: {problem}"
    if has_class and name == "cls":
        return "the class is the folder's"
    try:
        field_layout((name,))
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
