"""`shardloader write`: what is packed, what a dry run foretells, and what is skipped."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from shardloader.cli import main
from shardloader.errors import WorldError
from shardloader.reading.indexing import index_dataset
from shardloader.writing.destination import Destination
from shardloader.writing.sources.folder_tree import FolderTree
from tests.cli.workplace import PYTHON, make_photos
from tests.writing.reading_back import read_dataset

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry run", "write"])
def test_files_that_dots_made_fields_of_one_sample_are_told_with_the_way_out(dry, place, run):
    (place / "photos").mkdir()
    for name in ("a.v2.jpg", "a.v3.jpg", "b.jpg", "c.seg.png", "d.seg.png"):
        (place / "photos" / name).write_bytes(b"x")
    ended = run("write", "photos", "packed", *dry)
    assert ended.code == 0
    assert "2 fields are of one sample each: 'v2.jpg', 'v3.jpg'." in ended.err
    assert "rename them with another sign for the dots: a_v2.jpg" in ended.err
    assert "seg.png" not in ended.err


def test_two_spellings_of_an_extension_are_told_with_the_way_out(place, run):
    (place / "photos").mkdir()
    for name in ("a.jpg", "b.jpeg"):
        (place / "photos" / name).write_bytes(b"x")
    ended = run("write", "photos", "packed")
    assert "--field jpg --field jpg=jpeg" in ended.err
    ended = run("write", "photos", "packed", "--field", "jpg", "--field", "jpg=jpeg", "--overwrite")
    assert (ended.code, ended.err) == (0, "")
    assert read_dataset(place / "packed") == [("a", {"jpg": b"x"}), ("b", {"jpg": b"x"})]


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


def rows_file(place, count=30):
    rows = [{"id": f"r{n:03d}", "text": f"text {n}", "n": n} for n in range(count)]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


ROWS = ("rows.jsonl", "out", "--key", "id", "--field", "txt=text", "--field", "json=n")


@pytest.mark.parametrize(
    "options",
    [
        ["--max-samples", "7"],
        ["--max-bytes", "20kB"],
        ["--max-samples", "7", "--shuffle", "2"],
        ["--max-bytes", "20kB", "--shuffle", "2"],
        ["--max-samples", "7", "--compression", "zstd", "--frame-samples", "3"],
        ["--max-bytes", "2kB", "--compression", "zstd", "--frame-samples", "3"],
        ["--fraction", "0:0.5", "--select", "r0*"],
    ],
    ids=repr,
)
def test_a_dry_run_of_rows_foretells_the_shards(options, place, run):
    rows_file(place)
    foretold = run("write", *ROWS, "--dry-run", "--json", *options)
    assert foretold.code == 0
    assert not (place / "out").exists()
    written = run("write", *ROWS, "--json", *options)
    for name in ("samples", "shards", "bytes", "not_selected", "temporary_bytes"):
        assert foretold.json[name] == written.json[name], name


def test_what_is_appended_is_told_and_foretold(place, run):
    rows_file(place)
    assert run("write", *ROWS, "--max-samples", "20").code == 0
    foretold = run("write", "rows.jsonl", "out", "--append", "--dry-run", "--json").json
    written = run("write", "rows.jsonl", "out", "--append", "--json").json
    assert [shard["name"] for shard in written["shards"]] == ["shard-000002.tar"]
    assert foretold["shards"] == written["shards"]
    assert written["digest"] == index_dataset(place / "out")[0].digest


def test_a_bad_row_is_exit_code_1_or_a_line_of_the_report(place, run):
    rows_file(place, 5)
    with (place / "rows.jsonl").open("a") as file:
        file.write("not json\n")
    stopped = run("write", *ROWS)
    assert stopped.code == 1
    assert "rows.jsonl, line 6" in stopped.err
    foretold = run("write", *ROWS, "--dry-run")
    assert foretold.code == 1
    assert "the line is not JSON" in foretold.out
    skipped = run("write", *ROWS, "--on-error", "skip")
    assert skipped.code == 0
    assert "refused  1 sample" in skipped.out
    assert "out/refused.jsonl" in skipped.out
    assert "line 6" in (place / "out" / "refused.jsonl").read_text()


def test_a_folder_with_other_data_is_wrong_use_unless_told(place, run):
    rows_file(place)
    assert run("write", *ROWS).code == 0
    again = run("write", *ROWS)
    assert again.code == 2
    assert "--overwrite" in again.err
    assert "--append" in again.err
    assert run("write", *ROWS, "--overwrite").code == 0
    assert run("write", *ROWS, "--append", "--overwrite").code == 2
    assert run("write", "rows.jsonl", "new", "--append").code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["none.jsonl"],
        ["rows.jsonl", "--field", "=x"],
        ["rows.jsonl", "--field", "txt=text", "--field", "txt=text"],
        ["rows.jsonl", "--field", "TXT=text"],
        ["rows.jsonl", "--fraction", "0.5"],
        ["rows.jsonl", "--fraction", "1:0"],
        ["rows.jsonl", "--class-map", "rows.jsonl"],
        ["rows.jsonl", "--include", "*.jpg"],
        ["rows.jsonl", "--prefix-keys"],
        ["rows.jsonl", "--from", "folder"],
        ["rows.jsonl", "--keys-from", "none.txt"],
        ["rows.jsonl", "--keys-from", "latin.txt"],
        ["rows.jsonl", "--from", "csv"],
        ["odd-store://bucket/rows.jsonl"],
        ["rows.jsonl", "--compression", "zstd", "--level", "99"],
        ["rows.jsonl", "--level", "9"],
        ["rows.jsonl", "--frame-samples", "8"],
        ["rows.jsonl", "--shuffle", "-1"],
        ["photos", "--key", "id"],
        ["photos", "rows.jsonl"],
    ],
    ids=repr,
)
def test_options_that_make_no_sense_are_wrong_use(words, place, run):
    rows_file(place)
    make_photos(place / "photos")
    (place / "latin.txt").write_bytes(b"caf\xe9")
    ended = run(
        "write",
        *words[:1],
        *[w for w in words[1:] if w == "rows.jsonl"],
        "out",
        *[w for w in words[1:] if w != "rows.jsonl"],
    )
    if "--class-map" in words:
        ended = run("write", "rows.jsonl", "out", "--class-map", "rows.jsonl")
    assert ended.code == 2, ended
    assert ended.err
    assert not (place / "out").exists()


def test_class_folders_with_a_map_and_keys_from_a_file(place, run):
    for name in ("cat/1.jpg", "dog/1.jpg", "dog/2.jpg"):
        (place / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "train" / name).write_bytes(b"x")
    (place / "map.json").write_text('{"cat": 5, "dog": 6}')
    (place / "keys.txt").write_text("dog/2\ncat/1\n")
    ended = run(
        "write", "train", "out", "--class-map", "map.json", "--keys-from", "keys.txt", "--json"
    )
    assert (ended.code, ended.json["samples"], ended.json["not_selected"]) == (0, 2, 1)
    assert (place / "out" / "classes.json").exists()


def test_a_broken_off_write_is_finished_by_the_same_command(place, run, monkeypatch):
    rows_file(place)
    publish = Destination.publish_shard

    def failing(destination, sealed, line=None, **options):
        if sealed.finished.name == "shard-000002.tar":
            raise WorldError("the disk is full")
        publish(destination, sealed, line, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Destination, "publish_shard", failing)
        assert run("write", *ROWS, "--max-samples", "7").code == 1
    assert run("write", *ROWS, "--max-samples", "8").code == 2
    ended = run("write", *ROWS, "--max-samples", "7")
    assert ended.code == 0
    assert "2 shards of a write that was broken off" in ended.out


WRITE = """
import os, sys
os.umask(int(sys.argv[2], 8))
from shardloader.writing import job
job.SMALL_BYTES = 0
from shardloader.cli import main
sys.exit(main(["write", "rows.jsonl", *sys.argv[3:], sys.argv[1]]))
"""


def test_bytes_depend_on_neither_locale_nor_umask_hash_seed_time_or_workers(place):
    rows_file(place)
    with (place / "rows.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"id": "é猫/ü", "text": "naïve", "n": 1}\nnot json\n')
    options = [*ROWS[2:], "--shuffle", "1", "--max-samples", "9", "--on-error", "skip"]
    made = []
    for number, (locale, umask) in enumerate([("C", "077"), ("C.UTF-8", "022")]):
        folder = f"out{number}"
        done = subprocess.run(
            [
                PYTHON,
                "-X",
                "utf8=0",
                "-c",
                WRITE,
                folder,
                umask,
                *options,
                "--workers",
                str(1 + number),
            ],
            env={
                "LC_ALL": locale,
                "PYTHONHASHSEED": str(number),
                "PYTHONCOERCECLOCALE": "0",
                "PYTHONPATH": str(ROOT),
            },
            cwd=place,
            check=False,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        made.append({path.name: path.read_bytes() for path in (place / folder).iterdir()})
    assert made[0] == made[1]
    assert len(made[0]) == 2 * 4 + 2


def test_what_selects_nothing_is_an_error_that_says_why_and_leaves_nothing(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("x")
    out = tmp_path / "out"
    for options in (["--select", "b*"], ["--select", "b*", "--shuffle", "0"]):
        words = ["write", str(tmp_path / "in"), str(out), *options]
        assert main([*words, "--dry-run"]) == 1
        assert main(words) == 1
        assert "none is left to write: 1 were not selected" in capsys.readouterr().err
        assert list(out.iterdir()) == []
    (tmp_path / "bad.jsonl").write_text("no json")
    assert main(["write", str(tmp_path / "bad.jsonl"), str(out), "--on-error", "skip"]) == 1
    assert "1 were refused, such as: the line is not JSON" in capsys.readouterr().err


def test_an_append_that_was_done_before_is_said_to_be_done(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("x")
    words = ["write", str(tmp_path / "in"), str(tmp_path / "out")]
    assert main(words) == main([*words, "--append"]) == 0
    capsys.readouterr()
    for more in ([], ["--dry-run"]):
        assert main([*words, "--append", *more]) == 0
        assert "nothing to do: this input was appended" in capsys.readouterr().out


def test_overwriting_class_folders_leaves_no_map_of_the_old_classes(tmp_path):
    (tmp_path / "in" / "cat").mkdir(parents=True)
    (tmp_path / "in" / "cat" / "a.txt").write_text("x")
    words = ["write", str(tmp_path / "in"), str(tmp_path / "out")]
    assert main([*words, "--from", "classes"]) == 0
    assert (tmp_path / "out" / "classes.json").exists()
    assert main([*words, "--overwrite"]) == 0
    assert not (tmp_path / "out" / "classes.json").exists()


def test_a_number_that_json_lacks_is_refused_with_key_field_and_column(tmp_path, capsys):
    table = pa.table({"id": ["a", "b"], "x": [[1.0], [float("nan")]]})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    words = ["write", str(tmp_path / "a.parquet"), str(tmp_path / "out"), "--key", "id"]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "sample 'b' can't be written: field 'json' is JSON, which has no number for nan" in said
    assert "the column 'x' holds it" in said
    assert main([*words, "--field", "npy=x"]) == 0
