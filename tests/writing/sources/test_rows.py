"""Rows of JSON lines, CSV and Arrow: what becomes of odd ones, and of columns nobody chose."""

from __future__ import annotations

import csv
import gzip
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import (
    MissingExtraError,
    SampleError,
    ShardError,
    UsageError,
    WorldError,
)
from shardloader.reading.decode import resolve
from shardloader.writing.destination import Destination
from shardloader.writing.sources import jsonl_files
from shardloader.writing.sources.arrow_files import ArrowRows
from shardloader.writing.sources.csv_files import CsvRows
from shardloader.writing.sources.jsonl_files import JsonLines
from shardloader.writing.sources.mapping import Choice, parse_choice
from shardloader.writing.sources.opening import open_source
from shardloader.writing.write import write_shards
from tests.writing.reading_back import read_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from shardloader.writing.sources.base import Source


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder for the input, beside which there is room for the output."""
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def items(source: Source) -> list[Any]:
    return [item for part in source.parts() for item in source.read(part)]


def refused(found: list[Any]) -> list[str]:
    return [f"{item.where}: {item.reason}" for item in found if not isinstance(item, dict)]


def test_without_chosen_fields_a_line_is_the_json_byte_for_byte(tmp_path: Path) -> None:
    lines = [
        '{"b": 1,  "a":[1.0, 1e3]}',
        ' {"é": "\\u00e9"}\t',
        "",
        '{"n": 12345678901234567890123}',
    ]
    (tmp_path / "some.rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    write_shards(tmp_path, tmp_path.parent / "out")
    assert read_dataset(tmp_path.parent / "out") == [
        ("some_rows/000000000", {"json": b'{"b": 1,  "a":[1.0, 1e3]}'}),
        ("some_rows/000000001", {"json": ' {"é": "\\u00e9"}'.strip().encode()}),
        ("some_rows/000000003", {"json": b'{"n": 12345678901234567890123}'}),
    ]


def test_lines_that_are_no_objects_are_refused_with_their_number(tmp_path: Path) -> None:
    lines = [b"\xef\xbb\xbf" + b'{"a": 1}', b"{", b"[1]", b'{"a": "\xff"}', b'{"b": 2}', b"NaN"]
    (tmp_path / "a.jsonl").write_bytes(b"\r\n".join(lines))
    found = items(JsonLines([str(tmp_path)], choice=Choice(key="a", pairs=(("json", "a"),))))
    assert found[0] == {"__key__": "1", "json": 1}
    told = refused(found)
    assert len(told) == 5
    for number, text in zip(range(2, 7), told, strict=True):
        assert f"a.jsonl, line {number}" in text
    assert "the row has no 'a', which is the key" in told[3]


@given(
    st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=30),
    st.booleans(),
    st.integers(1, 50),
    st.integers(1, 40),
)
def test_wherever_a_file_is_cut_the_lines_are_the_same(
    tmp_path_factory, lines: list[bytes], ends: bool, part_bytes: int, block_bytes: int
) -> None:
    data = b"\n".join(lines) + (b"\n" if ends else b"")
    path = tmp_path_factory.mktemp("rows") / "a.jsonl"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl_files, "PART_BYTES", part_bytes)
        patch.setattr(jsonl_files, "_BLOCK_BYTES", block_bytes)
        source = JsonLines([str(path)])
        cut = [
            (what.line, data[what.start : what.stop])
            for what in (part.what for part in source.parts())
        ]
    assert b"".join(piece for _, piece in cut) == data
    for (line, _), before in zip(cut[1:], range(len(cut)), strict=False):
        assert line == sum(piece.count(b"\n") for _, piece in cut[: before + 1])


def test_packed_lines_that_are_cut_or_damaged_are_an_error(tmp_path: Path) -> None:
    data = b"".join(b'{"a": %d}\n' % number for number in range(10_000))
    packed = zstandard.compress(data)
    for name, content in (
        ("cut.jsonl.zst", packed[:-10]),
        ("cut.jsonl.gz", gzip.compress(data)[:-10]),
        ("bad.jsonl.gz", gzip.compress(data)[:-8] + bytes(8)),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ShardError, match=f"{name}: (truncated|checksum mismatch)"):
            write_shards([str(tmp_path / name)], tmp_path / "out")
    (tmp_path / "two.jsonl.gz").write_bytes(gzip.compress(data[:500]) + gzip.compress(data[500:]))
    written = write_shards([str(tmp_path / "two.jsonl.gz")], tmp_path / "out")
    assert written.manifest.num_samples == 10_000


def test_csv_values_are_texts_and_odd_rows_are_refused(tmp_path: Path) -> None:
    text = 'id,text\n1,"two\nlines, é"\n2\n3,c,d\n\n4,""\n5,"x"y\n'
    (tmp_path / "a.csv").write_text(text, encoding="utf-8-sig")
    found = items(CsvRows([str(tmp_path)], choice=parse_choice("id", ["txt=text"])))
    samples = [item for item in found if isinstance(item, dict)]
    assert samples == [
        {"__key__": "1", "txt": "two\nlines, é"},
        {"__key__": "4", "txt": ""},
    ]
    told = refused(found)
    assert "row 2 (line 4): the row has 1 values, and there are 2 columns" in told[0]
    assert "row 3 (line 5): the row has 3 values" in told[1]
    assert "not CSV" in told[2]


def test_csv_has_names_in_its_first_line_and_a_value_of_any_length(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    (tmp_path / "a.tsv").write_text("id\ttext\n1\t" + "x" * 300_000 + "\n")
    assert items(CsvRows([str(tmp_path)]))[0]["json"]["text"] == "x" * 300_000
    assert csv.field_size_limit() == limit
    with pytest.raises(UsageError, match="no column 'caption'; it has"):
        items(CsvRows([str(tmp_path)], choice=parse_choice(None, ["txt=caption"])))
    (tmp_path / "a.tsv").write_text("a\ta\n1\t2\n")
    with pytest.raises(UsageError, match="names a column twice"):
        items(CsvRows([str(tmp_path)]))
    (tmp_path / "a.tsv").write_text("")
    assert items(CsvRows([str(tmp_path)])) == []


JPG, PNG = b"\xff\xd8\xff....", b"\x89PNG\r\n\x1a\n...."


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


def test_columns_that_nobody_chose_become_images_bytes_and_one_json(tmp_path: Path) -> None:
    rows = table(
        image=[{"bytes": JPG, "path": "x.jpg"}, {"bytes": PNG, "path": None}, None],
        raw=[b"\0", None, b"2"],
        text=["é", None, "c"],
        tags=[["a"], [], None],
        when=[datetime(2020, 1, 2, tzinfo=UTC), None, None],
        price=[Decimal("1.50"), None, None],
        nested=[{"a": [1, 2], "b": {"c": None}}, None, None],
    )
    pa.parquet.write_table(rows, tmp_path / "a.parquet")
    write_shards(tmp_path, tmp_path.parent / "out")
    found = dict(read_dataset(tmp_path.parent / "out"))
    first = found["a/000000000"]
    assert (first["jpg"], first["raw.bin"]) == (JPG, b"\0")
    assert json.loads(first["json"]) == {
        "text": "é",
        "tags": ["a"],
        "when": "2020-01-02T00:00:00+00:00",
        "price": "1.50",
        "nested": {"a": [1, 2], "b": {"c": None}},
    }
    assert set(found["a/000000001"]) == {"png", "json"}
    assert set(found["a/000000002"]) == {"raw.bin", "json"}


def test_nanoseconds_are_kept_whatever_is_installed(tmp_path: Path) -> None:
    at = 1_500_000_000_000_000_000
    rows = table(
        fine=pa.array([at + 1, at + 2000, None, -1], pa.timestamp("ns", "+02:00")),
        day=pa.array([5, 7000, None, 0], pa.time64("ns")),
    )
    pa.parquet.write_table(rows, tmp_path / "a.parquet")
    write_shards(tmp_path, tmp_path.parent / "out")
    found = [json.loads(fields["json"]) for _, fields in read_dataset(tmp_path.parent / "out")]
    assert [(each["fine"], each["day"]) for each in found] == [
        ("2017-07-14T04:40:00.000000001+02:00", "00:00:00.000000005"),
        ("2017-07-14T04:40:00.000002+02:00", "00:00:00.000007"),
        (None, None),
        ("1970-01-01T01:59:59.999999999+02:00", "00:00:00"),
    ]


def test_what_python_has_no_value_for_names_the_column(tmp_path: Path) -> None:
    pa.parquet.write_table(table(a=pa.array([5], pa.duration("ns"))), tmp_path / "a.parquet")
    with pytest.raises((UsageError, SampleError), match=r"column 'a'|field 'json'"):
        write_shards(tmp_path, tmp_path.parent / "out")


def test_lists_become_arrays_of_their_own_type(tmp_path: Path) -> None:
    rows = table(
        id=[1, 2],
        vector=pa.array([[1.5, 2.5], [3.5]], pa.list_(pa.float32())),
        matrix=pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], pa.list_(pa.list_(pa.int16(), 2))),
    )
    pa.parquet.write_table(rows, tmp_path / "a.parquet")
    choice = parse_choice("id", ["v.npy=vector", "m.npy=matrix", "json=vector"])
    write_shards(ArrowRows([str(tmp_path)], choice=choice), tmp_path.parent / "out")
    decode = resolve("default").decode
    fields = dict(read_dataset(tmp_path.parent / "out"))["1"]
    vector, matrix = decode("v.npy", fields["v.npy"]), decode("m.npy", fields["m.npy"])
    assert (vector.dtype, vector.tolist()) == (np.float32, [1.5, 2.5])
    assert (matrix.dtype, matrix.tolist()) == (np.int16, [[1, 2], [3, 4]])
    assert json.loads(fields["json"]) == [1.5, 2.5]


def test_what_a_column_cannot_become_is_refused_with_key_and_field(tmp_path: Path) -> None:
    rows = table(
        id=["a", "b", "c", None],
        vector=[[1.0, None], [1.0], None, None],
        image=[{"bytes": None, "path": "far.jpg"}, {"bytes": JPG, "path": None}, None, None],
    )
    pa.parquet.write_table(rows, tmp_path / "a.parquet")
    choice = parse_choice("id", ["npy=vector", "jpg=image"])
    written = write_shards(
        ArrowRows([str(tmp_path)], choice=choice), tmp_path.parent / "out", on_error="skip"
    )
    assert [key for key, _ in read_dataset(tmp_path.parent / "out")] == ["b"]
    told = (tmp_path.parent / "out" / "refused.jsonl").read_text().splitlines()
    assert written.num_refused == len(told) == 3
    assert "the image 'image' is not in the file" in told[0]
    assert "'c'" in told[1]
    assert "it has no field" in told[1]
    assert "the row has no 'id'" in told[2]


def test_a_column_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    pa.parquet.write_table(table(a=[1]), tmp_path / "a.parquet")
    choice = parse_choice(None, ["txt=caption"])
    with pytest.raises(UsageError, match=r"a\.parquet has no column 'caption'; it has \['a'\]"):
        write_shards(ArrowRows([str(tmp_path)], choice=choice), tmp_path.parent / "out")


def test_damaged_columns_are_an_error_with_the_files_name(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really PAR1")
    (tmp_path / "b.arrow").write_bytes(b"nor this")
    for name in ("a.parquet", "b.arrow"):
        with pytest.raises(WorldError, match=name):
            write_shards([str(tmp_path / name)], tmp_path.parent / "out")


def test_a_saved_dictionary_of_splits_is_to_be_told_apart(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "dataset_dict.json").write_text("{}")
    (tmp_path / "train" / "data-00000-of-00001.arrow").write_bytes(b"")
    with pytest.raises(UsageError, match="several splits"):
        write_shards(tmp_path, tmp_path.parent / "out")


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'shardloader\[arrow\]'"):
        write_shards(tmp_path, tmp_path.parent / "out")


def test_a_bad_row_stops_the_write_unless_it_may_be_left_out(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "t": "x"},
        {"id": "b.c", "t": "y"},
        {"id": "d", "t": 7},
        {"id": "a", "t": ""},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = JsonLines([str(tmp_path)], choice=parse_choice("id", ["txt=t"]))
    out = tmp_path.parent / "out"
    with pytest.raises(SampleError, match=r"'b\.c' can't be written"):
        write_shards(source, out)
    assert list(out.iterdir()) == []
    written = write_shards(source, out, on_error="skip")
    assert read_dataset(out) == [("a", {"txt": b"x"})]
    told = [json.loads(line) for line in (out / "refused.jsonl").read_text().splitlines()]
    assert [each["key"] for each in told] == ["b.c", "d", "a"]
    assert "field 'txt' got a value of type int" in told[1]["reason"]
    assert "written before" in told[2]["reason"]
    assert written.num_refused == 3


def test_files_with_dots_in_their_names_give_keys_of_their_own(tmp_path: Path) -> None:
    for name in ("part.0.jsonl", "part.1.jsonl.gz"):
        data = b'{"a": 1}\n'
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    write_shards(tmp_path, tmp_path.parent / "out")
    keys = [key for key, _ in read_dataset(tmp_path.parent / "out")]
    assert keys == ["part_0/000000000", "part_1/000000000"]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "arrow", "tar"])
def test_files_of_another_kind_alone_are_nothing_to_read(tmp_path: Path, kind: str) -> None:
    name = "rows.csv" if kind == "jsonl" else "rows.jsonl"
    (tmp_path / name).write_text('{"a": 1}\n')
    for word in (tmp_path, tmp_path / name):
        with pytest.raises(UsageError, match=r"no file ends in .* is of another kind"):
            open_source([str(word)], kind=kind)


def test_files_of_another_kind_beside_the_rows_are_told_of(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    (tmp_path / "1.txt").write_text("a caption")
    written = write_shards(tmp_path, tmp_path.parent / "out")
    assert written.survey.skipped == [("1.txt", "of another kind than what is read")]


def test_a_file_that_is_given_twice_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    for words in ([tmp_path, tmp_path / "a.jsonl"], [tmp_path / "a.jsonl"] * 2):
        with pytest.raises(UsageError, match=r"a\.jsonl' is given twice"):
            write_shards([str(word) for word in words], tmp_path.parent / "out")


def test_saved_datasets_are_read_one_after_another(tmp_path: Path) -> None:
    name = "data-00000-of-00001.arrow"
    for folder, value in (("b", 1), ("a", 2)):
        (tmp_path / folder).mkdir()
        with (
            pa.OSFile(str(tmp_path / folder / name), "wb") as file,
            pa.ipc.new_stream(file, table(id=[value]).schema) as out,
        ):
            out.write_table(table(id=[value]))
        (tmp_path / folder / "state.json").write_text(
            json.dumps({"_data_files": [{"filename": name}], "_indices_files": None})
        )
    choice = parse_choice("id", ["json=id"])
    for words, keys in ((["b", "a"], ["1", "2"]), (["."], ["2", "1"])):
        source = ArrowRows([str(tmp_path / word) for word in words], choice=choice)
        assert [item["__key__"] for item in items(source)] == keys


def test_rows_that_were_saved_as_numbers_of_others_are_refused(tmp_path: Path) -> None:
    pa.parquet.write_table(table(a=[1]), tmp_path / "dataset.arrow")
    state = {"_data_files": [{"filename": "dataset.arrow"}], "_indices_data_files": [{}]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(UsageError, match="flatten_indices"):
        ArrowRows([str(tmp_path)])


def test_a_first_line_that_is_no_csv_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('"a"b,c\n1,2\n')
    with pytest.raises(UsageError, match="the first line names the columns, and is not CSV"):
        items(CsvRows([str(tmp_path)]))


def test_a_store_that_is_not_known_here_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="Protocol not known"):
        JsonLines(["odd-store://bucket/a.jsonl"])


def test_a_line_with_none_of_the_columns_is_refused_with_those_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "a", "text": "x"}\n')
    source = JsonLines([str(tmp_path)], choice=parse_choice("id", ["txt=tekst"]))
    (told,) = refused(items(source))
    assert told.startswith(f"{tmp_path}/a.jsonl, line 1: ")
    assert told.endswith("has none of the columns ['tekst']; it has ['id', 'text']")


def _told(source: Source, folder: Path, caplog: pytest.LogCaptureFixture, **options: Any) -> Any:
    caplog.clear()
    write_shards(source, folder, **options)
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_a_chosen_field_that_no_sample_has_is_told(tmp_path: Path, caplog, kind: str) -> None:
    rows = [{"id": "a", "t": "x"}, {"id": "b", "t": "y", "c": "z"}, {"id": "c", "t": None, "c": ""}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [str(tmp_path)]
    if kind == "tar":
        both = parse_choice("id", ["t.txt=t", "c.txt=c"])
        write_shards(JsonLines(words, choice=both), tmp_path.parent / "tars")
        words = [str(tmp_path.parent / "tars")]
    name = "{}.txt" if kind == "tar" else "{}"
    key = None if kind == "tar" else "id"

    def choosing(*columns: str) -> Source:
        pairs = [f"{column}.txt={name.format(column)}" for column in columns]
        return open_source(words, choice=parse_choice(key, pairs))

    out = tmp_path.parent
    some = {"max_samples": 1}
    assert _told(choosing("t", "c"), out / "all", caplog, **some) == []
    wrong = f"no sample has the field 'x.txt': no input has a value for {name.format('x')!r}"
    assert _told(choosing("t", "x", "c"), out / "one", caplog, **some) == [wrong]
    assert _told(choosing("t", "x", "c"), out / "mixed", caplog, shuffle=0) == [wrong]


def test_fields_of_shards_that_were_kept_are_not_missed(
    tmp_path: Path, caplog, monkeypatch
) -> None:
    (tmp_path / "a.jsonl").write_text('{"t": "x"}\n{"t": "y", "c": "z"}\n')
    source = JsonLines([str(tmp_path)], choice=parse_choice(None, ["t.txt=t", "c.txt=c", "d=d"]))

    def fail(*_: Any) -> None:
        raise WorldError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Destination, "publish_manifest", fail)
        with pytest.raises(WorldError):
            write_shards(source, tmp_path.parent / "out", max_samples=1)
    told = _told(source, tmp_path.parent / "out", caplog, max_samples=1)
    assert told == ["no sample has the field 'd': no input has a value for 'd'"]
