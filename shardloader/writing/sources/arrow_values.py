"""What fields do the values of Arrow's columns become?

The table in `arrow_files` says which field a column becomes. Here stands how: dates and decimals as
JSON says them, lists as arrays of their own dtype, and what Python can't say as a problem of its
row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from shardloader.errors import MissingExtraError, UsageError
from shardloader.format.media import media_of
from shardloader.writing.sources.mapping import value_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardloader.writing.sources.mapping import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """How a table's columns are used where no fields were chosen."""

    images: tuple[str, ...]
    binaries: tuple[str, ...]
    others: tuple[str, ...]


def arrow() -> Any:
    """Import pyarrow; raises MissingExtraError where that is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "Parquet and Arrow files are read with pyarrow, which is not installed: "
            "pip install 'shardloader[arrow]'"
        ) from error
    return pa


def rows_of(batch: Any) -> Iterator[tuple[dict[str, Any], str]]:
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


def chosen_fields(row: dict[str, Any], choice: Choice, arrays: dict[str, Any]) -> dict[str, Any]:
    """Give the fields that were chosen of a row; those that are null are left out.

    Raises NoJsonError, and TwoSourcesError.
    """
    fields = {}
    there = {column for _, column in choice.pairs if row.get(column) is not None}
    for name, column in choice.taken(there):
        value, ending = row[column], name.rpartition(".")[2]
        if ending in {"json", "jsn"}:
            fields[name] = _for_json(column, value, field=name)
        elif ending == "npy" and column in arrays:
            fields[name] = _array(value, arrays[column])
        else:
            fields[name] = value_for(name, value)
    return fields


def default_fields(row: dict[str, Any], used: Columns) -> dict[str, Any]:
    """Give the fields of a row where none were chosen; raises NoJsonError."""
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


class NoJsonError(Exception):
    """A value is none that JSON can say; the message names column and field."""


def _for_json(column: str, value: Any, *, field: str) -> Any:
    try:
        return _plain(value)
    except ValueError as error:
        raise NoJsonError(
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


def _has_nanoseconds(kind: Any) -> bool:
    pa = arrow()
    is_time = pa.types.is_timestamp(kind) or pa.types.is_time64(kind)
    return bool(is_time and kind.unit == "ns")


def _times(column: Any) -> list[Any]:
    pa = arrow()
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


def use_of(schema: Any) -> Columns:
    """Tell what the columns of a table are used for."""
    pa = arrow()
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
    return Columns(images=tuple(images), binaries=tuple(binaries), others=tuple(others))


def check_fields_differ(used: Columns, *, where: str) -> None:
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


def array_types(schema: Any, choice: Choice) -> dict[str, Any]:
    """Give the dtype of each list column that becomes an npy, so that float32 stays float32."""
    pa = arrow()
    dtypes: dict[str, Any] = {}
    for field, column in choice.pairs:
        if column not in schema.names:  # but another of the field's is
            continue
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
