"""How are the rows of Parquet and Arrow files read as samples, and Hugging Face's saved datasets?

Read through pyarrow, an extra. A Parquet file is cut into its row groups and an Arrow file into
stretches of its record batches; a folder that `datasets` saved is its Arrow files in the order of
`state.json`. A row's key is a column of it, or the file's name and the row's number from 0.
Without chosen fields:

| column                                  | field                                             |
|-----------------------------------------|---------------------------------------------------|
| image (a struct of `bytes` and `path`), | what the bytes are (`jpg`, `wav`, ...); `NAME.jpg` |
| or sound                                | if there are several of them                      |
| binary                                  | `NAME.bin`                                        |
| all others                              | one `json` of them, dates as ISO texts            |
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from shardloader.errors import UsageError, WorldError
from shardloader.writing.sources.arrow_values import (
    Columns,
    NoJsonError,
    array_types,
    arrow,
    check_fields_differ,
    chosen_fields,
    default_fields,
    rows_of,
    use_of,
)
from shardloader.writing.sources.base import PART_BYTES, Part, Refused, unwritable
from shardloader.writing.sources.files import (
    FileSource,
    InputFile,
    opened,
    suffix_of,
)
from shardloader.writing.sources.mapping import Choice, TwoSourcesError, key_of
from shardloader.writing.sources.saved_datasets import SAVED_STATE, in_saved_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardloader.writing.sources.base import Sample

PARQUET = (".parquet",)
ARROW = (".arrow", ".feather")
SUFFIXES = (*PARQUET, *ARROW)
_SAVED_BESIDE = (SAVED_STATE, "dataset_info.json")
_BATCH_BYTES = 8 << 20


class _Rows(NamedTuple):
    """Pieces `start` to `stop` of a file (row groups or batches); the first row's number."""

    file: int
    start: int
    stop: int
    row: int


class ArrowRows(FileSource):
    """Parquet or Arrow files, or datasets that `datasets` saved to disk."""

    kind = "arrow"
    suffixes = SUFFIXES

    def __init__(
        self,
        words: Sequence[str],
        *,
        choice: Choice | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(words, choice=choice, storage_options=storage_options)
        self._files = in_saved_order(self._files, self._others)

    def parts(self) -> Iterator[Part]:
        """Cut Parquet files into row groups, Arrow files into stretches of batches."""
        number = 0
        for at, file in enumerate(self._files):
            cut = _cut_arrow if suffix_of(file.name, ARROW) else _cut_parquet
            for what, num_bytes in cut(file, at):
                yield Part(number, num_bytes, what)
                number += 1

    def read(self, part: Part, *, outline: bool = False) -> Iterator[Sample | Refused]:
        """Yield a sample for each row."""
        del outline
        what: _Rows = part.what
        file = self._files[what.file]
        number = what.row
        for batch in _batches(file, what, self._choice):
            used = use_of(batch.schema)
            if not self._choice.pairs:
                check_fields_differ(used, where=file.shown)
            arrays = array_types(batch.schema, self._choice)
            for row, problem in rows_of(batch):
                yield self._sample(file, number, row, used, arrays, problem)
                number += 1

    def _sample(
        self,
        file: InputFile,
        number: int,
        row: dict[str, Any],
        used: Columns,
        arrays: dict[str, Any],
        problem: str,
    ) -> Sample | Refused:
        where = f"{file.shown}, row {number}"
        key = f"{file.stem(SUFFIXES)}/{number:09d}"
        if self._choice.key is not None:
            if row.get(self._choice.key) is None:
                missing = f"the row has no {self._choice.key!r}, which is the key"
                return Refused("", where, problem or missing)
            key = key_of(row[self._choice.key])
        if problem:
            return unwritable(key, where, problem)
        for image in used.images:
            found = row.get(image)
            if found is not None:
                row[image] = found["bytes"]
                if found["bytes"] is None:
                    return Refused(str(key), where, f"the image {image!r} is not in the file")
        try:
            if not self._choice.pairs:
                return {"__key__": key, **default_fields(row, used)}
            return {"__key__": key, **chosen_fields(row, self._choice, arrays)}
        except (NoJsonError, TwoSourcesError) as error:
            return unwritable(key, where, error)


@contextmanager
def _handle(file: InputFile) -> Iterator[Any]:
    """Open a file as Arrow does: mapped if it is local. Its errors name the file."""
    pa = arrow()
    try:
        if file.remote is not None:
            with opened(file) as remote:
                yield pa.PythonFile(remote, mode="r")
        else:
            with pa.memory_map(file.location) as mapped:
                yield mapped
    except (pa.ArrowException, OSError) as error:
        raise WorldError(f"{file.shown}: the file can't be read: {error}") from error


def _cut_parquet(file: InputFile, at: int) -> Iterator[tuple[_Rows, int]]:
    pa = arrow()
    with _handle(file) as handle:
        about = pa.parquet.ParquetFile(handle).metadata
        groups = [about.row_group(group) for group in range(about.num_row_groups)]
        sizes = [(group.num_rows, group.total_byte_size) for group in groups]
    row = 0
    for group, (num_rows, _) in enumerate(sizes):
        yield _Rows(at, group, group + 1, row), file.size // len(sizes)
        row += num_rows


def _cut_arrow(file: InputFile, at: int) -> Iterator[tuple[_Rows, int]]:
    start, row, rows, total = 0, 0, 0, 0
    stop = 0
    with _handle(file) as handle:
        for stop, batch in enumerate(_stored_batches(handle), start=1):
            rows += batch.num_rows
            total += batch.nbytes
            if total >= PART_BYTES:
                yield _Rows(at, start, stop, row), total
                start, row, rows, total = stop, row + rows, 0, 0
    if rows:
        yield _Rows(at, start, stop, row), total


def _batches(file: InputFile, what: _Rows, choice: Choice) -> Iterator[Any]:
    """Yield a part's rows in batches of a bounded size."""
    pa = arrow()
    with _handle(file) as handle:
        if not suffix_of(file.name, ARROW):
            parquet = pa.parquet.ParquetFile(handle, pre_buffer=False)
            wanted = _wanted(parquet.schema_arrow.names, choice, where=file.shown)
            group = parquet.metadata.row_group(what.start)
            a_row = max(1, group.total_byte_size // max(1, group.num_rows))
            yield from parquet.iter_batches(
                batch_size=max(1, min(4096, _BATCH_BYTES // a_row)),
                row_groups=[what.start],
                columns=wanted,
                use_threads=False,
            )
            return
        for number, batch in enumerate(_stored_batches(handle)):
            if number >= what.stop:
                return
            if number < what.start:
                continue
            wanted = _wanted(batch.schema.names, choice, where=file.shown)
            chosen = batch if wanted is None else batch.select(wanted)
            step = max(1, _BATCH_BYTES * max(1, chosen.num_rows) // max(1, chosen.nbytes))
            for first in range(0, chosen.num_rows, step):
                yield chosen.slice(first, step)


def _wanted(names: list[str], choice: Choice, *, where: str) -> list[str] | None:
    """Give the columns to read, None for all.

    Refuses names of which a row could only have one, and a choice of what is not there.
    """
    if len(set(names)) != len(names):
        raise UsageError(f"{where} has two columns of one name: {names}")
    choice.check_columns(names, where=where)
    return [column for column in choice.columns if column in names] if choice.pairs else None


def _stored_batches(handle: Any) -> Iterator[Any]:
    """Yield the record batches of an Arrow file, in its random-access or its stream format."""
    pa = arrow()
    try:
        reader = pa.ipc.open_file(handle)
    except pa.ArrowInvalid:
        handle.seek(0)
        yield from pa.ipc.open_stream(handle)
        return
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)
