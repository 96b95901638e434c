"""Which columns of a row, or fields of a sample, become which fields?

Chosen and renamed by `Choice`; a pure function of names and values. A missing or null column is a
field left out. A field may have several columns, such as `jpg` and `jpeg`, of which a sample has
one: which of two is meant nobody can tell, so having both is having none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from shardloader.errors import UsageError
from shardloader.writing.encode import field_layout

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence


_T = TypeVar("_T")


class TwoSourcesError(Exception):
    """A sample has two columns that are to be one field; the message names all three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The column that is the key, and pairs of (field to write, column or field to take).

    Without pairs each kind of source has its own rule; without a key, rows are numbered. A field
    that stands in several pairs is taken from that column which a sample has.
    """

    key: str | None = None
    pairs: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.pairs)) != len(self.pairs):
            field, column = _twice(self.pairs)
            raise UsageError(
                f"a field is taken from a column once, and {field!r} is taken from {column!r} twice"
            )
        for field in self.by_field:
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

    @property
    def by_field(self) -> dict[str, tuple[str, ...]]:
        """The fields to write, each with the columns that it may be taken from."""
        found: dict[str, tuple[str, ...]] = {}
        for field, column in self.pairs:
            found[field] = (*found.get(field, ()), column)
        return found

    @property
    def shared(self) -> frozenset[str]:
        """The columns of fields that have several."""
        several = [columns for columns in self.by_field.values() if len(columns) > 1]
        return frozenset(column for columns in several for column in columns)

    def taken(self, there: Container[str]) -> list[tuple[str, str]]:
        """Return the pairs whose column is there, each field once.

        Raises TwoSourcesError where two columns of a field are.
        """
        pairs = [pair for pair in self.pairs if pair[1] in there]
        if len(dict(pairs)) != len(pairs):
            field = _twice([field for field, _ in pairs])
            first, second, *_ = [column for name, column in pairs if name == field]
            raise TwoSourcesError(
                f"the field {field!r} is taken from {first!r} or {second!r}, whichever a sample "
                "has, and this one has both: take out one of them, or choose one"
            )
        return pairs

    def of_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chosen fields that the row has. Raises TwoSourcesError."""
        there = {column for _, column in self.pairs if row.get(column) is not None}
        return {field: value_for(field, row[column]) for field, column in self.taken(there)}

    def check_columns(self, known: Iterable[str], *, where: str) -> None:
        """Raise UsageError for a column that is asked for and not there.

        Of a field's columns one has to be there: files may call it differently.
        """
        known = list(known)
        keys = [] if self.key is None else [(self.key,)]
        for columns in (*keys, *self.by_field.values()):
            if not any(column in known for column in columns):
                named = " or ".join(map(repr, columns))
                raise UsageError(f"{where} has no column {named}; it has {known}")


def parse_choice(key: str | None, texts: Iterable[str]) -> Choice:
    """Read `FIELD=COLUMN` texts, or `FIELD` alone for one that keeps its name.

    >>> parse_choice("id", ["txt=caption", "jpg"]).pairs
    (('txt', 'caption'), ('jpg', 'jpg'))
    >>> parse_choice(None, ["jpg", "jpg=jpeg"]).by_field
    {'jpg': ('jpg', 'jpeg')}
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


def _twice(items: Sequence[_T]) -> _T:
    return next(item for item in items if items.count(item) > 1)
