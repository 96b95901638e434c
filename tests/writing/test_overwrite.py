"""Replacing a dataset: it stays until something can take its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardloader.errors import SampleError, WorldError
from shardloader.reading.source import UNFINISHED_NAME
from shardloader.writing.place import FolderPlace
from shardloader.writing.selection import Selection
from shardloader.writing.write import write_shards
from shardloader.writing.writer import ShardWriter
from tests.writing.inputs import EXPECTED, cut_small, jsonl
from tests.writing.reading_back import read_dataset, visible

if TYPE_CHECKING:
    from pathlib import Path

    from shardloader.writing.sources.base import Source

OLD = [(f"old{number}", {"txt": b"%d" % number}) for number in range(5)]
NOTHING = Selection(patterns=("zzz*",))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    cut_small(monkeypatch)
    (tmp_path / "input").mkdir()
    return jsonl(tmp_path / "input")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with ShardWriter(tmp_path / "out", max_samples=2) as writer:
        for key, fields in OLD:
            writer.write({"__key__": key, **fields})
    return tmp_path / "out"


@pytest.mark.parametrize("options", [{}, {"shuffle": 1}], ids=str)
def test_what_selects_nothing_leaves_the_dataset_that_it_was_to_replace(
    old: Path, source: Source, options: dict[str, Any]
) -> None:
    before = {path.name: path.stat() for path in old.iterdir()}
    with pytest.raises(SampleError, match="none is left to write"):
        write_shards(source, old, overwrite=True, selection=NOTHING, **options)
    after = {path.name: path.stat() for path in old.iterdir()}
    assert {name: each.st_ino for name, each in after.items()} == {
        name: each.st_ino for name, each in before.items()
    }


def fails_after_a_sample(folder: Path, **options: Any) -> None:
    with ShardWriter(folder, overwrite=True, **options) as writer:
        writer.write({"__key__": "new", "txt": "x"})
        raise ZeroDivisionError


def test_a_program_that_fails_before_a_shard_is_full_leaves_what_was_there(old: Path) -> None:
    before = visible(old)
    with pytest.raises(ZeroDivisionError):
        fails_after_a_sample(old)
    assert visible(old) == before
    with pytest.raises(ZeroDivisionError):
        fails_after_a_sample(old, max_samples=1)
    assert [path.name for path in old.glob("shard-*.tar")] == ["shard-000000.tar"]
    assert (old / UNFINISHED_NAME).exists()


def test_a_removal_that_fails_halfway_leaves_no_dataset_and_the_same_write_ends_it(
    old: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, failing = FolderPlace.remove, "shard-000001.tar"

    def refusing(place: FolderPlace, name: str) -> None:
        if name == failing:
            raise WorldError("no")
        remove(place, name)

    with monkeypatch.context() as patch:
        patch.setattr(FolderPlace, "remove", refusing)
        with pytest.raises(WorldError, match="no"):
            write_shards(source, old, overwrite=True)
    assert (old / UNFINISHED_NAME).exists()
    assert not (old / "manifest.json").exists()
    write_shards(source, old, overwrite=True)
    assert read_dataset(old) == EXPECTED


def test_shards_of_a_write_that_was_broken_off_are_no_dataset_and_go_at_once(
    old: Path, source: Source
) -> None:
    (old / "manifest.json").unlink()
    (old / UNFINISHED_NAME).write_bytes(b"")
    with pytest.raises(SampleError, match="none is left to write"):
        write_shards(source, old, overwrite=True, selection=NOTHING)
    assert not list(old.iterdir())
