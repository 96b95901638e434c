"""A destination among its own source, and folders in which a write would destroy something."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from shardloader.errors import SampleError, UsageError
from shardloader.writing.foretell import foretell
from shardloader.writing.job import make_job
from shardloader.writing.selection import parse_keys
from shardloader.writing.sources.opening import open_source
from shardloader.writing.write import run, write_shards
from shardloader.writing.writer import ShardWriter
from tests.writing.reading_back import read_dataset, visible

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    with ShardWriter(tmp_path / "corpus", max_samples=4) as writer:
        for number in range(10):
            writer.write({"__key__": f"{number:03d}", "cls": number})
    return tmp_path / "corpus"


@pytest.mark.parametrize("mode", ["new", "overwrite", "append"])
@pytest.mark.parametrize("form", ["folder", "link", "shards", "pattern", "linked shard", "above"])
def test_shards_are_never_written_over_themselves(corpus: Path, mode: str, form: str) -> None:
    place = corpus.parent
    (place / "link").symlink_to("corpus")
    (place / "linked.tar").symlink_to("corpus/shard-000001.tar")
    words = {
        "folder": [str(corpus)],
        "link": [str(place / "link")],
        "shards": [str(corpus / "shard-000001.tar")],
        "pattern": [str(corpus / "shard-{000000..000002}.tar")],
        "linked shard": [str(place / "linked.tar")],
        "above": [str(place)],
    }[form]
    before = visible(corpus)
    overwrite, append = mode == "overwrite", mode == "append"
    job = make_job(open_source(words, kind="tar"), corpus, overwrite=overwrite, append=append)
    for act in (foretell, run):
        with pytest.raises(UsageError, match="destination"):
            act(job)
    assert visible(corpus) == before


def test_a_folder_of_rows_does_not_take_the_shards_made_of_it(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match="lies in the source"):
        write_shards(str(tmp_path), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
    write_shards(str(tmp_path / "rows.jsonl"), tmp_path)  # a file beside them is no obstacle
    assert len(read_dataset(tmp_path)) == 1


def test_shards_below_a_destination_are_a_source_as_any_other(corpus: Path) -> None:
    write_shards(str(corpus), corpus.parent)
    assert read_dataset(corpus.parent) == read_dataset(corpus)


@pytest.mark.parametrize("data", [b"{}", b"", b"\xff", b'{"name": "a web site"}'])
def test_overwriting_never_removes_a_manifest_that_no_writer_made(tmp_path, data: bytes) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_bytes(data)
    job = make_job(open_source([str(tmp_path / "rows.jsonl")]), tmp_path / "out", overwrite=True)
    for act in (foretell, run):
        with pytest.raises(UsageError, match=r"manifest\.json is no dataset's"):
            act(job)
    assert visible(tmp_path / "out") == {"manifest.json": data}


def test_a_damaged_manifest_of_a_dataset_is_overwritten(corpus: Path) -> None:
    manifest = corpus / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-40])
    (corpus.parent / "rows.jsonl").write_text('{"a": 1}\n')
    write_shards(str(corpus.parent / "rows.jsonl"), corpus, overwrite=True)
    assert len(read_dataset(corpus)) == 1


def test_appending_to_nothing_makes_no_folder(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match="append=True adds to a finished dataset"):
        write_shards(str(tmp_path / "rows.jsonl"), tmp_path / "a" / "out", append=True)
    assert not (tmp_path / "a").exists()


def test_a_destination_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a destination is a folder"):
        ShardWriter("")
    with pytest.raises(UsageError, match="a destination is a folder"):
        write_shards(str(tmp_path), "")


def test_a_key_that_comes_again_is_told_with_the_shard_it_is_in(corpus: Path) -> None:
    again = corpus.parent / "again.tar"
    again.write_bytes((corpus / "shard-000001.tar").read_bytes())
    words = [str(corpus), str(again)]
    with pytest.raises(SampleError, match=r"'004' was written before.*/again\.tar\)"):
        write_shards(words, corpus.parent / "out")
    write_shards(words, corpus.parent / "left", on_error="skip")
    told = (corpus.parent / "left" / "refused.jsonl").read_text().splitlines()
    assert [json.loads(line)["where"] for line in told] == [str(again)] * 4


def test_a_list_of_keys_is_read_as_editors_leave_it() -> None:
    assert parse_keys("\ufeffa\r\nb\u2028c\n\nd".encode(), name="keys") == {"a", "b\u2028c", "d"}
    with pytest.raises(UsageError, match="keys: a list of keys is UTF-8"):
        parse_keys(b"\xff", name="keys")
