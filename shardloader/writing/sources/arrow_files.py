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

import json
import math
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardloader.errors import MissingExtraError, UsageError, WorldError
from shardloader.format.media import media_of
from shardloader.writing.sources.base import PART_BYTES, Part, Refused, printable
from shardloader.writing.sources.files import (
    FileSource,
    InputFile,
    opened,
    suffix_of,
)
from shardloader.writing.sources.mapping import Choice, key_of, value_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardloader.writing.sources.base import Sample

PARQUET = (".parquet",)
ARROW = (".arrow", ".feather")
SUFFIXES = (*PARQUET, *ARROW)
SAVED_STATE = "state.json"
_SAVED_BESIDE = (SAVED_STATE, "dataset_info.json")
_BATCH_BYTES = 8 << 20


class _Rows(NamedTuple):
    """Pieces `start` to `stop` of a file (row groups or batches); the first row's number."""

    file: int
    start: int
    stop: int
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """How a table's columns are used where no fields were chosen."""

    images: tuple[str, ...]
    binaries: tuple[str, ...]
    others: tuple[str, ...]


class ArrowRows(FileSource):
    """Parquet or Arrow files, or datasets that `datasets` saved to disk."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        choice: Choice | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(words, SUFFIXES, choice, storage_options)
        self._files = _in_saved_order(self._files, self._others)

    @property
    def about(self) -> dict[str, Any]:
        """The options that decide what is read."""
        return {"kind": "arrow", "choice": self._choice.about}

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
            used = _use_of(batch.schema)
            if not self._choice.pairs:
                _check_fields_differ(used, where=file.shown)
            arrays = _array_types(batch.schema, self._choice)
            for row, problem in _rows_of(batch):
                yield self._sample(file, number, row, used, arrays, problem)
                number += 1

    def _sample(
        self,
        file: InputFile,
        number: int,
        row: dict[str, Any],
        used: _Columns,
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
            return Refused(
                printable(str(key)), where, f"sample {key!r} can't be written: {problem}"
            )
        for image in used.images:
            found = row.get(image)
            if found is not None:
                row[image] = found["bytes"]
                if found["bytes"] is None:
                    return Refused(str(key), where, f"the image {image!r} is not in the file")
        try:
            if not self._choice.pairs:
                return {"__key__": key, **_default_fields(row, used)}
            return {"__key__": key, **_chosen_fields(row, self._choice, arrays)}
        except _NoJsonError as error:
            return Refused(printable(str(key)), where, f"sample {key!r} can't be written: {error}")


def _rows_of(batch: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the rows as Python's values, each with why it has one that Python can't say, or "".

    Arrow says dates beyond the year 9999, and texts that are no UTF-8. What is finer than
    microseconds becomes an ISO text: pyarrow would make objects of pandas' of that, or raise where
    pandas is not installed.
    """
    names = batch.schema.names
    columns = []
    problems: list[list[str]] = [[] for _ in range(batch.num_rows)]
    for name, column in zip(names, batch.columns, strict=True):
        values, wrong = _values_of(column)
        columns.append(values)
        for at, error in wrong.items():
            problems[at].append(f"the column {name!r} holds what can't be read: {error}")
    for at, problem in enumerate(problems):
        yield (
            {name: values[at] for name, values in zip(names, columns, strict=True)},
            "; ".join(problem),
        )


def _values_of(column: Any) -> tuple[list[Any], dict[int, Exception]]:
    """Give a column's values, and by row the errors of those that can't be read, None there."""
    read = _times if _has_nanoseconds(column.type) else _plain_values
    try:
        return read(column), {}
    except (ValueError, OverflowError):
        values: list[Any] = [None] * len(column)
        wrong: dict[int, Exception] = {}
        for at in range(len(column)):
            try:
                (values[at],) = read(column.slice(at, 1))
            except (ValueError, OverflowError) as error:
                wrong[at] = error
        return values, wrong


def _plain_values(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _chosen_fields(row: dict[str, Any], choice: Choice, arrays: dict[str, Any]) -> dict[str, Any]:
    fields = {}
    for name, column in choice.pairs:
        value = row.get(column)
        ending = name.rpartition(".")[2]
        if value is None:
            continue
        if ending in {"json", "jsn"}:
            fields[name] = _for_json(column, value, field=name)
        elif ending == "npy" and column in arrays:
            fields[name] = _array(value, arrays[column])
        else:
            fields[name] = value_for(name, value)
    return fields


def _default_fields(row: dict[str, Any], used: _Columns) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for column in used.images:
        if row[column] is not None:
            media = media_of(row[column])
            kind = "img" if media is None else media.extension
            fields[kind if len(used.images) == 1 else f"{column.lower()}.{kind}"] = row[column]
    for column in used.binaries:
        if row[column] is not None:
            fields[f"{column.lower()}.bin"] = row[column]
    if used.others:
        fields["json"] = {
            column: _for_json(column, row[column], field="json") for column in used.others
        }
    return fields


class _NoJsonError(Exception):
    """A value is none that JSON can say; the message names column and field."""


def _for_json(column: str, value: Any, *, field: str) -> Any:
    try:
        return _plain(value)
    except ValueError as error:
        raise _NoJsonError(
            f"field {field!r} is JSON, which has no number for {error}, and the column {column!r} "
            "holds it: write null there, or give the column a field of its own that ends in npy"
        ) from None


def _plain(value: Any) -> Any:
    """Return what JSON can say for a value of Arrow's; raises ValueError for NaN and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list | tuple):  # a map is a list of pairs
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _array(value: Any, dtype: Any) -> Any:
    try:
        return np.asarray(value, dtype=dtype)
    except (TypeError, ValueError):
        return value  # ragged or with nulls: the encoder refuses it with key and field


def _arrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "Parquet and Arrow files are read with pyarrow, which is not installed: "
            "pip install 'shardloader[arrow]'"
        ) from error
    return pa


@contextmanager
def _handle(file: InputFile) -> Iterator[Any]:
    """Open a file as Arrow does: mapped if it is local. Its errors name the file."""
    pa = _arrow()
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
    pa = _arrow()
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
    pa = _arrow()
    wanted = list(choice.columns) if choice.pairs else None
    with _handle(file) as handle:
        if not suffix_of(file.name, ARROW):
            parquet = pa.parquet.ParquetFile(handle, pre_buffer=False)
            _check_names(parquet.schema_arrow.names, choice, where=file.shown)
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
            _check_names(batch.schema.names, choice, where=file.shown)
            chosen = batch if wanted is None else batch.select(wanted)
            step = max(1, _BATCH_BYTES * max(1, chosen.num_rows) // max(1, chosen.nbytes))
            for first in range(0, chosen.num_rows, step):
                yield chosen.slice(first, step)


def _check_names(names: list[str], choice: Choice, *, where: str) -> None:
    """Refuse names of which a row could only have one, and a choice of what is not there."""
    if len(set(names)) != len(names):
        raise UsageError(f"{where} has two columns of one name: {names}")
    choice.check_columns(names, where=where)


def _stored_batches(handle: Any) -> Iterator[Any]:
    """Yield the record batches of an Arrow file, in its random-access or its stream format."""
    pa = _arrow()
    try:
        reader = pa.ipc.open_file(handle)
    except pa.ArrowInvalid:
        handle.seek(0)
        yield from pa.ipc.open_stream(handle)
        return
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


def _has_nanoseconds(kind: Any) -> bool:
    pa = _arrow()
    is_time = pa.types.is_timestamp(kind) or pa.types.is_time64(kind)
    return bool(is_time and kind.unit == "ns")


def _times(column: Any) -> list[Any]:
    pa = _arrow()
    kind = column.type
    coarse = pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else pa.time64("us")
    numbers = column.cast(pa.int64()).to_pylist()
    whole = [None if number is None else number // 1000 for number in numbers]
    found = pa.array(whole, pa.int64()).cast(coarse).to_pylist()
    return [
        value if number is None or number % 1000 == 0 else _finer(value, number % 1000)
        for value, number in zip(found, numbers, strict=True)
    ]


def _finer(value: datetime | time, nanoseconds: int) -> str:
    """Give the ISO text of a time with nine digits behind the point."""
    text = value.isoformat(timespec="microseconds")
    end = text.index(".") + 7
    return f"{text[:end]}{nanoseconds:03d}{text[end:]}"


def _use_of(schema: Any) -> _Columns:
    pa = _arrow()
    images, binaries, others = [], [], []
    for field in schema:
        kind = field.type
        if pa.types.is_struct(kind) and {f.name for f in kind} == {"bytes", "path"}:
            images.append(field.name)
        elif (
            pa.types.is_binary(kind)
            or pa.types.is_large_binary(kind)
            or pa.types.is_fixed_size_binary(kind)
            or pa.types.is_binary_view(kind)
        ):
            binaries.append(field.name)
        else:
            others.append(field.name)
    return _Columns(images=tuple(images), binaries=tuple(binaries), others=tuple(others))


def _check_fields_differ(used: _Columns, *, where: str) -> None:
    """Refuse columns that would be one field, since fields are lower case."""
    for columns in (used.images, used.binaries):
        taken: dict[str, str] = {}
        for column in columns:
            other = taken.setdefault(column.lower(), column)
            if other != column:
                raise UsageError(
                    f"{where}: the columns {other!r} and {column!r} would be the same field, which "
                    f"is lower case: choose fields, such as --field {column.lower()}.bin={column}"
                )


def _array_types(schema: Any, choice: Choice) -> dict[str, Any]:
    """Give the dtype of each list column that becomes an npy, so that float32 stays float32."""
    pa = _arrow()
    dtypes: dict[str, Any] = {}
    for field, column in choice.pairs:
        kind = schema.field(column).type
        depth = 0
        while pa.types.is_list(kind) or pa.types.is_large_list(kind) or _is_fixed_list(pa, kind):
            kind, depth = kind.value_type, depth + 1
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if depth and field.rpartition(".")[2] == "npy" and (is_number or pa.types.is_boolean(kind)):
            dtypes[column] = kind.to_pandas_dtype()
    return dtypes


def _is_fixed_list(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_fixed_size_list(kind))


def _in_saved_order(files: list[InputFile], others: list[InputFile]) -> list[InputFile]:
    """Put the files of each folder that `datasets` saved into the order that it says."""
    if any(_base_name(file) == "dataset_dict.json" for file in others):
        raise UsageError("this folder holds several splits, as `datasets` saved them: give one")
    saved = {_folder(file): file for file in others if _base_name(file) == SAVED_STATE}
    ordered: list[InputFile] = []
    for folder in dict.fromkeys(map(_folder, files)):
        here = [file for file in files if _folder(file) == folder]
        ordered += _listed(saved[folder], here) if folder in saved else here
    return ordered


def _listed(state: InputFile, files: list[InputFile]) -> list[InputFile]:
    """Give the files that a saved dataset says it has, in its order."""
    try:
        with opened(state) as handle:
            said = json.load(handle)
        listed = [entry["filename"] for entry in said["_data_files"]]
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{state.shown} does not list data files as that of `datasets` does ({error!r}): give "
            "the files that are to be read"
        ) from None
    if any(value for name, value in said.items() if name.startswith("_indices")):
        raise UsageError(
            f"{state.shown}: rows were chosen from this dataset and saved as their numbers, by an "
            "old release of `datasets`: load it with that and save flatten_indices() of it"
        )
    by_name = {_base_name(file): file for file in files}
    missing = [name for name in listed if name not in by_name]
    if missing:
        raise UsageError(f"{state.shown} lists {missing[0]!r}, which is not there")
    return [by_name[name] for name in listed]


def _folder(file: InputFile) -> str:
    return file.location.rpartition("/")[0]


def _base_name(file: InputFile) -> str:
    return file.location.rpartition("/")[2]
