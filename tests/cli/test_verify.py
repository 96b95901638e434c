"""`shardloader verify`: all that is wrong with a dataset, each its row, in one run."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from pathlib import Path

import numpy as np
import pytest

import shardloader as sl
from shardloader.cli import COMMANDS
from shardloader.format.findings import KINDS
from shardloader.format.notices import ERROR_KINDS, NOTICE_KINDS
from shardloader.reading.indexing import index_dataset
from tests.cli.workplace import COMMAND, make_corpus
from tests.shards import sample_members, tar_bytes, write_shard

CASES = Path(__file__).parent.parent / "cases"
COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"P*M\x18")


def written(folder: Path, shards: int = 4, samples: int = 50) -> Path:
    """A corpus of our own writer, whose manifest has content digests."""
    with sl.ShardWriter(folder, max_samples=samples) as writer:
        for number in range(shards * samples):
            writer.write({"__key__": f"{number:06d}", "txt": f"text {number}", "cls": number % 10})
    return folder


def findings(ended):
    (dataset,) = ended.json["datasets"]
    return dataset["findings"]


def kinds(ended):
    return [(row["kind"], row["shard"]) for row in findings(ended)]


def test_every_kind_that_a_shard_can_have_says_how_bad_it_is_and_what_mends_it():
    assert {*ERROR_KINDS, *NOTICE_KINDS} <= set(KINDS)
    assert all(level in {"fault", "warning", "remark"} and mend for level, mend in KINDS.values())
    named = {
        word for _, mend in KINDS.values() for word in COMMANDS if f"shardloader {word}" in mend
    }
    assert named == {"index", "write"}


def test_a_sound_dataset_is_exit_code_0_without_a_row(place, run):
    written(place / "corpus")
    ended = run("verify", "corpus", "--json", "--workers", "2", "--decode")
    assert (ended.code, ended.err) == (0, "")
    (dataset,) = ended.json["datasets"]
    assert (dataset["checked"], dataset["samples"], dataset["members"]) == (4, 200, 400)
    assert (dataset["has_content_digests"], dataset["findings"]) == (True, [])
    assert (ended.json["is_sound"], ended.json["is_interrupted"]) == (True, False)
    told = run("verify", "corpus")
    assert (told.code, told.err) == (0, "")
    assert "0 faults, 0 warnings, 0 remarks" in told.out
    assert "compared with their digests" in told.out


def test_all_faults_are_found_in_one_run_each_with_what_mends_it(place, run):
    folder = written(place / "corpus", shards=12)
    shard = [folder / f"shard-{number:06d}.tar" for number in range(12)]
    index = [Path(f"{path}.index") for path in shard]

    def edit(number: int, at: int) -> None:
        data = bytearray(shard[number].read_bytes())
        data[at] ^= 1
        shard[number].write_bytes(data)

    shard[1].unlink()
    shard[2].write_bytes(shard[2].read_bytes()[:1540])
    edit(3, 513)  # a byte of a field, in the first sample
    edit(4, 2)  # a byte of a name, and so of a checksum
    renamed = shard[5].read_bytes()
    members = [(f"x{name[1:]}", data) for name, data in sample_members(50, first=250)]
    shard[5].write_bytes(tar_bytes(members)[: len(renamed)].ljust(len(renamed), b"\0"))
    index[6].write_bytes(index[7].read_bytes())
    index[8].unlink()
    index[9].write_bytes(b"no index")
    shard[10].write_bytes(b"")
    shard[11].write_bytes(b"<html>404</html>")
    write_shard(folder / "more.tar", 5)
    ended = run("verify", "corpus", "--json")
    assert ended.code == 1
    assert kinds(ended) == [
        ("missing_shard", shard[1].name),
        ("truncated", shard[2].name),
        ("size_differs", shard[2].name),
        ("content_differs", shard[3].name),
        ("not_a_tar", shard[4].name),
        ("content_differs", shard[4].name),
        ("content_differs", shard[5].name),
        ("shard_changed", shard[5].name),
        ("index_differs", shard[6].name),
        ("missing_index", shard[8].name),
        ("bad_index", shard[9].name),
        ("empty_file", shard[10].name),
        ("size_differs", shard[10].name),
        ("not_a_tar", shard[11].name),
        ("size_differs", shard[11].name),
        ("unlisted_shard", "more.tar"),
    ]
    assert ended.json["datasets"][0]["checked"] == 13
    mends = {row["kind"]: row["mend"] for row in findings(ended)}
    assert mends["truncated"] == KINDS["truncated"][1]
    assert mends["index_differs"] == "shardloader index --force"
    assert mends["unlisted_shard"] == "shardloader index"
    told = run("verify", "corpus")
    assert told.code == 1
    assert "16 faults" in told.out
    assert told.out.count("mend: ") == 16
    assert "the manifest lists 103424 bytes, and the shard has 1540" in told.out


def test_what_an_index_says_otherwise_is_told_by_key_place_and_both_versions(place, run):
    make_corpus(place / "corpus", shards=2)
    index_dataset(place / "corpus")
    other = sample_members(50)
    other[7] = ("000003.cls", b"10")  # was one byte
    (place / "corpus" / "shard-000.tar").write_bytes(tar_bytes(other))
    (row,) = [row for row in findings(run("verify", "corpus", "--json")) if row["level"] == "fault"]
    assert (row["kind"], row["place"], row["offset"]) == ("shard_changed", "000003", 6656)
    assert "000003' (txt 20 bytes at 6656, cls 1 bytes at 7680), and the shard" in row["told"]
    assert "cls 2 bytes at 7680" in row["told"]


def test_a_manifest_that_lists_another_version_of_shard_and_index_is_found(place, run):
    make_corpus(place / "corpus", shards=2)
    index_dataset(place / "corpus")
    for path in ("corpus/shard-000.tar", "corpus/shard-000.tar.index"):
        (place / path).rename(place / path.replace("corpus", "."))
    write_shard(place / "corpus/shard-000.tar", 50, first=900)
    index_dataset([place / "corpus/shard-000.tar"])  # beside the shard: the manifest stays
    rows = [row for row in kinds(run("verify", "corpus", "--json")) if row[1]]
    assert rows == [("unlisted_index", "shard-000.tar")]


def test_a_count_that_differs_is_found(place, run):
    make_corpus(place / "corpus", shards=2)
    manifest, _ = index_dataset(place / "corpus")
    wrong = sl.Manifest(
        names=manifest.names,
        sizes=manifest.sizes,
        counts=manifest.counts + np.array([0, 1]),
        index_digests=manifest.index_digests,
    )
    (place / "corpus" / "manifest.json").write_bytes(wrong.to_json_bytes())
    (row,) = [r for r in findings(run("verify", "corpus", "--json")) if r["level"] == "fault"]
    assert (row["kind"], row["shard"]) == ("count_differs", "shard-001.tar")
    assert "lists 51 samples, and the shard has 50" in row["told"]


def test_a_flipped_byte_of_a_field_is_found_by_the_digest_that_index_makes(place, run):
    make_corpus(place / "corpus")
    assert run("index", "corpus").code == 0
    assert kinds(run("verify", "corpus", "--json")) == [("no_content_digests", None)]
    assert run("index", "corpus", "--digest", "--json").json["datasets"][0]["has_content_digests"]
    assert kinds(run("verify", "corpus", "--json")) == []
    path = place / "corpus" / "shard-002.tar"
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[515] ^= 0x10
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    ended = run("verify", "corpus", "--json")
    assert (ended.code, kinds(ended)) == (1, [("content_differs", "shard-002.tar")])
    assert run("index", "corpus", "--force", "--digest").code == 0
    assert run("verify", "corpus").code == 0


def test_a_dataset_that_was_never_indexed_is_checked_by_its_bytes(place, run):
    make_corpus(place / "corpus")
    ended = run("verify", "corpus", "--json")
    assert ended.code == 0
    assert kinds(ended) == [("no_manifest", None), ("no_indexes", None)]
    assert not list((place / "corpus").glob("*.index"))
    assert kinds(run("verify", "corpus/shard-000.tar", "--json")) == [("no_indexes", None)]


def test_a_broken_manifest_is_a_row_and_the_shards_are_checked(place, run):
    make_corpus(place / "corpus")
    index_dataset(place / "corpus")
    (place / "corpus" / "manifest.json").write_text("{}")
    ended = run("verify", "corpus", "--json")
    assert (ended.code, kinds(ended)) == (1, [("bad_manifest", None)])
    assert ended.json["datasets"][0]["checked"] == 4


def test_what_a_writer_left_unfinished_is_a_fault(place, run):
    writer = sl.ShardWriter(place / "corpus", max_samples=2)
    for number in range(5):
        writer.write({"__key__": str(number), "txt": "a"})
    writer.abort()
    assert ("unfinished_writer", None) in kinds(run("verify", "corpus", "--json"))


def test_all_shards_gone_are_rows_and_no_wrong_use(place, run):
    make_corpus(place / "corpus", shards=2)
    index_dataset(place / "corpus")
    for path in (place / "corpus").glob("*.tar"):
        path.unlink()
    ended = run("verify", "corpus", "--json")
    assert ended.code == 1
    assert [kind for kind, shard in kinds(ended) if shard] == ["missing_shard"] * 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_shard_that_may_not_be_read_is_a_row(place, run):
    make_corpus(place / "corpus", shards=2)
    index_dataset(place / "corpus")
    (place / "corpus" / "shard-001.tar").chmod(0)
    assert ("unreadable_shard", "shard-001.tar") in kinds(run("verify", "corpus", "--json"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cant_be_read_is_told_as_such(place, run):
    make_corpus(place / "corpus", shards=2)
    (place / "corpus").chmod(0)
    ended = run("verify", "corpus")
    (place / "corpus").chmod(0o700)
    assert ended.code == 1
    assert "can't be read" in ended.err


def test_a_folder_in_a_shards_place_is_a_row(place, run):
    make_corpus(place / "corpus", shards=2)
    index_dataset(place / "corpus")
    (place / "corpus" / "shard-001.tar").unlink()
    (place / "corpus" / "shard-001.tar").mkdir()
    assert ("unreadable_shard", "shard-001.tar") in kinds(run("verify", "corpus", "--json"))


def test_a_million_warnings_would_be_one_row(place, run):
    (place / "corpus").mkdir()
    odd = [(f"{number}.1.jpg", b"") for number in range(3)]
    odd += [("README", b"")] * 500 + sample_members(3)
    (place / "corpus" / "a.tar").write_bytes(tar_bytes(odd))
    ended = run("verify", "corpus", "--json")
    rows = {row["kind"]: row for row in findings(ended)}
    assert rows["member_without_extension"]["times"] == 500
    assert (
        rows["member_without_extension"]["place"],
        rows["member_without_extension"]["offset"],
    ) == (
        "'README'",
        3 * 512,
    )
    assert ended.code == 0


def test_strict_fails_on_warnings_as_well(place, run):
    make_corpus(place / "corpus", shards=1)
    path = place / "corpus" / "shard-000.tar"
    path.write_bytes(path.read_bytes()[:-1024])
    index_dataset(place / "corpus")
    ended = run("verify", "corpus", "--json")
    assert (ended.code, kinds(ended)[1]) == (0, ("missing_end_of_archive", "shard-000.tar"))
    assert run("verify", "corpus", "--strict").code == 1


def test_decode_says_which_sample_and_field_cannot_be(place, run):
    (place / "corpus").mkdir()
    members = [
        member
        for number in range(9)
        for member in ((f"{number}.json", b"{}"), (f"{number}.cls", b"x"))
    ]
    members[0] = ("0.json", b"{")
    (place / "corpus" / "a.tar").write_bytes(tar_bytes(members))
    index_dataset(place / "corpus", digest=True)
    assert run("verify", "corpus").code == 0
    ended = run("verify", "corpus", "--decode", "--json")
    assert ended.code == 1
    json_row, cls_row = findings(ended)
    assert (json_row["kind"], json_row["place"], json_row["offset"], json_row["times"]) == (
        "undecodable",
        "key '0', field 'json'",
        512,
        1,
    )
    assert cls_row["times"] == 9
    assert "also of '1', '2', ..." in cls_row["told"]


def test_the_limit_of_pixels_is_adjustable(place, run):
    from tests.reading.images import a_png

    (place / "corpus").mkdir()
    (place / "corpus" / "a.tar").write_bytes(tar_bytes([("0.png", a_png(20, 10))]))
    for limit, code in ((199, 1), (200, 0)):
        assert run("verify", "corpus", "--decode", "--max-pixels", limit).code == code
    assert run("verify", "corpus", "--max-pixels", 5).code == 2


def test_folders_are_datasets_and_wrong_use_is_exit_code_2(place, run):
    written(place / "one", shards=1)
    written(place / "two", shards=2)
    ended = run("verify", "one", "two", "--json")
    assert [each["checked"] for each in ended.json["datasets"]] == [1, 2]
    assert ended.code == 0
    assert run("verify", "nowhere").code == 2
    assert run("verify", "one", "two", "--index-dir", "x").code == 2
    assert run("verify", "one", "--jobs", "0").code == 2
    assert run("index", "one/shard-000000.tar", "--digest").code == 2


def test_names_that_a_terminal_obeys_are_shown_escaped(place, run):
    (place / "corpus").mkdir()
    name = "\x1b[31m\udcff.tar"
    (place / "corpus" / name).write_bytes(b"")
    ended = run("verify", "corpus")
    assert ended.code == 1
    assert "\x1b" not in ended.out
    assert "\\x1b[31m\\udcff.tar" in ended.out
    assert run("verify", "corpus", "--json").json["datasets"][0]["findings"][-1]["shard"] == name


def case_ids():
    for path in sorted(CASES.glob("*.json")):
        case = json.loads(path.read_text())
        first = (CASES / case["files"][0]).read_bytes()
        yield pytest.param(case, first.startswith(COMPRESSED), id=case["name"])


def verified_case(run, case):
    ended = run("verify", *(CASES / name for name in case["files"]), "--json")
    rows = [row for row in findings(ended) if row["kind"] != "no_indexes"]
    return ended.code, rows


@pytest.mark.parametrize(("case", "is_compressed"), [*case_ids()])
def test_each_reported_trouble_is_told(case, is_compressed, place, run):
    code, rows = verified_case(run, case)
    told = {row["kind"] for row in rows}
    due = {*case["lint"], *case["warnings"]} - {"shard_error"}
    error = case["error"] and case["error"]["kind"]
    if case["name"] == "cut_then_same_key":  # its warning is how skipping tells of the error
        error = "truncated"
    assert told == due | ({error} if error else set())
    assert code == int(bool(error) or "key_reappears" in due)
    for row in rows:
        assert row["shard"] in case["files"]
        assert row["offset"] is not None or is_compressed


CUT_MEANWHILE = """
import os, sys
import shardloader.reading.shard_check as shard_check
real = shard_check.map_file
def cut_when_mapped(path):
    data = real(path)
    if path.endswith("1.tar"):
        os.truncate(path, 0)
    return data
shard_check.map_file = cut_when_mapped
from shardloader.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_shard_that_is_cut_while_it_is_read_costs_its_own_row(place):
    written(place / "corpus")
    command = [COMMAND[0], "-W", "error", "-c", CUT_MEANWHILE, "verify", "corpus", "--json"]
    done = subprocess.run(command, cwd=place, capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    (dataset,) = json.loads(done.stdout)["datasets"]
    (row,) = dataset["findings"]
    assert (row["kind"], row["shard"]) == ("worker_killed", "shard-000001.tar")
    assert "SIGBUS" in row["told"]
    assert (dataset["checked"], dataset["samples"]) == (4, 150)


def interruptible(place, *options):
    """`verify` on a shard whose check takes long, and three that take none."""
    corpus = written(place / "corpus", shards=4)
    slow = """
import sys, time
import shardloader.reading.verifying as verifying
real = verifying.check_shard
def slow(shard, **how):
    if shard.name.endswith("3.tar"):
        print("slow", flush=True, file=sys.stderr)
        time.sleep(60)
    return real(shard, **how)
verifying.check_shard = slow
from shardloader.cli import main
sys.exit(main(sys.argv[1:]))
"""
    command = [COMMAND[0], "-W", "error", "-c", slow, "verify", str(corpus), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_reports_what_it_had(place, number):
    with interruptible(place, "--json", "--jobs", "1") as process:
        assert process.stderr.readline() == "slow\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
    told = json.loads(out)
    assert told["is_interrupted"]
    (dataset,) = told["datasets"]
    assert (dataset["checked"], dataset["shards"], dataset["samples"]) == (3, 4, 150)


def test_interrupted_it_says_so_in_words_and_leaves_no_process(place):
    with interruptible(place, "--jobs", "2") as process:
        assert process.stderr.readline() == "slow\n"
        children = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert re.search(r"interrupted: [12] shards? not checked", out)  # the other may just be done
    assert children
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def test_a_killed_process_costs_its_shard_a_row_and_no_other(place):
    with interruptible(place, "--json", "--jobs", "2") as process:
        assert process.stderr.readline() == "slow\n"
        deadline = time.monotonic() + 20
        while len(found := children_of(process.pid)) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        (child,) = found  # the others are done
        os.kill(child, signal.SIGKILL)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    (dataset,) = json.loads(out)["datasets"]
    assert (dataset["checked"], dataset["samples"]) == (4, 150)
    (row,) = dataset["findings"]
    assert (row["kind"], row["shard"]) == ("worker_killed", "shard-000003.tar")
    assert "SIGKILL" in row["told"]


def test_the_bar_is_shown_on_a_terminal_only(place):
    written(place / "corpus")
    command = [*COMMAND, "verify", "corpus"]
    silent = subprocess.run(command, cwd=place, capture_output=True, timeout=60, check=True)
    assert silent.stderr == b""
    main, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    subprocess.run(
        command, cwd=place, stdout=subprocess.DEVNULL, stderr=terminal, timeout=60, check=True
    )
    assert select.select([main], [], [], 10)[0]
    assert b"verifying" in os.read(main, 1 << 16)
    os.close(terminal)
    os.close(main)
