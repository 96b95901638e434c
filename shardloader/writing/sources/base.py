"""What is a source?

Something that is read part by part. `survey` looks at names and sizes only; `parts` cuts the input
in order, lazily, so that a hundred million files need no list; `read` yields the samples of a part.
Parts depend on the input alone: not on workers, the order of a folder, the locale or the clock.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from shardloader.reading.remote import RemoteFile

PART_BYTES = 16 << 20  # about so much input is read at a time
PART_SAMPLES = 4096

Sample: TypeAlias = "Mapping[str, Any]"
"""A `__key__`, and values or bytes of fields, as `ShardWriter.write` takes them."""


class Skipped(NamedTuple):
    """A path of the input that is not looked into, and why."""

    path: str
    reason: str


class Refused(NamedTuple):
    """A piece of the input that is no sample: its key if it has one, its place, and why."""

    key: str
    where: str
    reason: str


class Part(NamedTuple):
    """A piece of the input; `what` is its source's own, and small enough to be sent about.

    `num_bytes` of input are in it, for progress.
    """

    number: int
    num_bytes: int
    what: Any


@dataclass(slots=True, kw_only=True)
class Survey:
    """What was seen of a source before any of it was read."""

    num_bytes: int = 0
    num_files: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    num_not_included: int = 0
    _stamp: Any = field(default_factory=xxhash.xxh3_128)

    def saw(self, name: str, size: int, stamp: object) -> None:
        """Count a file; its name, size and time of change become part of the fingerprint."""
        self.num_bytes += size
        self.num_files += 1
        text = f"{name}\0{size}\0{stamp}\0"
        self._stamp.update(text.encode("utf-8", "surrogateescape"))

    @property
    def fingerprint(self) -> str:
        """A digest of all files' names, sizes and times of change."""
        digest: str = self._stamp.hexdigest()
        return digest


class Source(Protocol):
    """What can be written to shards."""

    @property
    def about(self) -> dict[str, Any]:
        """The options that decide what is read, as JSON types: part of a write's fingerprint."""
        ...

    @property
    def chosen(self) -> dict[str, tuple[str, ...]]:
        """The fields that are asked for, each with what it may be taken from; {} where none is."""
        ...

    @property
    def beside(self) -> dict[str, bytes]:
        """Files to publish beside the manifest, by name."""
        ...

    @property
    def places(self) -> tuple[Path, ...]:
        """Local folders that are read as a whole, and shards: nothing may be written there."""
        ...

    @property
    def remote_places(self) -> tuple[RemoteFile, ...]:
        """The same on stores."""
        ...

    def survey(self) -> Survey:
        """Look at what there is. Raises UsageError where nothing is to be read."""
        ...

    def parts(self) -> Iterator[Part]:
        """Cut the input; always in the same order and at the same places."""
        ...

    def where(self, part: Part) -> str:
        """Say where a part lies, for messages."""
        ...

    def read(self, part: Part, *, outline: bool = False) -> Iterator[Sample | Refused]:
        """Yield the samples of a part; for an `outline` values need only be of the right size."""
        ...


def unwritable(key: object, where: str, why: object) -> Refused:
    """Refuse a sample whose key is known."""
    return Refused(printable(str(key)), where, f"sample {key!r} can't be written: {why}")


def printable(path: str) -> str:
    """Return a path that can be printed and written to JSON, also where it is no valid UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def utf8_name(name: str) -> str:
    """Return a file's name, which the system decoded, as UTF-8 says it, whatever the locale."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "surrogateescape")


def system_name(name: str) -> str:
    """Return what `utf8_name` was given: by that the system finds the file."""
    return name if name.isascii() else os.fsdecode(name.encode("utf-8", "surrogateescape"))
