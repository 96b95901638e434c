from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import UsageError, WorldError
from shardloader.format.index import SampleIndex
from shardloader.format.samples import split_name
from shardloader.writing.sources.files import find_files
from shardloader.writing.sources.folder_tree import FolderTree, TreeSample, arrange
from shardloader.writing.sources.mapping import parse_choice
from shardloader.writing.sources.trees import Entry
from shardloader.writing.write import write_shards
from tests.writing.reading_back import read_dataset


def tree(folder: Path, paths: list[str]) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(path.encode())
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def samples_of(source: FolderTree) -> list[TreeSample]:
    return [sample for part in source.parts() for sample in part.what]


def everything(path: str) -> bool:
    return True


NAMES = st.lists(st.text("aAb.é-_!0", min_size=1, max_size=6), unique=True)


def entries_of(names: list[str]) -> list[Entry]:
    return [Entry(name, "file", len(name)) for name in names]


@given(NAMES, st.randoms(use_true_random=False))
def test_a_folder_is_arranged_alike_in_whatever_order_it_is_listed(names, rng) -> None:
    entries = entries_of(names)
    arranged = arrange("", entries, included=everything)
    rng.shuffle(entries)
    assert arrange("", entries, included=everything) == arranged


@given(NAMES)
def test_every_file_becomes_a_field_once_or_is_skipped_with_a_reason(names: list[str]) -> None:
    arranged = arrange("", entries_of(names), included=everything)
    samples = [sample for _, sample in arranged.places if sample is not None]
    planned = [file.path for sample in samples for file in sample.files]
    assert sorted(planned + [skipped.path for skipped in arranged.skipped]) == sorted(names)
    assert all(skipped.reason for skipped in arranged.skipped)


@given(
    st.lists(
        st.tuples(
            st.lists(st.text("ab.-!0é", min_size=1, max_size=3), max_size=3),
            st.sampled_from(["a", "b", "a-", "a!", "ab", "a0"]),
        ),
        max_size=12,
    )
)
def test_the_walk_gives_all_keys_in_byte_order(tmp_path_factory, found) -> None:
    root = tmp_path_factory.mktemp("tree")
    paths = set()
    for folders, name in found:
        parts = [part for part in folders if not part.startswith(".")]
        path = "/".join([*parts, f"{name}.txt"])
        try:
            tree(root, [path])
            paths.add(path)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            pass
    paths.add("z.txt")
    tree(root, ["z.txt"])
    expected = sorted(split_name(path)[0].encode() for path in paths if split_name(path))  # type: ignore[index]
    assert [sample.key.encode() for sample in samples_of(FolderTree(root))] == expected


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
    survey = write_shards(source, tmp_path / "out").survey
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
    assert [skipped.path for skipped in survey.skipped] == list(reasons)
    for (_, reason), expected in zip(survey.skipped, reasons.values(), strict=True):
        assert reason.startswith(expected)
    assert [sample.key for sample in samples_of(FolderTree(source))] == ["a", "b/c"]


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
        write_shards(source, tmp_path / f"out{number}", max_samples=4)
        packed.append(contents(tmp_path / f"out{number}"))
    assert packed[0] == packed[1]
    assert len(packed[0]) == 3 * 2 + 1


def test_the_members_of_a_key_are_together_and_hold_the_files_bytes(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", ["b.txt", "a/1.seg.png", "b.jpg", "a/1.jpg", "a-b.txt"])
    manifest = write_shards(source, tmp_path / "out", max_samples=2).manifest
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
def test_include_patterns_choose_files(tmp_path: Path, include, kept: list[str]) -> None:
    tree(tmp_path, ["x/b.jpg", "a.jpg", "a.txt", "x/y/c.jpg"])
    source = FolderTree(tmp_path, include=include)
    assert sorted(file.path for sample in samples_of(source) for file in sample.files) == kept
    survey = source.survey()
    assert survey.num_not_included == 4 - len(kept)
    assert survey.skipped == []


@pytest.mark.parametrize("inside", ["", "out", "deep/er"])
def test_a_destination_in_the_source_is_refused(tmp_path: Path, inside: str) -> None:
    source = tree(tmp_path / "source", ["a.txt"])
    (tmp_path / "link").symlink_to(source)
    for name in ("source", "link", "other/../source"):
        with pytest.raises(UsageError, match="packed into itself"):
            write_shards(source, tmp_path / name / inside)
    assert [path.name for path in source.iterdir()] == ["a.txt"]


def test_a_source_that_gives_nothing_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", ["README", "a.txt"])
    with pytest.raises(UsageError, match="1 paths skipped, 1 files not included"):
        write_shards(FolderTree(source, include=("README", "*.jpg")), tmp_path / "out")
    with pytest.raises(UsageError, match="the source is a folder"):
        write_shards(FolderTree(source / "a.txt"), tmp_path / "out")
    with pytest.raises(UsageError, match="list of glob patterns"):
        FolderTree(source, include="*.jpg")
    assert not (tmp_path / "out").exists()


class ChangedMeanwhile(FolderTree):
    """A tree in which a file changes once it has been listed."""

    def __init__(self, folder: Path, change: str) -> None:
        super().__init__(folder)
        self.change = change

    def parts(self):
        yield from list(super().parts())

    def read(self, part, *, outline=False):
        (folder,) = self.places
        changed = folder / "b.txt"
        if self.change == "grown":
            changed.write_bytes(b"longer than before")
        else:
            changed.unlink()
        return super().read(part, outline=outline)


@pytest.mark.parametrize("change", ["grown", "gone"])
def test_a_file_that_changed_since_it_was_listed_breaks_the_write_off(tmp_path, change) -> None:
    source = tree(tmp_path / "source", ["a.txt", "b.txt"])
    with pytest.raises(WorldError, match=r"b\.txt"):
        write_shards(ChangedMeanwhile(source, change), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_writer_options_are_the_writers(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", ["a.txt", "b.txt"])
    options: dict[str, Any] = {"pattern": "x-%02d.tar", "max_bytes": 2048}
    written = write_shards(source, tmp_path / "out", **options)
    assert written.manifest.names == ("x-00.tar", "x-01.tar")
    with pytest.raises(UsageError, match="max_samples"):
        write_shards(source, tmp_path / "out", max_samples=0)


def test_fields_are_chosen_and_renamed(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", ["a.txt", "a.jpg", "b.txt", "b.seg.png", "c.txt"])
    choice = parse_choice(None, ["caption.txt=txt", "mask.png=seg.png"])
    write_shards(FolderTree(source, choice=choice), tmp_path / "out")
    assert read_dataset(tmp_path / "out") == [
        ("a", {"caption.txt": b"a.txt"}),
        ("b", {"caption.txt": b"b.txt", "mask.png": b"b.seg.png"}),
        ("c", {"caption.txt": b"c.txt"}),
    ]


def test_a_chosen_field_that_no_file_is_of_is_wrong_use_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    source = tree(tmp_path / "source", ["cat/a.jpg", "cat/b.jpeg", "dog/a.jpg"])
    typo = parse_choice(None, ["jgp", "jpg"])
    with pytest.raises(UsageError, match=r"none below .* has 'jgp'; they have \['jpeg', 'jpg'\]"):
        write_shards(FolderTree(source, choice=typo), tmp_path / "out")
    with pytest.raises(UsageError, match=r"has 'jgp'; they have \['cls', 'jpeg', 'jpg'\]"):
        write_shards(FolderTree(source, choice=typo, classes="by name"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    some = FolderTree(source, choice=parse_choice(None, ["jpeg", "cls"]), classes="by name")
    write_shards(some, tmp_path / "out")
    assert [sorted(fields) for _, fields in read_dataset(tmp_path / "out")] == [
        ["cls"],
        ["cls", "jpeg"],
        ["cls"],
    ]


def test_class_folders_are_numbered_in_byte_order_and_told_beside_the_manifest(tmp_path) -> None:
    paths = ["dog/1.jpg", "cat/1.jpg", "cat/deep/2.jpg", "Zebra/1.jpg", "loose.jpg", "cat/1.cls"]
    source = tree(tmp_path / "source", paths)
    (source / "empty").mkdir()  # has a number, as torchvision's ImageFolder gives it
    written = write_shards(FolderTree(source, classes="by name"), tmp_path / "out")
    classes = {"Zebra": 0, "cat": 1, "dog": 2, "empty": 3}
    assert json.loads((tmp_path / "out" / "classes.json").read_bytes()) == classes
    assert [(key, fields["cls"]) for key, fields in read_dataset(tmp_path / "out")] == [
        ("Zebra/1", b"0"),
        ("cat/1", b"1"),
        ("cat/deep/2", b"1"),
        ("dog/1", b"2"),
    ]
    assert [(skipped.path, skipped.reason) for skipped in written.survey.skipped] == [
        ("cat/1.cls", "the class is the folder's"),
        ("empty/", "empty folder"),
        ("loose.jpg", "in no class folder"),
    ]


def test_a_class_map_that_is_given_numbers_the_folders(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", ["dog/1.jpg", "cat/1.jpg", "cow/1.jpg"])
    numbered = FolderTree(source, classes={"dog": 7, "cat": 3})
    written = write_shards(numbered, tmp_path / "out")
    labels = [(key, fields["cls"]) for key, fields in read_dataset(tmp_path / "out")]
    assert labels == [("cat/1", b"3"), ("dog/1", b"7")]
    assert [skipped.path for skipped in written.survey.skipped] == ["cow/"]


def test_the_class_is_the_folders_and_no_other_file_takes_its_field(tmp_path: Path) -> None:
    folder = tree(tmp_path / "in", ["cat/1.jpg", "cat/1.id"])
    with pytest.raises(UsageError, match="the folder's number"):
        FolderTree(folder, classes="by name", choice=parse_choice(None, ["jpg", "cls=id"]))
    source = FolderTree(folder, classes="by name", choice=parse_choice(None, ["jpg", "cls"]))
    write_shards(source, tmp_path / "out")
    assert read_dataset(tmp_path / "out") == [("cat/1", {"cls": b"0", "jpg": b"cat/1.jpg"})]


def test_appending_class_folders_with_other_numbers_is_refused(tmp_path: Path) -> None:
    one = tree(tmp_path / "one", ["cat/1.jpg", "dog/1.jpg"])
    two = tree(tmp_path / "two", ["ant/1.jpg", "dog/2.jpg"])
    write_shards(FolderTree(one, classes="by name"), tmp_path / "out")
    with pytest.raises(UsageError, match="class_map="):
        write_shards(FolderTree(two, classes="by name"), tmp_path / "out", append=True)
    numbers = {"cat": 0, "dog": 1}
    write_shards(FolderTree(two, classes=numbers), tmp_path / "out", append=True)
    assert dict(read_dataset(tmp_path / "out"))["dog/2"]["cls"] == b"1"


def test_the_walk_holds_one_folder_at_a_time(tmp_path: Path) -> None:
    tree(tmp_path, [f"{number:02d}/{name}.txt" for number in range(20) for name in "ab"])
    listed: list[str] = []

    class Watched(FolderTree):
        def _arranged(self, prefix):
            listed.append(prefix)
            return super()._arranged(prefix)

    walk = Watched(tmp_path)._walk()
    for _ in range(5):
        next(walk)
    assert listed[-1] < "03"


WRITE = """
import sys
from shardloader.writing.write import write_shards
for source, folder in (sys.argv[1:3], sys.argv[3:5]):
    write_shards(source, folder)
"""


def test_a_name_is_utf8_in_any_locale(tmp_path: Path) -> None:
    (tmp_path / "in" / "é").mkdir(parents=True)
    (tmp_path / "in" / "é" / "猫.txt").write_bytes(b"a cat")
    (tmp_path / "ü.jsonl").write_bytes(b'{"a": 1}\n')
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", WRITE, "in", "tree", "ü.jsonl", "rows"],
        env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": root},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert read_dataset(tmp_path / "tree") == [("é/猫", {"txt": b"a cat"})]
    assert read_dataset(tmp_path / "rows") == [("ü/000000000", {"json": b'{"a": 1}'})]


def keys_and_names(url: str, options: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The samples of a folder of a store, and its files where each is opened."""
    source = FolderTree(url, storage_options=options)
    assert not source.survey().skipped
    return [each.key for each in samples_of(source)], [
        each.name for each in find_files([url], options)
    ]


def test_an_empty_file_that_stands_for_a_folder_on_a_store_is_none(s3: Any) -> None:
    """A store may have a file and files below its name."""
    s3.put("folder-marks")
    for name in ("train.v1", "train.v1/a.txt", "rows.parquet", "rows.parquet/0.parquet"):
        s3.put("folder-marks", f"in/{name}", b"x" if "/" in name else b"")
    s3.put("folder-marks", "in/empty.txt")
    keys, names = keys_and_names("s3://folder-marks/in", s3.options())
    assert keys == ["empty", "rows.parquet/0", "train.v1/a"]
    assert names == ["empty.txt", "rows.parquet/0.parquet", "train.v1/a.txt"]


def test_a_folder_that_is_marked_as_azures_tools_do_is_read_once(azurite: Any) -> None:
    """Its file system lists such a folder twice."""
    azurite.put("folder-marks")
    for folder in ("in", "in/train.v1"):
        azurite.put("folder-marks", folder, metadata={"hdi_isfolder": "true"})
    azurite.put("folder-marks", "in/train.v1/a.txt", b"x")
    found = keys_and_names("az://folder-marks/in", azurite.options())
    assert found == (["train.v1/a"], ["train.v1/a.txt"])


def test_a_folder_that_an_empty_file_hides_is_refused(azurite: Any) -> None:
    """Of such a name Azure's file system lists the file alone, so its samples would be lost."""
    azurite.put("hidden-folder")
    azurite.put("hidden-folder", "in/train.v1")
    azurite.put("hidden-folder", "in/train.v1/a.txt", b"x")
    with pytest.raises(UsageError, match=r"in/train\.v1 is a folder.*remove that file"):
        FolderTree("az://hidden-folder/in", storage_options=azurite.options()).survey()
