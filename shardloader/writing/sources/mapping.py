"""Which columns of a row, or fields of a sample, become which fields?

Chosen and renamed by `Choice`; a pure function of names and values. A missing or null column is a
field left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardloader.errors import UsageError
from shardloader.writing.encode import field_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The column that is the key, and pairs of (field to write, column or field to take).

    Without pairs each kind of source has its own rule; without a key, rows are numbered.
    """

    key: str | None = None
    pairs: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        fields = [field for field, _ in self.pairs]
        if len(set(fields)) != len(fields):
            raise UsageError(f"a field is given once, and {_twice(fields)!r} is given twice")
        for field in fields:
            try:
                field_layout((field,))
            except ValueError as error:
                raise UsageError(f"{field!r} can't be written: {error}") from None

    @property
    def about(self) -> dict[str, Any]:
        """The choice, as JSON types."""
        return {"key": self.key, "pairs": [list(pair) for pair in self.pairs]}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are asked for by name, each once."""
        named = [column for _, column in self.pairs]
        return tuple(dict.fromkeys(named if self.key is None else [self.key, *named]))

    def of_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chosen fields that the row has."""
        chosen = {}
        for field, column in self.pairs:
            value = row.get(column)
            if value is not None:
                chosen[field] = value_for(field, value)
        return chosen

    def check_columns(self, known: Iterable[str], *, where: str) -> None:
        """Raise UsageError for a column that is asked for and not there."""
        known = list(known)
        for column in self.columns:
            if column not in known:
                raise UsageError(f"{where} has no column {column!r}; it has {known}")


def parse_choice(key: str | None, texts: Iterable[str]) -> Choice:
    """Read `FIELD=COLUMN` texts, or `FIELD` alone for one that keeps its name.

    >>> parse_choice("id", ["txt=caption", "jpg"]).pairs
    (('txt', 'caption'), ('jpg', 'jpg'))
    """
    pairs = []
    for text in texts:
        field, equals, column = text.partition("=")
        if not field or (equals and not column):
            raise UsageError(f"a field is chosen as FIELD=COLUMN or FIELD, not {text!r}")
        pairs.append((field, column if equals else field))
    return Choice(key=key, pairs=tuple(pairs))


def value_for(field: str, value: Any) -> Any:
    """Return what a field's encoder takes for a column's value: lists become arrays for npy."""
    if isinstance(value, list) and field.rpartition(".")[2] == "npy":
        try:
            array = np.asarray(value)
        except ValueError:
            return value  # ragged: the encoder refuses it with key and field
        if array.dtype.kind in "biufc":
            return array
    return value


def key_of(value: Any) -> Any:
    """Return a key for a column's value: a whole number in decimal, anything else as it is."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


def _twice(items: list[str]) -> str:
    return next(item for item in items if items.count(item) > 1)
