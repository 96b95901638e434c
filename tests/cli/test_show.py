"""`shardloader show`: what a sample holds, and files that stay where they were asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardloader as sl
from shardloader.cli.show import safe_path
from tests.shards import tar_bytes


@pytest.fixture
def corpus(place):
    with sl.ShardWriter(place / "corpus", max_samples=2) as writer:
        for number in range(5):
            writer.write(
                {
                    "__key__": f"a/{number}",
                    "txt": f"é line\nof {number}",
                    "json": {"n": number, "ü": [None]},
                    "jpg": b"\xff\xd8\xff" + bytes(50),
                    "webp": b"RIFF\0\0\0\0WEBPVP8 ",
                    "npy": np.zeros((2, 3), np.int16),
                    "cls": number,
                }
            )
    return place / "corpus"


def test_texts_and_json_are_shown_and_other_fields_described(corpus, run):
    ended = run("show", "corpus", "--sample", "3")
    assert ended.code == 0
    for part in (
        "key     a/3",
        "shard-000001.tar, sample 1",
        "txt  12 bytes",
        "    é line",
        "    of 3",
        '"ü"',
        "jpg  53 bytes  JPEG image",
        "webp  16 bytes  WebP image",
        "numpy array, int16, 2 x 3",
    ):
        assert part in ended.out


def test_a_program_reads_the_same(corpus, run):
    told = run("show", "corpus", "--key", "a/4", "-n", "3", "--fields", "txt,cls", "--json").json
    (sample,) = told["samples"]  # the last one of the dataset
    assert (sample["sample"], sample["shard"], sample["place"]) == (4, "shard-000002.tar", 0)
    assert sample["fields"] == [
        {"field": "cls", "bytes": 1, "text": "4"},
        {"field": "txt", "bytes": 12, "text": "é line\nof 4"},
    ]
    shorter = run("show", "corpus", "--chars", "3", "--fields", "txt", "--json").json
    (field,) = shorter["samples"][0]["fields"]
    assert (field["text"], field["characters"]) == ("é l", 11)


def test_what_is_not_shown_of_a_text_is_told(corpus, run):
    assert "    é l\n    ... of 11 characters" in run("show", "corpus", "--chars", "3").out
    assert "characters" not in run("show", "corpus").out


def test_fields_are_extracted_under_their_keys_and_never_over_a_file(corpus, place, run):
    ended = run("show", "corpus", "-n", "2", "--fields", "jpg,txt", "--extract", "found")
    assert ended.code == 0
    assert (place / "found" / "a" / "1.jpg").read_bytes() == b"\xff\xd8\xff" + bytes(50)
    assert sorted(path.name for path in (place / "found" / "a").iterdir()) == [
        "0.jpg",
        "0.txt",
        "1.jpg",
        "1.txt",
    ]
    again = run("show", "corpus", "--extract", "found")
    assert again.code == 2
    assert "is there already" in again.err


def test_keys_that_climb_out_of_the_folder_stay_in_it(place, run):
    (place / "bad").mkdir()
    members = [
        ("../../up.txt", b"1"),
        ("/abs.txt", b"2"),
        ("a\\..\\b.txt", b"3"),
        ("x/..a.txt", b"4"),
    ]
    (place / "bad" / "a.tar").write_bytes(tar_bytes(members))
    ended = run("show", "bad", "-n", "9", "--extract", "deep/er/out", "--json")
    assert ended.code == 0
    files = [field["file"] for sample in ended.json["samples"] for field in sample["fields"]]
    assert files
    for file in files:
        assert (place / "deep/er/out").resolve() in Path(file).resolve().parents
    assert {path.name for path in place.iterdir()} == {"bad", "deep"}


@given(st.text(max_size=300), st.text("aB./\\\0é..", min_size=1, max_size=8))
def test_a_safe_path_is_relative_and_goes_down_only(key: str, field: str) -> None:
    path = safe_path(key, field)
    parts = path.split("/")
    assert not {"", ".", ".."} & set(parts)
    assert "\\" not in path
    assert "\0" not in path
    assert all(len(part.encode()) <= 255 for part in parts)


@pytest.mark.parametrize(
    "words",
    [
        ["--sample", "5"],
        ["--sample", "-1"],
        ["--sample", "1", "--key", "a/1"],
        ["--key", "none"],
        ["-n", "0"],
    ],
    ids=repr,
)
def test_what_is_not_there_is_wrong_use(corpus, run, words):
    ended = run("show", "corpus", *words)
    assert ended.code == 2
    assert ended.err


def test_fields_that_are_not_what_they_say_are_told_and_shown(place, run):
    (place / "bad").mkdir()
    members = [("k.json", b"{"), ("k.npy", b"x"), ("k.txt", b"\xff"), ("k.bin", b"\x1b[31m")]
    (place / "bad" / "a.tar").write_bytes(tar_bytes(members))
    ended = run("show", "bad")
    assert ended.code == 0
    assert "\x1b" not in ended.out
    assert "bin  5 bytes  bytes" in ended.out
    (sample,) = run("show", "bad", "--json").json["samples"]
    problems = {field["field"] for field in sample["fields"] if "problem" in field}
    assert problems == {"json", "npy", "txt"}
