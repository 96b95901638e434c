"""How are the samples of existing tar shards read, to be written anew?

To make shards of another size, to merge, split, compress or take a part of them: whoever wrote
them, with `.json` and `.parquet` files about them left out. A shard is mapped and its headers
read; a compressed or remote one is first unpacked to a temporary file. Fields are taken as bytes,
as they are. A damaged shard is refused, and then what lies before the damage read, as the loader
does: so whoever leaves out what is refused keeps the samples that are whole.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardloader.errors import ShardError, UsageError
from shardloader.format.foreign import packing_of
from shardloader.format.index import SampleIndex
from shardloader.format.tar_header import BLOCK_BYTES
from shardloader.reading.store import map_file
from shardloader.reading.tars import tar_for_a_look, unpack_for_a_look
from shardloader.writing.sources.base import (
    PART_BYTES,
    PART_SAMPLES,
    Part,
    Refused,
    unwritable,
)
from shardloader.writing.sources.files import FileSource, InputFile, pieces_of
from shardloader.writing.sources.mapping import TwoSourcesError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardloader.reading.tars import Tar
    from shardloader.writing.sources.base import Sample
    from shardloader.writing.sources.mapping import Choice

SUFFIXES = (".tar", ".tar.zst", ".tar.gz", ".tgz")

_log = logging.getLogger("shardloader")


class _Rows(NamedTuple):
    """Where the members of some samples lie: so much of an index as is needed to read them.

    The bytes of arrays of int64, so that parts can be compared.
    """

    fields: tuple[str, ...]
    starts: bytes  # of each sample among the members, and the end
    offsets: bytes
    sizes: bytes
    numbers: bytes  # of the members' fields
    key_starts: bytes
    key_bytes: bytes


class _Stretch(NamedTuple):
    """Samples of a file; all where there are no `rows`; or why there are none."""

    file: int
    rows: _Rows | None
    problem: str = ""


class _Open(NamedTuple):
    """A shard, what is whole in it, and what is wrong with the rest, or ""."""

    file: int
    data: memoryview
    indexed: SampleIndex
    problem: str


class TarShards(FileSource):
    """Tar shards that somebody wrote."""

    kind = "tar"
    suffixes = SUFFIXES

    def __init__(
        self,
        words: Sequence[str],
        *,
        choice: Choice | None = None,
        prefix_keys: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(words, choice=choice, storage_options=storage_options)
        if self._choice.key is not None:
            raise UsageError("samples in shards have keys: give no key column")
        self._prefix_keys = prefix_keys
        self._open: _Open | None = None  # the shard indexed last
        self._mapped: tuple[int, memoryview] | None = None  # the shard read last

    def __getstate__(self) -> dict[str, Any]:
        return {
            **vars(self),
            "_open": None,
            "_mapped": None,
        }  # whoever gets a copy maps files of its own

    @property
    def about(self) -> dict[str, Any]:
        """The options that decide what is read."""
        return {**super().about, "prefix_keys": self._prefix_keys}

    @property
    def places(self) -> tuple[Path, ...]:
        """The folders among the words, and each shard."""
        shards = [Path(file.location) for file in self._files if file.remote is None]
        return (*super().places, *shards)

    def parts(self) -> Iterator[Part]:
        """Cut plain local shards into stretches of samples; give others as one part each."""
        number = 0
        for at, file in enumerate(self._files):
            for what, num_bytes in self._stretches(at, file):
                yield Part(number, num_bytes, what)
                number += 1

    def read(self, part: Part, *, outline: bool = False) -> Iterator[Sample | Refused]:
        """Yield the samples of a stretch."""
        what: _Stretch = part.what
        file = self._files[what.file]
        if what.problem:
            yield Refused("", file.shown, what.problem)
            return
        if what.rows is not None:
            yield from self._samples(self._data(what.file), what.rows, file, outline=outline)
            return
        try:
            data, index, problem = self._opened(what.file, is_first=True)
        except ShardError as error:
            yield Refused("", file.shown, str(error))
            return
        if problem:
            yield Refused("", file.shown, problem)
        for start in range(0, index.num_samples, PART_SAMPLES):
            rows = _rows(index, start, min(start + PART_SAMPLES, index.num_samples))
            yield from self._samples(data, rows, file, outline=outline)

    def _samples(
        self, data: memoryview, rows: _Rows, file: InputFile, *, outline: bool
    ) -> Iterator[Sample | Refused]:
        prefix = f"{file.stem(SUFFIXES)}/" if self._prefix_keys else ""
        starts, offsets, sizes, numbers, key_starts = map(_integers, rows[1:6])
        names = [rows.fields[number] for number in numbers]
        for number, (first, last) in enumerate(pairwise(starts)):
            key = rows.key_bytes[key_starts[number] : key_starts[number + 1]]
            found: dict[str, Any] = {"__key__": prefix + key.decode("utf-8", "surrogateescape")}
            for member in range(first, last):
                start, size = offsets[member], sizes[member]
                content = bytes(size) if outline else data[start : start + size].tobytes()
                found[names[member]] = content
            yield self._chosen(found, file.shown) if self._choice.pairs else found

    def _chosen(self, found: dict[str, Any], where: str) -> Sample | Refused:
        try:
            chosen = {name: found[taken] for name, taken in self._choice.taken(found)}
        except TwoSourcesError as error:
            return unwritable(found["__key__"], where, error)
        return {"__key__": found["__key__"], **chosen}

    def _stretches(self, at: int, file: InputFile) -> Iterator[tuple[_Stretch, int]]:
        if file.remote is not None or _is_packed(file.location):
            yield _Stretch(at, None), file.size
            return
        try:
            _, index, problem = self._opened(at, is_first=True)
        except ShardError as error:
            yield _Stretch(at, None, str(error)), file.size
            return
        if problem:
            yield _Stretch(at, None, problem), 0 if index.num_samples else file.size
        starts = index.sample_starts
        if not index.num_samples:
            return
        # where a sample's first member lies tells how far the file has been read
        places = index.member_offsets[starts[:-1]]
        start = 0
        while start < index.num_samples:
            reach = np.searchsorted(places, places[start] + PART_BYTES)
            stop = min(max(int(reach), start + 1), start + PART_SAMPLES, index.num_samples)
            end = file.size if stop == index.num_samples else int(places[stop])
            yield _Stretch(at, _rows(index, start, stop)), max(0, end - int(places[start]))
            start = stop

    def _data(self, at: int) -> memoryview:
        """Map a plain file, whose index came with the part."""
        if self._open is not None and self._open.file == at:
            return self._open.data
        if self._mapped is None or self._mapped[0] != at:
            self._mapped = (at, _mapped(self._files[at]).data)
        return self._mapped[1]

    def _opened(self, at: int, *, is_first: bool) -> tuple[memoryview, SampleIndex, str]:
        if self._open is None or self._open.file != at:
            self._open = None
            tar = _mapped(self._files[at])
            index, notices = SampleIndex.build_what_is_whole(tar.data, shard=tar.name)
            shown = self._files[at].shown
            self._open = _Open(at, tar.data, index, _problem(tar.data, index, tar.name))
            for notice in notices if is_first else ():
                if notice.is_warning:
                    _log.warning("%s: %s", shown, notice)
        return self._open[1:]


def _rows(index: SampleIndex, start: int, stop: int) -> _Rows:
    starts = index.sample_starts[start : stop + 1]
    first, last = int(starts[0]), int(starts[-1])
    key_starts = index.key_starts[start : stop + 1]
    arrays = (
        starts - first,
        index.member_offsets[first:last],
        index.member_sizes[first:last],
        index.member_fields[first:last],
        key_starts - key_starts[0],
    )
    key_bytes = index.key_bytes[int(key_starts[0]) : int(key_starts[-1])].tobytes()
    packed = [each.astype(np.int64).tobytes() for each in arrays]
    return _Rows._make((index.fields, *packed, key_bytes))


def _integers(array: bytes) -> list[int]:
    found: list[int] = np.frombuffer(array, np.int64).tolist()
    return found


def _is_packed(path: str) -> bool:
    return packing_of(bytes(map_file(path)[:BLOCK_BYTES])) is not None


def _problem(data: memoryview, index: SampleIndex, shown: str) -> str:
    """Say what is wrong with a shard behind what was indexed of it, or ""."""
    if index.damage is None:
        return ""
    told = f"{shown}: {index.damage}"
    try:
        SampleIndex.build(data, shard=shown)
    except ShardError as error:
        told = str(error)  # which says more
    return f"{told}; {index.num_samples} samples are whole before that"


def _mapped(file: InputFile) -> Tar:
    """Give the tar in a file, which may be compressed or remote."""
    if file.remote is not None:
        return unpack_for_a_look(pieces_of(file), file.shown)
    return tar_for_a_look(map_file(file.location), file.shown)
