"""`shardloader info`: what a dataset holds, as far as that is known, and nothing changed."""

from __future__ import annotations

import errno
import gzip
from pathlib import Path

import pytest

import shardloader as sl
from shardloader.reading.cache import Cache
from shardloader.reading.catalog import open_catalog
from shardloader.reading.indexing import index_dataset
from tests.cli.workplace import make_corpus
from tests.packing import zstd_frame
from tests.shards import tar_bytes, write_shard


def test_it_tells_what_manifest_and_indexes_say(place, run):
    make_corpus(place / "corpus", shards=3, samples=10)
    write_shard(place / "corpus" / "shard-900.tar", 4)
    manifest, _ = index_dataset(place / "corpus")
    told = run("info", "corpus", "--json").json
    assert (told["shards"], told["samples"], told["indexes"]) == (4, 34, 4)
    assert told["bytes"] == int(manifest.sizes.sum())
    assert told["digest"] == manifest.digest
    assert told["samples_a_shard"] == {"least": 4, "median": 10, "most": 10}
    assert told["looked_into"] == {"indexes": 4, "samples": 34}
    assert told["fields"] == [
        {"field": "cls", "samples": 34, "bytes": {"least": 1, "mean": 1.0, "most": 1}},
        {"field": "txt", "samples": 34, "bytes": {"least": 20, "mean": 20.0, "most": 20}},
    ]
    assert told["example_keys"] == ["000000", "000001", "000002"]
    assert "fields, from the first 4 indexes (34 samples)" in run("info", "corpus").out


def test_without_indexes_it_says_so_and_makes_none(place, run):
    make_corpus(place / "corpus")
    before = sorted((place / "corpus").iterdir())
    ended = run("info", "corpus")
    assert ended.code == 0
    assert "not known before `shardloader index`" in ended.out
    assert "0 of 4 present" in ended.out
    assert sorted((place / "corpus").iterdir()) == before
    told = run("info", "corpus", "--json").json
    assert (told["samples"], told["digest"], told["manifest"]) == (None, None, None)
    assert told["bytes"] > 0


def test_shards_that_are_indexed_need_no_manifest(place, run):
    make_corpus(place / "corpus")
    manifest, _ = index_dataset(place / "corpus")
    (place / "corpus" / "manifest.json").unlink()
    told = run("info", "corpus", "--json").json
    assert (told["digest"], told["manifest"]) == (manifest.digest, None)
    listed = run("info", *sorted((place / "corpus").glob("*.tar")), "--json").json
    assert listed["digest"] == manifest.digest


def test_a_shard_that_is_gone_or_changed_is_exit_code_1(place, run):
    make_corpus(place / "corpus")
    index_dataset(place / "corpus")
    shard = place / "corpus" / "shard-002.tar"
    content = shard.read_bytes()
    shard.unlink()
    assert run("info", "corpus").code == 1
    shard.write_bytes(content + bytes(512))
    ended = run("info", "corpus")
    assert ended.code == 1
    assert "shard-002.tar" in ended.err
    assert "samples          200" in ended.out  # what is known is told all the same
    (place / "corpus" / "manifest.json").unlink()
    assert run("info", "corpus").code == 1


def test_a_broken_index_is_exit_code_1(place, run):
    make_corpus(place / "corpus")
    index_dataset(place / "corpus")
    (place / "corpus" / "shard-000.tar.index").write_bytes(b"nonsense")
    ended = run("info", "corpus")
    assert ended.code == 1
    assert "shard-000.tar.index" in ended.err


def test_keys_are_shown_as_text_that_can_be_printed(place, run):
    (place / "corpus").mkdir()
    name = b"\xff\n.txt".decode("utf-8", "surrogateescape")
    (place / "corpus" / "a.tar").write_bytes(tar_bytes([(name, b"")]))
    index_dataset(place / "corpus")
    assert "\\udcff\\n" in run("info", "corpus").out
    assert run("info", "corpus", "--json").json["example_keys"] == ["\udcff\n"]


def test_an_empty_shard_is_a_dataset_of_no_samples(place, run):
    (place / "corpus").mkdir()
    (place / "corpus" / "a.tar").write_bytes(tar_bytes([]))
    index_dataset(place / "corpus")
    ended = run("info", "corpus")
    assert ended.code == 0
    told = run("info", "corpus", "--json").json
    assert (told["samples"], told["fields"], told["example_keys"]) == (0, [], [])
    assert run("plan", "corpus", "--batch-size", "4").code == 0


def test_a_shard_that_was_indexed_up_to_its_damage_is_named(place, run):
    make_corpus(place / "corpus", shards=3, samples=10)
    shard = place / "corpus" / "shard-001.tar"
    shard.write_bytes(shard.read_bytes()[: 2 * 2048 + 1024 + 200])
    open_catalog(place / "corpus", keep_damaged=True)
    ended = run("info", "corpus")
    assert ended.code == 0
    assert (
        "1 shard, indexed for on_error='skip' up to the damage: shard-001.tar (trunc" in ended.out
    )
    (damaged,) = run("info", "corpus", "--json").json["damaged"]
    assert (damaged["shard"], damaged["kind"]) == ("shard-001.tar", "truncated")
    (place / "corpus" / "manifest.json").unlink()
    assert run("info", "corpus", "--json").json["damaged"] == [damaged]
    assert run("plan", "corpus", "--batch-size", "2", "--world-size", "1").code == 2
    assert run("index", "corpus").code == 1


def test_a_shard_of_a_list_that_was_not_there_is_named(place, run):
    make_corpus(place / "corpus", shards=2, samples=10)
    (place / "corpus" / "shard-000.tar").unlink()
    shards = [f"corpus/shard-00{number}.tar" for number in range(2)]
    open_catalog([place / shard for shard in shards], keep_damaged=True)
    told = run("info", *shards, "--json").json
    (damaged,) = told["damaged"]
    assert (damaged["shard"], damaged["kind"]) == ("shard-000.tar", "unreadable")
    assert told["samples"] == 10
    write_shard(place / "corpus" / "shard-000.tar", 4)
    assert run("info", *shards, "--json").code == 0


def test_the_sizes_of_shards_and_what_they_are_packed_in_are_told(place, run):
    make_corpus(place / "corpus")
    first, second, *_ = sorted((place / "corpus").glob("*.tar"))
    first.write_bytes(gzip.compress(first.read_bytes(), mtime=0))
    second.write_bytes(zstd_frame(second.read_bytes()))
    index_dataset(place / "corpus", cache=Cache(place / "cache"))
    found = run("info", "corpus", "--json").json
    assert found["compression"] == {"gzip": 1, "none": 2, "zstd": 1}
    sizes = [path.stat().st_size for path in (place / "corpus").glob("*.tar")]
    assert found["bytes_a_shard"]["least"] == min(sizes)
    assert found["bytes_a_shard"]["most"] == max(sizes)
    told = run("info", "corpus").out
    assert "compression      gzip (1 shard), none (2 shards), zstd (1 shard)" in told


def broken_off(folder, num_samples):
    writer = sl.ShardWriter(folder, max_samples=2)
    for number in range(num_samples):
        writer.write({"__key__": str(number), "txt": "a"})
    writer.abort()


@pytest.mark.parametrize(
    "words", [["info"], ["verify"], ["index"], ["show"], ["plan", "--batch-size", "1"]], ids=repr
)
def test_a_folder_whose_writer_was_broken_off_before_a_shard_is_told_as_such(words, place, run):
    (place / "corpus").mkdir()
    (place / "corpus" / ".shardloader-unfinished").touch()  # what a kill leaves
    ended = run(*words, "corpus")
    assert ended.code == 2
    assert "a writer was broken off here" in ended.err


def test_a_folder_whose_writer_was_broken_off_says_so_beside_what_is_there(place, run):
    broken_off(place / "corpus", 5)
    ended = run("info", "corpus")
    assert ended.code == 0
    assert "unfinished       a writer was broken off here, or still writes" in ended.out
    assert run("info", "corpus", "--json").json["unfinished"]
    assert run("plan", "corpus", "--batch-size", "1").code == 2
    assert "a writer was broken off here" in run("plan", "corpus", "--batch-size", "1").err


@pytest.mark.parametrize("name", ["manifest.json", "shard-000.tar.index"])
def test_a_file_that_may_not_be_read_is_named_with_what_to_do(name, place, run, monkeypatch):
    make_corpus(place / "corpus")
    index_dataset(place / "corpus")

    def opened(path, *args, **options):
        if path.name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open(path, *args, **options)  # noqa: PTH123 - what is put in its place

    monkeypatch.setattr(Path, "open", opened)
    ended = run("info", "corpus")
    assert ended.code == 1
    assert f"{name}: the file can't be read: Permission denied: let this user read it" in ended.err
