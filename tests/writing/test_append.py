"""Adding to a dataset: what was there stays, under its own digest, and what is new is whole."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from shardloader.errors import UsageError, WorldError
from shardloader.format.manifest import Manifest
from shardloader.reading.catalog import open_catalog
from shardloader.reading.source import UNFINISHED_NAME
from shardloader.writing.destination import Destination
from shardloader.writing.write import write_shards
from shardloader.writing.writer import ShardWriter
from tests.shards import write_shard
from tests.writing.inputs import EXPECTED, cut_small, jsonl, shards
from tests.writing.reading_back import manifest_of, read_dataset, visible
from tests.writing.test_kills import ended, in_a_child, killed_write

if TYPE_CHECKING:
    from pathlib import Path

    from shardloader.writing.sources.base import Source


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    cut_small(monkeypatch)
    (tmp_path / "input").mkdir()
    return jsonl(tmp_path / "input")


def begin(folder: Path, count: int = 5) -> Manifest:
    with ShardWriter(folder, max_samples=2) as writer:
        for number in range(count):
            writer.write({"__key__": f"old{number}", "txt": str(number)})
    return writer.manifest


def test_appending_adds_shards_behind_those_that_are_there(tmp_path: Path, source: Source) -> None:
    old = begin(tmp_path / "out")
    before = visible(tmp_path / "out")
    written = write_shards(source, tmp_path / "out", max_samples=25, append=True)
    assert written.manifest.names[:3] == old.names
    assert written.manifest.names[3:] == tuple(f"shard-{n:06d}.tar" for n in (3, 4, 5))
    assert read_dataset(tmp_path / "out")[5:] == EXPECTED
    after = visible(tmp_path / "out")
    del before["manifest.json"]
    assert after.items() >= before.items()
    kept = after[f"manifest-{old.digest}.json"]
    assert Manifest.from_json_bytes(kept, name="kept").digest == old.digest
    assert open_catalog(tmp_path / "out").manifest.digest == written.manifest.digest


def test_every_earlier_state_stays_readable(tmp_path: Path) -> None:
    digests = [begin(tmp_path / "out").digest]
    for round_ in range(3):
        with ShardWriter(tmp_path / "out", append=True) as writer:
            writer.write({"__key__": f"new{round_}", "txt": "x"})
        digests.append(writer.manifest.digest)
    assert len(set(digests)) == 4
    for number, digest in enumerate(digests[:-1]):
        path = tmp_path / "out" / f"manifest-{digest}.json"
        kept = Manifest.from_json_bytes(path.read_bytes(), name=path.name)
        assert (kept.digest, kept.num_shards) == (digest, 3 + number)
    assert manifest_of(tmp_path / "out").digest == digests[-1]


def test_appending_by_one_writer_or_another_gives_the_same(tmp_path: Path, source: Source) -> None:
    for name in ("one", "two"):
        begin(tmp_path / name)
    write_shards(source, tmp_path / "one", max_samples=25, append=True)
    write_shards(source, tmp_path / "two", max_samples=25, append=True, workers=2)
    assert visible(tmp_path / "one") == visible(tmp_path / "two")


@pytest.mark.parametrize("packed", [False, True])
def test_a_dataset_of_plain_and_packed_shards_has_each_number_once(
    tmp_path: Path, source: Source, packed: bool
) -> None:
    kinds: list[Any] = ["zstd", None] if packed else [None, "zstd"]
    for kind in kinds:
        with ShardWriter(tmp_path / "out", append=kind != kinds[0], compression=kind) as writer:
            writer.write({"__key__": f"{kind}", "txt": "x"})
    write_shards(source, tmp_path / "out", append=True, compression="zstd")
    names = open_catalog(tmp_path / "out").manifest.names
    assert [name.partition(".")[0] for name in names] == [f"shard-{n:06d}" for n in range(3)]
    assert read_dataset(tmp_path / "out")[2:] == EXPECTED


def test_appending_nothing_leaves_the_dataset_what_it_is(tmp_path: Path) -> None:
    old = begin(tmp_path / "out")
    with ShardWriter(tmp_path / "out", append=True):
        pass
    assert manifest_of(tmp_path / "out").digest == old.digest
    assert not list((tmp_path / "out").glob("manifest-*.json"))


def test_killed_at_any_step_the_old_dataset_is_there_and_the_same_write_finishes(
    tmp_path: Path, source: Source
) -> None:
    begin(tmp_path / "whole")
    write_shards(source, tmp_path / "whole", max_samples=30, append=True)
    whole = visible(tmp_path / "whole")
    for step in range(1, 1000, 2):
        folder = tmp_path / f"out{step}"
        old = begin(folder)
        work = partial(killed_write, step, source, folder, max_samples=30, append=True)
        code = ended(in_a_child(work))
        now = manifest_of(folder)
        assert now.digest in {old.digest, manifest_of(tmp_path / "whole").digest}
        if now.digest == old.digest or (folder / ".shardloader-unfinished").exists():
            write_shards(source, folder, max_samples=30, append=True)
        (folder / ".shardloader-writer.lock").unlink(missing_ok=True)
        assert visible(folder) == whole
        if code == 0:
            break
    assert step > 20


def test_an_append_that_is_given_up_does_not_cost_the_dataset(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    old = begin(folder)
    publish = Destination.publish_manifest

    def failing(destination: Destination, manifest: Manifest) -> None:
        raise WorldError("the disk is full")

    monkeypatch.setattr(Destination, "publish_manifest", failing)
    with pytest.raises(WorldError):
        write_shards(source, folder, max_samples=30, append=True)
    monkeypatch.setattr(Destination, "publish_manifest", publish)
    with pytest.raises(
        UsageError, match=r"remove 'shard-000003\.tar', 'shard-000004\.tar'"
    ) as told:
        write_shards(source, folder, max_samples=40, append=True)
    assert "overwrite=True" not in str(told.value)
    for path in [*folder.glob("shard-00000[34]*"), folder / UNFINISHED_NAME]:
        path.unlink()
    assert open_catalog(folder).manifest.digest == old.digest
    written = write_shards(source, folder, max_samples=40, append=True)
    assert written.manifest.num_samples == old.num_samples + len(EXPECTED)


def test_appending_wants_a_finished_dataset(tmp_path: Path, source: Source) -> None:
    with pytest.raises(UsageError, match=r"there is no manifest\.json"):
        write_shards(source, tmp_path / "new", append=True)
    begin(tmp_path / "out")
    write_shard(tmp_path / "out" / "shard-000009.tar", 3)
    with pytest.raises(UsageError, match="not in the manifest"):
        write_shards(source, tmp_path / "out", append=True)


def test_shards_of_others_can_be_appended_to(tmp_path: Path, source: Source) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    shards(folder)
    old = open_catalog(folder).manifest
    written = write_shards(source, folder, append=True)
    assert written.manifest.names[: old.num_shards] == old.names
    assert read_dataset(folder) == EXPECTED + EXPECTED


def test_the_same_append_is_done_once(tmp_path: Path, source: Source) -> None:
    folder = tmp_path / "out"
    begin(folder)
    first = write_shards(source, folder, max_samples=30, append=True)
    whole = visible(folder)
    again = write_shards(source, folder, max_samples=30, append=True)
    assert (again.was_done, again.shards) == (True, ())
    assert again.manifest.digest == first.manifest.digest
    assert visible(folder) == whole
    other = write_shards(source, folder, max_samples=29, append=True)
    assert not other.was_done
    assert write_shards(source, folder, max_samples=30, append=True).was_done
    (folder / ".shardloader-appended").unlink()
    assert not write_shards(source, folder, max_samples=30, append=True).was_done
