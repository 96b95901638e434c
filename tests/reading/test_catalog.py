"""What is a dataset, and are its shards those that were indexed?"""

from __future__ import annotations

import errno
import json
import logging
import os
import pickle
from typing import TYPE_CHECKING

import pytest

from shardloader.errors import ManifestError, ShardError, UsageError, WorldError
from shardloader.format.manifest import Manifest
from shardloader.reading import source
from shardloader.reading.catalog import check, open_catalog
from shardloader.reading.indexing import index_dataset
from shardloader.writing.writer import ShardWriter
from tests.shards import write_shard

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        write_shard(tmp_path / "data" / f"{number}.tar", 2 + number)
    return tmp_path / "data"


def test_a_folder_is_indexed_on_first_use_and_remembered(folder):
    catalog = open_catalog(folder)
    assert catalog.manifest.names == ("0.tar", "1.tar", "2.tar")
    assert catalog.manifest.counts.tolist() == [2, 3, 4]
    stored = Manifest.from_json_bytes((folder / "manifest.json").read_bytes(), name="m")
    assert stored.digest == catalog.manifest.digest
    stamps = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert open_catalog(str(folder)).manifest.digest == stored.digest
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == stamps


def test_the_manifest_itself_can_be_named(folder):
    digest = open_catalog(folder).manifest.digest
    assert open_catalog(folder / "manifest.json").manifest.digest == digest
    assert open_catalog(f"file://{folder}").manifest.digest == digest


def test_shards_are_found_in_sub_folders_in_the_order_of_their_bytes(tmp_path):
    for name in ("b.tar", "a/2.tar", "a/10.tar", "B.tar", "é.tar", ".hidden.tar", ".tmp/x.tar"):
        write_shard(tmp_path / name, 1)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "circle").symlink_to(tmp_path)
    assert open_catalog(tmp_path).manifest.names == (
        "B.tar",
        "a/10.tar",
        "a/2.tar",
        "b.tar",
        "é.tar",
    )


def test_a_linked_folder_is_read(tmp_path):
    write_shard(tmp_path / "elsewhere" / "x.tar", 1)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    assert open_catalog(tmp_path / "data").manifest.names == ("link/x.tar",)


def test_a_list_of_shards_is_named_from_the_folder_they_share(tmp_path):
    paths = [tmp_path / "a" / "0.tar", tmp_path / "b" / "0.tar", tmp_path / "b" / "c" / "0.tar"]
    for number, path in enumerate(paths):
        write_shard(path, 1 + number)
    catalog = open_catalog([str(paths[2]), paths[0], paths[1]])
    assert catalog.manifest.names == ("b/c/0.tar", "a/0.tar", "b/0.tar")
    assert catalog.manifest.counts.tolist() == [3, 1, 2]
    assert [catalog.shard_path(n) for n in range(3)] == [str(paths[n]) for n in (2, 0, 1)]
    assert not (tmp_path / "manifest.json").exists()
    assert (tmp_path / "b" / "0.tar.index").exists()
    assert open_catalog(tuple(paths)).manifest.num_samples == 6


@pytest.mark.parametrize(
    "name", ["p#1.tar", "a b.tar", "c%20d.tar", "[x].tar", "u:v.tar", "a?b.tar", "{1,2}.tar"]
)
def test_a_path_in_a_list_is_literal(tmp_path, name):
    write_shard(tmp_path / name, 2)
    assert open_catalog([tmp_path / name]).manifest.names == (name,)
    assert open_catalog(str(tmp_path / name)).manifest.num_samples == 2


def test_a_relative_path_stays_right_when_the_folder_is_changed(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder.parent)
    catalog = open_catalog("data/{0..2}.tar")
    monkeypatch.chdir(tmp_path.parent)
    check(catalog)
    assert catalog.manifest.names == ("0.tar", "1.tar", "2.tar")


def test_patterns_are_joined_in_order(folder):
    catalog = open_catalog(f"{folder}/{{2..1}}.tar::{folder}/0.tar")
    assert catalog.manifest.names == ("2.tar", "1.tar", "0.tar")


def test_indexes_and_manifest_may_live_elsewhere(folder, tmp_path):
    catalog = open_catalog(folder, index_dir=tmp_path / "made" / "here")
    assert sorted(path.name for path in folder.iterdir()) == ["0.tar", "1.tar", "2.tar"]
    names = {path.name for path in (tmp_path / "made" / "here").iterdir()}
    assert names >= {"manifest.json", "0.tar.index"}
    assert catalog.manifest.digest == open_catalog(folder).manifest.digest


def test_a_folder_that_cannot_be_written_to_names_index_dir(folder, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("pathlib.Path.touch", refuse)
    with pytest.raises(UsageError, match="index_dir"):
        open_catalog(folder)


def test_a_read_only_list_whose_indexes_are_there_needs_no_index_dir(folder, monkeypatch):
    paths = [folder / "0.tar", folder / "1.tar"]
    digest = open_catalog(paths).manifest.digest

    def refuse(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("pathlib.Path.touch", refuse)
    assert open_catalog(paths).manifest.digest == digest


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("simplecache::s3://bucket/x.tar", "is a URL"),
        ([], "at least one shard"),
        ("missing", "there is no 'missing'"),
        ("", "is not empty"),
        ([""], "is not empty"),
    ],
)
def test_what_is_no_local_dataset_is_refused_in_words(given, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=words):
        open_catalog(given)


def test_a_shard_twice_is_refused(folder):
    with pytest.raises(UsageError, match=r"0\.tar' twice"):
        open_catalog([folder / "0.tar", folder / "1.tar", folder / "../data/0.tar"])


def test_a_missing_shard_of_a_list_is_named(folder):
    with pytest.raises(WorldError, match=r"9\.tar.*No such file"):
        open_catalog([folder / "0.tar", folder / "9.tar"])


def test_several_missing_shards_are_counted(folder):
    with pytest.raises(WorldError, match=r"8\.tar.*1 more of the shards has errors"):
        open_catalog([folder / "8.tar", folder / "0.tar", folder / "9.tar"])


def test_a_folder_without_shards_says_what_was_looked_for(tmp_path):
    with pytest.raises(UsageError, match=r"\(\.tar, .*has none"):
        open_catalog(tmp_path)
    (tmp_path / "x.tar.xz").touch()
    (tmp_path / "y.tar.bz2").touch()
    with pytest.raises(UsageError, match=r"2 files, such as x\.tar\.xz, .* not read"):
        open_catalog(tmp_path)
    assert not (tmp_path / "manifest.json").exists()


def test_shards_of_kinds_that_are_not_read_are_not_passed_over_in_silence(folder, caplog):
    (folder / "x.txz").touch()
    open_catalog(folder)
    assert "x.txz" in caplog.text


def test_a_shard_that_lies_there_packed_and_unpacked_is_refused(folder):
    (folder / "1.tar.gz").touch()
    with pytest.raises(UsageError, match=r"1\.tar and 1\.tar\.gz, which seem to be one shard"):
        open_catalog(folder)


def test_a_damaged_shard_is_named_and_the_manifest_is_not_made(folder):
    (folder / "1.tar").write_bytes((folder / "1.tar").read_bytes()[:3100])
    with pytest.raises(ShardError, match=r"1\.tar.*truncated"):
        open_catalog(folder)
    assert not (folder / "manifest.json").exists()


def test_a_shard_of_another_size_than_the_manifest_says_is_refused(folder):
    open_catalog(folder)
    before = (folder / "1.tar").stat().st_size
    write_shard(folder / "1.tar", 9)
    after = (folder / "1.tar").stat().st_size
    with pytest.raises(ManifestError, match=rf"1\.tar.*{after}.*{before}.*shardloader index"):
        open_catalog(folder)


def test_a_shard_that_the_manifest_lists_and_that_is_gone_is_named(folder):
    open_catalog(folder)
    (folder / "2.tar").unlink()
    with pytest.raises(ManifestError, match=r"2\.tar.*shardloader index"):
        open_catalog(folder)


def test_shards_that_came_later_are_logged_until_they_are_indexed(folder, caplog):
    open_catalog(folder)
    assert caplog.text == ""
    write_shard(folder / "3.tar", 1)
    assert open_catalog(folder).num_shards == 3
    assert caplog.text.count("3.tar") == 1
    index_dataset(folder)
    assert open_catalog(folder).num_shards == 4


def test_an_edited_manifest_is_refused(folder):
    open_catalog(folder)
    document = json.loads((folder / "manifest.json").read_bytes())
    document["shards"]["samples"][0] += 1
    (folder / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(ManifestError, match="changed or damaged"):
        open_catalog(folder)


def test_a_catalog_can_be_sent_to_another_process(folder):
    catalog = pickle.loads(pickle.dumps(open_catalog(folder)))
    assert catalog.shard_path(1) == str(folder / "1.tar")
    assert catalog.index_path(1) == str(folder / "1.tar.index")
    assert catalog.location == str(folder)


def test_an_empty_shard_is_part_of_a_dataset_and_is_warned_about(folder, caplog):
    (folder / "1.tar").write_bytes(bytes(1024))
    catalog = open_catalog(folder)
    assert catalog.manifest.counts.tolist() == [2, 0, 4]
    assert caplog.text.count("empty_shard") == 1


def test_a_link_to_a_shard_keeps_its_own_name(tmp_path):
    write_shard(tmp_path / "blobs" / "d41d8cd9", 2)
    (tmp_path / "x.tar").symlink_to(tmp_path / "blobs" / "d41d8cd9")
    assert open_catalog([tmp_path / "x.tar"]).manifest.names == ("x.tar",)


def test_names_that_are_no_utf8_are_shards_too(tmp_path):
    write_shard(tmp_path / os.fsdecode(b"\xff.tar"), 2)
    assert open_catalog(tmp_path).manifest.num_samples == 2
    assert open_catalog(tmp_path).manifest.names == ("\udcff.tar",)


def test_large_datasets_are_not_looked_at_shard_by_shard(folder, monkeypatch, caplog):
    open_catalog(folder)
    (folder / "2.tar").unlink()
    monkeypatch.setattr("shardloader.reading.catalog.MAX_CHECKED_SHARDS", 2)
    caplog.set_level(logging.INFO)
    assert open_catalog(folder).num_shards == 3
    assert source.MANIFEST_NAME == "manifest.json"


def test_a_folder_of_datasets_is_not_one_dataset(tmp_path):
    for name in ("train", "val"):
        with ShardWriter(tmp_path / name) as writer:
            writer.write({"__key__": "a", "txt": name})
    with pytest.raises(UsageError, match=r"datasets of their own, .*: train, val: give one"):
        open_catalog(tmp_path)
    assert open_catalog(tmp_path / "train").manifest.num_samples == 1
    assert not (tmp_path / ".shardloader.lock").exists()


def test_what_may_not_index_refuses_and_changes_nothing(tmp_path):
    write_shard(tmp_path / "a.tar", 1)
    before = sorted(tmp_path.iterdir())
    for given in (tmp_path, [tmp_path / "a.tar"]):
        with pytest.raises(UsageError, match="run `shardloader index` first"):
            open_catalog(given, may_index=False)
    assert sorted(tmp_path.iterdir()) == before
    open_catalog(tmp_path)
    for given in (tmp_path, [tmp_path / "a.tar"]):
        assert open_catalog(given, may_index=False).manifest.num_samples == 1


def test_a_folder_in_a_list_of_shards_is_told_from_a_shard(tmp_path):
    write_shard(tmp_path / "one" / "a.tar", 2)
    with pytest.raises(UsageError, match="one is a folder, a dataset of its own"):
        open_catalog([tmp_path / "one"])


def test_what_a_star_stands_for_is_the_callers_to_find(tmp_path):
    with pytest.raises(UsageError, match=r"sorted\(glob\.glob\(\.\.\.\)\)"):
        open_catalog(f"{tmp_path}/*.tar")


def test_a_shard_that_is_a_link_in_a_circle_is_named(tmp_path):
    write_shard(tmp_path / "0.tar", 3)
    (tmp_path / "1.tar").symlink_to("1.tar")
    with pytest.raises(WorldError, match=r"1\.tar: the file can't be read: Too many levels"):
        open_catalog(tmp_path)
    assert open_catalog(tmp_path, keep_damaged=True).manifest.counts.tolist() == [3, 0]


def test_a_folder_that_can_not_be_listed_is_named_and_no_matter_where_there_is_a_manifest(
    tmp_path, monkeypatch, caplog
):
    write_shard(tmp_path / "0.tar", 3)
    (tmp_path / "lost+found").mkdir()
    real = os.scandir

    def scandir(path):
        if str(path).endswith("lost+found"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scandir)
        with pytest.raises(WorldError, match=r"lost\+found: the folder can't be read: Permission"):
            open_catalog(tmp_path)
    made = open_catalog(tmp_path).manifest
    monkeypatch.setattr(os, "scandir", scandir)
    with caplog.at_level(logging.WARNING, logger="shardloader"):
        assert open_catalog(tmp_path).manifest.digest == made.digest
    assert "lost+found: the folder can't be read" in caplog.text


@pytest.mark.parametrize("keep_damaged", [False, True])
def test_a_list_of_which_no_shard_is_there_is_an_error_and_no_folder(tmp_path, keep_damaged):
    paths = [tmp_path / "mount" / f"{number}.tar" for number in range(3)]
    with pytest.raises(WorldError, match=r"0\.tar: No such file.*none of the 3 .*mounted"):
        open_catalog(paths, keep_damaged=keep_damaged)
    assert list(tmp_path.iterdir()) == []
