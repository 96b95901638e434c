"""How are the rows of CSV files read as samples?

The first line names the columns; values are texts. A file is read by one worker, since only its
start tells which quotes are open. A row's key is a column of it, or the file's name and the row's
number from 0. Without chosen fields the whole row becomes the field `json`; of columns that are to
be one field, an empty one is none. A row with more or fewer values than there are columns is
refused. `.tsv` files are separated by tabs.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, NamedTuple

from shardloader.errors import UsageError
from shardloader.writing.sources.base import Part, Refused, unwritable
from shardloader.writing.sources.files import FileSource, InputFile, opened
from shardloader.writing.sources.mapping import TwoSourcesError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardloader.writing.sources.base import Sample

SUFFIXES = (".csv", ".tsv")
_LONGEST_VALUE = 2**31 - 1


class _Whole(NamedTuple):
    """A file, by number."""

    file: int


class CsvRows(FileSource):
    """Files of rows under a line of column names, in UTF-8."""

    kind = "csv"
    suffixes = SUFFIXES

    def parts(self) -> Iterator[Part]:
        """Give each file as one part."""
        for number, file in enumerate(self._files):
            yield Part(number, file.size, _Whole(number))

    def read(self, part: Part, *, outline: bool = False) -> Iterator[Sample | Refused]:
        """Yield a sample for each row."""
        del outline
        file = self._files[part.what.file]
        delimiter = "\t" if file.name.lower().endswith(".tsv") else ","
        with opened(file) as handle:
            text = io.TextIOWrapper(
                handle, encoding="utf-8-sig", errors="surrogateescape", newline=""
            )
            limit = csv.field_size_limit(_LONGEST_VALUE)  # of the whole process, so put back
            try:
                yield from self._rows(file, csv.reader(text, delimiter=delimiter, strict=True))
            finally:
                csv.field_size_limit(limit)

    def _rows(self, file: InputFile, reader: Any) -> Iterator[Sample | Refused]:
        try:
            names = next(reader, None)
        except csv.Error as error:
            raise UsageError(
                f"{file.shown}: the first line names the columns, and is not CSV: {error}"
            ) from error
        if names is None:
            return
        if not names:
            raise UsageError(f"{file.shown}: the first line names the columns, and it is blank")
        if len(set(names)) != len(names):
            raise UsageError(f"{file.shown}: the first line names a column twice: {names}")
        self._choice.check_columns(names, where=file.shown)
        shared = self._choice.shared
        number = -1
        while True:
            number += 1
            try:
                values = next(reader, None)
            except csv.Error as error:
                yield Refused("", _where(file, number, reader), f"the row is not CSV: {error}")
                continue
            if values is None:
                return
            if not values:  # a blank line
                continue
            if len(values) != len(names):
                yield Refused(
                    "",
                    _where(file, number, reader),
                    f"the row has {len(values)} values, and there are {len(names)} columns",
                )
                continue
            found = zip(names, values, strict=True)
            row = {name: value for name, value in found if value or name not in shared}
            yield self._sample(file, number, row, _where(file, number, reader))

    def _sample(
        self, file: InputFile, number: int, row: dict[str, str], where: str
    ) -> Sample | Refused:
        key = (
            f"{file.stem(SUFFIXES)}/{number:09d}"
            if self._choice.key is None
            else row.get(self._choice.key, "")
        )
        fields: dict[str, Any]
        try:
            fields = self._choice.of_row(row) if self._choice.pairs else {"json": row}
        except TwoSourcesError as error:
            return unwritable(key, where, error)
        return {"__key__": key, **fields}


def _where(file: InputFile, number: int, reader: Any) -> str:
    return f"{file.shown}, row {number + 1} (line {reader.line_num})"
