"""A field that is taken from whichever of several columns or fields a sample has."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from shardloader.errors import SampleError, UsageError
from shardloader.writing.sources.mapping import Choice, parse_choice
from shardloader.writing.sources.opening import open_source
from shardloader.writing.write import write_shards
from tests.shards import tar_bytes
from tests.writing.reading_back import read_dataset

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Rows = list[dict[str, str]]


def folder(place: Path, rows: Rows) -> None:
    for row in rows:
        for column in row.keys() - {"id"}:
            (place / f"{row['id']}.{column}").write_text(row[column])


def shards(place: Path, rows: Rows) -> None:
    members = [
        (f"{row['id']}.{column}", row[column].encode())
        for row in rows
        for column in sorted(row.keys() - {"id"})
    ]
    (place / "a.tar").write_bytes(tar_bytes(members))


def lines(place: Path, rows: Rows) -> None:
    (place / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def table(place: Path, rows: Rows) -> None:
    with (place / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "txt", "text"])
        writer.writeheader()
        writer.writerows(rows)


def parquet(place: Path, rows: Rows) -> None:
    columns = {name: [row.get(name) for row in rows] for name in ("id", "txt", "text")}
    pa.parquet.write_table(pa.table(columns), place / "a.parquet")


MAKERS = {maker.__name__: maker for maker in (folder, shards, lines, table, parquet)}
FIRST, SECOND = {"id": "a", "txt": "one"}, {"id": "b", "text": "two"}
BOTH = {"id": "ab", "txt": "one", "text": "two"}


@pytest.fixture(params=sorted(MAKERS))
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Rows], Any]:
    """What opens rows in the form of one kind of source, with a choice of fields."""

    def opened(rows: Rows, *fields: str) -> Any:
        place = tmp_path / "in"
        place.mkdir()
        MAKERS[request.param](place, rows)
        has_keys = request.param in {"folder", "shards"}
        choice = parse_choice(None if has_keys else "id", fields or ("txt", "txt=text"))
        return open_source([str(place)], choice=choice)

    return opened


def test_a_field_is_taken_from_whichever_column_a_sample_has(source, tmp_path) -> None:
    write_shards(source([FIRST, SECOND]), tmp_path / "out")
    assert read_dataset(tmp_path / "out") == [("a", {"txt": b"one"}), ("b", {"txt": b"two"})]


def test_a_sample_that_has_two_of_them_is_refused_with_key_and_both(source, tmp_path) -> None:
    made = source([FIRST, BOTH, SECOND])
    told = r"sample 'ab' can't be written: the field 'txt' is taken from 'txt' or 'text'"
    with pytest.raises(SampleError, match=told):
        write_shards(made, tmp_path / "out")
    written = write_shards(made, tmp_path / "out", on_error="skip")
    assert written.num_refused == 1
    assert [key for key, _ in read_dataset(tmp_path / "out")] == ["a", "b"]
    (line,) = (tmp_path / "out" / "refused.jsonl").read_text().splitlines()
    assert json.loads(line)["key"] == "ab"


def test_one_of_the_columns_is_enough_for_a_file(source, tmp_path) -> None:
    write_shards(source([FIRST], "txt", "txt=none"), tmp_path / "out")
    assert read_dataset(tmp_path / "out") == [("a", {"txt": b"one"})]


def test_columns_none_of_which_is_there_are_named(source, tmp_path, caplog) -> None:
    try:
        write_shards(source([FIRST], "txt", "cls=x", "cls=y"), tmp_path / "out")
    except UsageError as error:
        assert "'x' or 'y'" in str(error)  # noqa: PT017  # which kind knows that before is its own
    else:
        assert "no input has a value for 'x' or 'y'" in caplog.text


def test_a_field_is_taken_from_a_column_once() -> None:
    with pytest.raises(UsageError, match="'txt' is taken from 'text' twice"):
        Choice(pairs=(("txt", "text"), ("txt", "text")))


def test_files_may_call_a_column_differently(tmp_path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    for name, column in (("a", "caption"), ("b", "text")):
        columns = {"id": [name], column: [f"of {name}"]}
        pa.parquet.write_table(pa.table(columns), place / f"{name}.parquet")
    choice = parse_choice("id", ["txt=caption", "txt=text"])
    write_shards(open_source([str(place)], choice=choice), tmp_path / "out")
    assert read_dataset(tmp_path / "out") == [("a", {"txt": b"of a"}), ("b", {"txt": b"of b"})]
