"""`shardloader write`: what is packed, what a dry run foretells, and what is skipped."""

from __future__ import annotations

import pytest

from shardloader.reading.indexing import index_dataset
from shardloader.writing.sources.folder_tree import FolderTree
from tests.cli.workplace import make_photos


def test_a_summary_tells_what_was_written(place, run):
    make_photos(place / "photos")
    ended = run("write", "photos", "packed", "--max-samples", "5", "--json")
    assert ended.code == 0
    told = ended.json
    assert [shard["samples"] for shard in told["shards"]] == [5, 5, 2]
    assert told["samples"] == 12
    assert told["bytes"] == sum(path.stat().st_size for path in (place / "packed").glob("*.tar"))
    assert told["skipped"] == [
        {"path": ".cache/", "reason": "hidden"},
        {"path": "README", "reason": "no extension"},
    ]
    manifest, _ = index_dataset(place / "packed")
    assert manifest.names == tuple(shard["name"] for shard in told["shards"])


@pytest.mark.parametrize(
    "limits",
    [
        [],
        ["--max-samples", "1"],
        ["--max-samples", "5"],
        ["--max-bytes", "1"],
        ["--max-bytes", "8kB", "--max-samples", "3"],
        ["--max-bytes", "10240"],
        ["--include", "*.jpg", "--pattern", "out-%02d.tar"],
        ["--include", "a/00*"],
    ],
)
def test_a_dry_run_foretells_the_shards_and_writes_nothing(limits, place, run):
    make_photos(place / "photos")
    long = place / "photos" / ("d" * 120) / ("e" * 120)
    long.mkdir(parents=True)
    (long / "a-name-that-needs-more-headers.jpg").write_bytes(b"x")
    (long / f"{'n' * 150}.jpg").write_bytes(b"")
    foretold = run("write", "photos", "packed", "--dry-run", "--json", *limits).json
    assert not (place / "packed").exists()
    written = run("write", "photos", "packed", "--json", *limits).json
    for key in ("samples", "shards", "bytes", "file_bytes", "skipped", "not_included"):
        assert foretold[key] == written[key], key


def test_a_dry_run_of_overwriting_leaves_what_is_there(place, run):
    make_photos(place / "photos")
    run("write", "photos", "packed")
    before = {path: path.read_bytes() for path in (place / "packed").iterdir()}
    ended = run("write", "photos", "packed", "--overwrite", "--dry-run", "--max-samples", "1")
    assert ended.code == 0
    assert "shard-000009.tar" in ended.out
    assert "and 2 shards more" in ended.out
    assert {path: path.read_bytes() for path in (place / "packed").iterdir()} == before
    assert run("write", "photos", "packed", "--overwrite").code == 0


def test_skipped_paths_are_listed_by_reason_the_first_few_or_all(place, run):
    make_photos(place / "photos")
    for number in range(8):
        (place / "photos" / f"note{number}").write_text("")
    few = run("write", "photos", "packed", "--dry-run").out
    assert "no extension: README, note0, note1, note2, note3 and 4 more" in few
    everything = run("write", "photos", "packed", "--dry-run", "-v").out
    assert "note7" in everything
    assert "not included" not in few
    fewer = run("write", "photos", "packed", "--dry-run", "--include", "*.jpg").out
    assert "not included  21 files" in fewer


def test_names_that_no_terminal_should_see_are_escaped(place, run):
    make_photos(place / "photos")
    (place / "photos" / "\x1b[31mred").write_text("")
    ended = run("write", "photos", "packed")
    assert ended.code == 0
    assert "\x1b" not in ended.out
    assert "\\x1b[31mred" in ended.out


def test_a_file_that_changes_meanwhile_is_exit_code_1(place, run, monkeypatch):
    make_photos(place / "photos")
    changed = place / "photos" / "a" / "011.jpg"
    survey = FolderTree.survey

    def survey_then_change(source):
        surveyed = survey(source)
        parts = list(source.parts())
        changed.write_bytes(b"")
        monkeypatch.setattr(FolderTree, "parts", lambda _: iter(parts))
        return surveyed

    monkeypatch.setattr(FolderTree, "survey", survey_then_change)
    ended = run("write", "photos", "packed", "--json")
    assert ended.code == 1
    assert ended.json["error"]["kind"] == "WorldError"
    assert "011.jpg" in ended.err
    assert not (place / "packed" / "manifest.json").exists()


def test_a_shuffled_write_is_the_same_for_the_same_seed(place, run):
    for number in range(40):
        (place / "photos").mkdir(exist_ok=True)
        (place / "photos" / f"{number:02d}.txt").write_text(str(number))
    for folder, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert run("write", "photos", folder, "--shuffle", seed).code == 0
    shard = "shard-000000.tar"
    one, again, other = ((place / folder / shard).read_bytes() for folder in "abc")
    assert one == again
    assert one != other
