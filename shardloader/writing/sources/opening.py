"""Which kind of source do some words mean?

Told by the names of the files that are there, or by the user. A folder is of shards, of lines, of
rows or of columns if all its files are (what lies beside shards does not count); a folder of
anything else is a tree of files. A mixture of shards and other files is for the user to name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from shardloader.errors import UsageError
from shardloader.format.urls import without_secrets
from shardloader.writing.sources import arrow_files, csv_files, jsonl_files, tar_files
from shardloader.writing.sources.arrow_files import ArrowRows
from shardloader.writing.sources.csv_files import CsvRows
from shardloader.writing.sources.files import find_files, is_remote, suffix_of
from shardloader.writing.sources.folder_tree import FolderTree
from shardloader.writing.sources.jsonl_files import JsonLines
from shardloader.writing.sources.tar_files import TarShards

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardloader.writing.sources.base import Source
    from shardloader.writing.sources.mapping import Choice

KINDS: Final = ("folder", "classes", "tar", "jsonl", "csv", "arrow")

_SUFFIXES: Final[dict[str, tuple[str, ...]]] = {
    "tar": tar_files.SUFFIXES,
    "jsonl": jsonl_files.SUFFIXES,
    "csv": csv_files.SUFFIXES,
    "arrow": arrow_files.SUFFIXES,
}
# What lies beside shards and tables, and says nothing about what a folder is.
_BESIDE: Final = (".json", ".md", ".txt", ".yaml", ".index")
_LOOKED_AT: Final = 10_000


def open_source(
    words: Sequence[str],
    *,
    kind: str | None = None,
    choice: Choice | None = None,
    include: Sequence[str] = ("*",),
    class_map: Mapping[str, int] | None = None,
    prefix_keys: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Source:
    """Open what the words mean, as `kind` or as the kind that their files' names tell.

    `storage_options` are for the file systems of URLs.
    Raises UsageError where that is not clear, or an option is not of that kind.
    """
    if not words or not all(words):
        raise UsageError(f"a source is named, and {''!r} names nothing")
    kind = kind or ("classes" if class_map is not None else kind_of(words, storage_options))
    if kind not in KINDS:
        raise UsageError(f"a source is one of {', '.join(KINDS)}, not {kind!r}")
    for option, is_given, kinds in (
        ("class_map=", class_map is not None, {"classes"}),
        ("include=", tuple(include) != ("*",), {"folder", "classes"}),
        ("prefix_keys=", prefix_keys, {"tar"}),
    ):
        if is_given and kind not in kinds:
            raise UsageError(f"{option} is for {' and '.join(kinds)}, and the source is {kind}")
    how: dict[str, Any] = {"choice": choice, "storage_options": storage_options}
    if kind in {"folder", "classes"}:
        if len(words) != 1:
            raise UsageError("folders of files are written one at a time: give one, or append=True")
        classes: Mapping[str, int] | Literal["by name"] | None = None
        if kind == "classes":
            classes = "by name" if class_map is None else class_map
        return FolderTree(words[0], include=include, classes=classes, **how)
    if kind == "tar":
        return TarShards(words, prefix_keys=prefix_keys, **how)
    if kind == "jsonl":
        return JsonLines(words, **how)
    return CsvRows(words, **how) if kind == "csv" else ArrowRows(words, **how)


def kind_of(words: Sequence[str], storage_options: Mapping[str, Any] | None = None) -> str:
    """Tell the kind of a source from the names of its files."""
    kinds = {_kind_of_word(word, storage_options) for word in words}
    if len(kinds) > 1:
        raise UsageError(
            f"sources of several kinds ({', '.join(sorted(kinds))}) are written one after the "
            "other: the first, then the others with append=True"
        )
    return kinds.pop()


def _kind_of_word(word: str, storage_options: Mapping[str, Any] | None) -> str:
    if not is_remote(word) and Path(word).is_dir():
        return _kind_of_names(word, _names(word))
    files = find_files([word], storage_options)
    return _kind_of_names(word, iter([file.name for file in files]))


def _kind_of_names(word: str, names: Iterator[str]) -> str:
    seen: set[str] = set()
    has_foreign = False
    for number, name in enumerate(names):
        kind = next((k for k, s in _SUFFIXES.items() if suffix_of(name, s)), None)
        if kind is not None:
            seen.add(kind)
        elif not name.lower().endswith(_BESIDE):
            has_foreign = True
        if has_foreign and number >= _LOOKED_AT:
            break
    return _judged(word, seen, has_foreign=has_foreign)


def _judged(word: str, seen: set[str], *, has_foreign: bool) -> str:
    if "tar" in seen and not has_foreign:
        return "tar"
    if len(seen) == 1 and not has_foreign:
        return seen.pop()
    if "tar" not in seen:
        return "folder"
    raise UsageError(
        f"{without_secrets(word)!r} holds tar files and others: say what it is with kind=, one of "
        f"{', '.join(KINDS)}"
    )


def _names(folder: str) -> Iterator[str]:
    for _, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from sorted(name for name in files if not name.startswith("."))
