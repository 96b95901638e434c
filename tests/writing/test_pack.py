from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import UsageError, WorldError
from shardloader.format.index import SampleIndex
from shardloader.writing.pack import (
    Entry,
    pack_folder,
    plan_folder,
    plan_pack,
    run_pack,
    scan_folder,
)
from shardloader.writing.writer import ShardWriter

if TYPE_CHECKING:
    from pathlib import Path


def tree(folder: Path, paths: list[str]) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(path.encode())
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


PATHS = st.lists(
    st.text("aAb.é/-_", min_size=1, max_size=8).filter(lambda path: "//" not in path), unique=True
)


@given(PATHS, st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_in_which_files_are_found(paths, rng) -> None:
    entries = [Entry(path, "file", len(path)) for path in paths]
    plan = plan_pack(entries)
    rng.shuffle(entries)
    assert plan_pack(entries) == plan


@given(PATHS)
def test_every_file_is_planned_once_or_skipped_with_a_reason(paths: list[str]) -> None:
    plan = plan_pack(Entry(path, "file", len(path)) for path in paths)
    planned = [file.path for sample in plan.samples for file in sample.files]
    assert sorted(planned + [skipped.path for skipped in plan.skipped]) == sorted(paths)
    assert all(skipped.reason for skipped in plan.skipped)
    keys = [sample.key.encode() for sample in plan.samples]
    assert keys == sorted(set(keys))
    assert plan.total_bytes == sum(map(len, planned))


def test_samples_are_in_the_order_of_their_keys_not_of_their_paths() -> None:
    entries = [Entry(path, "file") for path in ("a-b.txt", "a.txt", "a.jpg", "a/b.txt", "a!.txt")]
    assert [sample.key for sample in plan_pack(entries).samples] == ["a", "a!", "a-b", "a/b"]


def test_what_is_skipped_is_listed_with_its_reason(tmp_path: Path) -> None:
    source = tree(
        tmp_path / "source",
        ["a.txt", "README", ".hidden.txt", ".git/config.txt", "__meta__/x.txt", "a.TXT", "b/c.txt"],
    )
    (source / "link.txt").symlink_to(source / "a.txt")
    (source / "linked").symlink_to(source / "b")
    (source / "empty").mkdir()
    os.mkfifo(source / "pipe.txt")
    (source / os.fsdecode(b"bad\xff.txt")).write_bytes(b"")
    plan = pack_folder(source, tmp_path / "out").plan
    reasons = {
        ".git/": "hidden",
        ".hidden.txt": "hidden",
        "README": "no extension",
        "__meta__/x.txt": "reserved name",
        "a.txt": "'a.TXT' has the same key and field",
        "bad\\xff.txt": "its name can't be a key",
        "empty/": "empty folder",
        "link.txt": "symlink",
        "linked": "symlink",
        "pipe.txt": "special file",
    }
    assert [skipped.path for skipped in plan.skipped] == list(reasons)
    for (_, reason), expected in zip(plan.skipped, reasons.values(), strict=True):
        assert reason.startswith(expected)
    assert [sample.key for sample in plan.samples] == ["a", "b/c"]


def test_the_same_tree_gives_the_same_dataset(tmp_path: Path) -> None:
    paths = [
        f"{folder}{key}.{field}"
        for folder in ("", "x/", "x.y/")
        for key in "abé"
        for field in ("txt", "JPG")
    ]
    packed = []
    for number in range(2):
        random.Random(number).shuffle(paths)
        source = tree(tmp_path / f"source{number}", paths)
        for path in paths:
            os.utime(source / path, (number, number))
            (source / path).chmod(0o600 + number * 0o044)
        pack_folder(source, tmp_path / f"out{number}", max_samples=4)
        packed.append(contents(tmp_path / f"out{number}"))
    assert packed[0] == packed[1]
    assert len(packed[0]) == 3 * 2 + 1


def test_the_members_of_a_key_are_together_and_hold_the_files_bytes(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", ["b.txt", "a/1.seg.png", "b.jpg", "a/1.jpg", "a-b.txt"])
    manifest = pack_folder(source, tmp_path / "out", max_samples=2).manifest
    assert manifest.counts.tolist() == [2, 1]
    data = (tmp_path / "out" / "shard-000000.tar").read_bytes()
    index, notices = SampleIndex.build(data, shard="s")
    assert not notices
    assert [index.key(0), index.key(1)] == ["a-b", "a/1"]
    starts, sizes = index.member_offsets.tolist(), index.member_sizes.tolist()
    found = [data[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    assert found == [b"a-b.txt", b"a/1.jpg", b"a/1.seg.png"]


@pytest.mark.parametrize(
    ("include", "kept"),
    [
        (("*",), ["a.jpg", "a.txt", "x/b.jpg", "x/y/c.jpg"]),
        (("*.txt",), ["a.txt"]),
        (("*.txt", "x/*"), ["a.txt", "x/b.jpg", "x/y/c.jpg"]),
        (("x/?.jpg",), ["x/b.jpg"]),
        (("[ac].jpg",), ["a.jpg", "x/y/c.jpg"]),
    ],
    ids=repr,
)
def test_include_patterns_choose_files(include, kept: list[str]) -> None:
    entries = [Entry(path, "file") for path in ("x/b.jpg", "a.jpg", "a.txt", "x/y/c.jpg")]
    plan = plan_pack(entries, include=include)
    assert sorted(file.path for sample in plan.samples for file in sample.files) == kept
    assert plan.num_not_included == len(entries) - len(kept)
    assert plan.skipped == ()


def test_progress_counts_samples_and_bytes(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", ["a.txt", "a.jpg", "b.txt"])
    calls: list[tuple[int, int]] = []
    packed = pack_folder(source, tmp_path / "out", progress=lambda *step: calls.append(step))
    assert calls == [(1, 10), (1, 5)]
    assert packed.plan.total_bytes == 15


@pytest.mark.parametrize("inside", ["", "out", "deep/er"])
def test_a_destination_in_the_source_is_refused(tmp_path: Path, inside: str) -> None:
    source = tree(tmp_path / "source", ["a.txt"])
    (tmp_path / "link").symlink_to(source)
    for name in ("source", "link", "other/../source"):
        with pytest.raises(UsageError, match="packed into itself"):
            pack_folder(source, tmp_path / name / inside)
    assert [path.name for path in source.iterdir()] == ["a.txt"]


def test_a_source_that_gives_nothing_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", ["README", "a.txt"])
    with pytest.raises(UsageError, match="1 paths skipped, 1 files not included"):
        pack_folder(source, tmp_path / "out", include=("README", "*.jpg"))
    with pytest.raises(UsageError, match="the source is a folder"):
        pack_folder(source / "a.txt", tmp_path / "out")
    with pytest.raises(UsageError, match="list of glob patterns"):
        pack_folder(source, tmp_path / "out", include="*.jpg")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", ["grown", "gone"])
def test_a_file_that_changed_since_the_plan_breaks_the_packing_off(tmp_path: Path, change) -> None:
    source = tree(tmp_path / "source", ["a.txt", "b.txt"])
    plan = plan_pack(scan_folder(source))
    if change == "grown":
        (source / "b.txt").write_bytes(b"longer than before")
    else:
        (source / "b.txt").unlink()
    with pytest.raises(WorldError, match=r"b\.txt"):
        run_pack(plan, source, ShardWriter(tmp_path / "out"))
    assert list((tmp_path / "out").iterdir()) == []


def test_writer_options_are_the_writers(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", ["a.txt", "b.txt"])
    options: dict[str, Any] = {"pattern": "x-%02d.tar", "max_bytes": 2048}
    assert pack_folder(source, tmp_path / "out", **options).manifest.names == (
        "x-00.tar",
        "x-01.tar",
    )
    with pytest.raises(UsageError, match="max_samples"):
        pack_folder(source, tmp_path / "out", max_samples=0)


def test_a_shuffled_plan_holds_the_same_samples_in_an_order_of_its_seed(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number:02d}.txt").write_text(str(number))
    plan = plan_folder(tmp_path, tmp_path.parent / "out")
    one, again, other = plan.shuffled(1), plan.shuffled(1), plan.shuffled(2)
    assert one == again
    assert sorted(one.samples) == sorted(other.samples) == list(plan.samples)
    assert len({plan.samples, one.samples, other.samples}) == 3
    with pytest.raises(UsageError, match="seed must be at least 0"):
        plan.shuffled(-1)
