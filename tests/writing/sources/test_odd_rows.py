"""Rows to trip over: values that Python can't say, names that are one, odd first lines."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet
import pytest

from shardloader.errors import MissingExtraError, SampleError, UsageError
from shardloader.writing.sources.arrow_files import ArrowRows
from shardloader.writing.sources.csv_files import CsvRows
from shardloader.writing.sources.jsonl_files import JsonLines
from shardloader.writing.sources.mapping import parse_choice
from shardloader.writing.sources.opening import open_source
from shardloader.writing.write import write_shards
from tests.writing.reading_back import read_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from shardloader.writing.sources.base import Source

NO_UTF8 = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
)
BEYOND = {
    "timestamp": pa.array([1, 2**53], pa.timestamp("ms")),
    "date": pa.array([1, 2**30], pa.date32()),
    "text": NO_UTF8,
}


def items(source: Source) -> list[Any]:
    return [item for part in source.parts() for item in source.read(part)]


def parquet(place: Path, table: Any) -> ArrowRows:
    pa.parquet.write_table(table, place / "t.parquet")
    return ArrowRows([str(place / "t.parquet")])


@pytest.mark.parametrize("kind", BEYOND)
def test_a_value_that_python_cannot_say_costs_its_row_and_no_other(tmp_path, kind: str) -> None:
    table = pa.table({"id": ["first", "second"], "odd": BEYOND[kind]})
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    source = ArrowRows([str(tmp_path / "t.parquet")], choice=parse_choice("id", ["json=odd"]))
    good, bad = items(source)
    assert good["__key__"] == "first"
    assert bad.key == "second"
    assert bad.where.endswith("t.parquet, row 1")
    assert "'odd'" in bad.reason
    with pytest.raises(SampleError, match=r"'second'.*'odd'"):
        write_shards(source, tmp_path / "out")
    written = write_shards(source, tmp_path / "left", on_error="skip")
    assert written.num_refused == 1
    assert [key for key, _ in read_dataset(tmp_path / "left")] == ["first"]


def test_a_key_that_python_cannot_say_is_refused_with_its_row(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"id": NO_UTF8, "n": [1, 2]}), tmp_path / "t.parquet")
    source = ArrowRows([str(tmp_path / "t.parquet")], choice=parse_choice("id", []))
    _, bad = items(source)
    assert (bad.key, bad.where.rpartition(", ")[2]) == ("", "row 1")
    assert "'id' holds what can't be read" in bad.reason


def test_dates_in_a_map_are_texts_as_they_are_in_lists(tmp_path: Path) -> None:
    kind = pa.map_(pa.string(), pa.timestamp("us"))
    table = pa.table({"m": pa.array([[("a", datetime(2020, 1, 1))]], kind)})  # noqa: DTZ001 none in Arrow
    (row,) = items(parquet(tmp_path, table))
    assert row["json"] == {"m": [["a", "2020-01-01T00:00:00"]]}


@pytest.mark.parametrize("value", [b"x", {"bytes": b"\xff\xd8\xff", "path": "p"}])
def test_columns_that_differ_only_in_case_are_not_one_field(tmp_path: Path, value: Any) -> None:
    source = parquet(tmp_path, pa.table({"A": [value], "a": [value]}))
    with pytest.raises(UsageError, match="'A' and 'a' would be the same field"):
        items(source)
    chosen = ArrowRows(
        [str(tmp_path / "t.parquet")], choice=parse_choice(None, ["a.bin=A", "b.bin=a"])
    )
    assert set(items(chosen)[0]) == {"__key__", "a.bin", "b.bin"}


def test_two_columns_of_one_name_are_refused_in_every_kind_of_table(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(UsageError, match=r"t\.parquet has two columns of one name"):
        items(parquet(tmp_path, table))
    with (
        pa.OSFile(str(tmp_path / "t.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as out,
    ):
        out.write_table(table)
    with pytest.raises(UsageError, match=r"t\.arrow has two columns of one name"):
        items(ArrowRows([str(tmp_path / "t.arrow")]))


def test_bytes_seen_through_a_view_are_a_field_as_other_bytes_are(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([b"x"], pa.binary_view())})
    with (
        pa.OSFile(str(tmp_path / "t.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as out,
    ):
        out.write_table(table)
    (row,) = items(ArrowRows([str(tmp_path / "t.arrow")]))
    assert row["a.bin"] == b"x"


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"RIFF\0\0\0\0WAVEfmt ", "wav"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "webp"),
        (b"fLaC\0", "flac"),
        (b"OggS\0", "ogg"),
        (b"ID3\4", "mp3"),
        (b"\xff\xfb\x90", "mp3"),
        (b"\xff\xd8\xff", "jpg"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "jp2"),
        (b"", "img"),
    ],
)
def test_the_bytes_of_an_image_or_a_sound_say_its_field(tmp_path, data: bytes, field: str) -> None:
    table = pa.table({"sound": [{"bytes": data, "path": "a"}]})
    assert set(items(parquet(tmp_path, table))[0]) == {"__key__", field}


@pytest.mark.parametrize("columns", [{"a": pa.array([], pa.int64())}, {}])
def test_tables_without_rows_give_no_sample(tmp_path: Path, columns: dict[str, Any]) -> None:
    assert items(parquet(tmp_path, pa.table(columns))) == []


def test_a_row_without_a_label_is_refused_rather_than_given_one_that_is_empty(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nx,3\ny,\nz,cat\n")
    source = CsvRows(
        [str(tmp_path / "a.csv")], choice=parse_choice(None, ["txt=text", "cls=label"])
    )
    with pytest.raises(SampleError, match=r"'a/000000001'.*'cls'.*a class has a name or a number"):
        write_shards(source, tmp_path / "out")
    write_shards(source, tmp_path / "left", on_error="skip")
    assert [fields["cls"] for _, fields in read_dataset(tmp_path / "left")] == [b"3", b"cat"]


def test_a_list_that_is_ragged_is_refused_with_key_and_field(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"v": [[1], [2, 3]]}\n{"v": [4]}\n')
    source = JsonLines([str(tmp_path / "a.jsonl")], choice=parse_choice(None, ["npy=v"]))
    with pytest.raises(SampleError, match=r"'a/000000000'.*'npy'"):
        write_shards(source, tmp_path / "out")


ODD_LINES = {
    "NaN": b'{"a": NaN}',
    "bytes that are no UTF-8": b'{"a": "\xff"}',
    "half a surrogate": b'{"a": "\\ud800"}',
    "more than a float": b'{"a": 1e400}',
    "more digits than are read": b'{"a": ' + b"1" * 5000 + b"}",
    "a control character": b'{"a": "\0"}',
    "too deep": b'{"a":' * 3000 + b"1" + b"}" * 3000,
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "two objects": b'{"a": 1}{"a": 2}',
}


@pytest.mark.parametrize("kind", ODD_LINES)
def test_a_line_that_would_not_read_back_costs_itself_only(tmp_path: Path, kind: str) -> None:
    lines = [b'\xef\xbb\xbf{"n": 0}\r', b"\r", ODD_LINES[kind], b'{"n": 1, "n": 2}', b'{"n": 3}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    written = write_shards(str(tmp_path / "a.jsonl"), tmp_path / "out", on_error="skip")
    assert written.num_refused == 1
    told = json.loads((tmp_path / "out" / "refused.jsonl").read_text())
    assert told["where"].endswith("a.jsonl, line 3")
    found = {key: json.loads(fields["json"]) for key, fields in read_dataset(tmp_path / "out")}
    assert found == {"a/000000000": {"n": 0}, "a/000000003": {"n": 2}, "a/000000004": {"n": 3}}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'"a"x,b\n1,2\n', "is not CSV"),
        (b'"a,b\n1,2\n', "is not CSV"),
        (b"\na,b\n1,2\n", "blank"),
        (b"a,,\n1,2,3\n", "twice"),
    ],
)
def test_a_first_line_that_names_no_columns_is_wrong_use(tmp_path: Path, data: bytes, why) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(UsageError, match=rf"a\.csv: the first line .*{why}"):
        items(CsvRows([str(tmp_path / "a.csv")]))


@pytest.mark.parametrize(
    ("kind", "data"), [("jsonl", b'{"a": 1}\n'), ("csv", b"a\n1\n"), ("tar", bytes(10240))]
)
def test_files_of_other_names_are_what_the_user_says_they_are(tmp_path: Path, kind, data) -> None:
    (tmp_path / "rows.txt").write_bytes(data)
    source = open_source([str(tmp_path / "rows.txt")], kind=kind)
    assert source.survey().num_files == 1
    assert len(items(source)) == (kind != "tar")


def test_what_lies_beside_rows_is_listed_as_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "README.md").write_text("about")
    assert [each.path for each in open_source([str(tmp_path)]).survey().skipped] == ["README.md"]


@pytest.mark.parametrize("state", ["", "{", "[]", "{}", '{"_data_files": [{"a": 1}]}', "\xff"])
def test_a_list_of_data_files_that_is_none_is_wrong_use(tmp_path: Path, state: str) -> None:
    (tmp_path / "state.json").write_text(state, encoding="latin-1")
    (tmp_path / "a.arrow").write_bytes(b"")
    with pytest.raises(UsageError, match=r"state\.json does not list data files"):
        open_source([str(tmp_path)])


def test_a_store_of_an_unknown_kind_or_without_its_library_is_told_in_words(monkeypatch) -> None:
    with pytest.raises(UsageError, match=r"nope://.*Protocol not known"):
        open_source(["nope://user:secret@host/x.jsonl"])

    def missing(word: str, **options: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(MissingExtraError, match="Install s3fs"):
        open_source(["s3://bucket/x.jsonl"])


def test_a_folder_may_be_named_as_a_url_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("x")
    write_shards(f"file://{tmp_path}/in", tmp_path / "out")
    assert [key for key, _ in read_dataset(tmp_path / "out")] == ["a"]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="lies in the source"):
        write_shards(f"file://{tmp_path}/rows", tmp_path / "rows" / "out")


def test_what_begins_as_no_url_is_a_path_and_schemes_are_of_any_case(tmp_path: Path) -> None:
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "a.jsonl").write_text('{"a": 1}\n')
    for number, word in enumerate((f"{tmp_path}/s3://a.jsonl", f"FILE://{tmp_path}/s3:")):
        write_shards([word], tmp_path / f"out{number}")
        assert len(read_dataset(tmp_path / f"out{number}")) == 1


@pytest.mark.parametrize("words", [[], [""], ["a.jsonl", ""]])
def test_a_source_without_a_name_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="names nothing"):
        open_source(words)
