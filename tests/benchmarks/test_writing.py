"""The writers are given the same samples and judged by what lies on the disk; no time is judged."""

from __future__ import annotations

import pytest

from benchmarks.feeding.digest import Digest
from benchmarks.writing.__main__ import options_of, parsed
from benchmarks.writing.access import accessed
from benchmarks.writing.measure import checked, in_memory, timed
from benchmarks.writing.rounds import Series, digest_of, measure, planned
from benchmarks.writing.tables import TARGETS, markdown, reached
from benchmarks.writing.writers import CORPORA, FLOOR, MDS, OWN, OWN_ZSTD, WRITERS, Task, find
from tools.corpora.__main__ import make
from tools.corpora.corpus import corpus_of

LEAST = 10**9  # divides every corpus down to its least size


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("corpora")


@pytest.fixture
def task(place, tmp_path):
    corpus = corpus_of("T", LEAST)
    given = Task(corpus=corpus, samples=(), source=make(corpus, place, "tar"), folder=tmp_path)
    return Task(
        corpus=corpus, samples=in_memory(given, 1), source=given.source, folder=given.folder
    )


def options(place, *more):
    return options_of(parsed(["--divide", str(LEAST), "--work", str(place), *more]))


@pytest.mark.parametrize(
    "writer", [each.name for each in WRITERS if each.checked and not each.name.startswith(MDS)]
)
def test_what_lies_on_the_disk_is_what_the_writer_was_given(place, task, writer):
    found = checked(find(writer), task)
    expected = digest_of("T", options(place))
    assert not Digest(**found).differs_from(expected)


def test_the_template_loop_writes_the_bytes_that_the_writer_does(task, tmp_path):
    for name in (FLOOR, OWN):
        folder = tmp_path / name
        folder.mkdir()
        find(name).write(Task(**{**_fields(task), "folder": folder}))
    ours = [path.read_bytes() for path in sorted((tmp_path / OWN).glob("*.tar"))]
    assert ours == [path.read_bytes() for path in sorted((tmp_path / FLOOR).glob("*.tar"))]


def _fields(task):
    return {name: getattr(task, name) for name in ("corpus", "samples", "source", "folder")}


def test_a_sample_from_the_middle_of_a_zstd_shard_costs_a_frame(task):
    assert accessed(find(OWN_ZSTD), task)["most_frames"] == 1


def test_a_write_is_timed_and_its_bytes_counted(task):
    for writer in WRITERS:
        if not writer.checked or writer.of_shards:
            folder = task.folder / writer.name
            folder.mkdir()
            found = timed(writer, Task(**{**_fields(task), "folder": folder}))
            assert found["samples"] == 96
            assert found["bytes"] > 96 * 1024


def test_rounds_fill_every_series_of_what_is_asked_for(place):
    asked = options(place, "--only", "T,nobody", "--rounds", "2")
    make(corpus_of("T", LEAST), place, "tar")
    chosen = [each for each in WRITERS if asked.wants(each) and each.name in {FLOOR, OWN}]
    turns = planned(chosen, asked)
    measure(turns, asked, say=lambda what: None)
    assert [len(turn.series.rates) for turn in turns] == [2, 2]
    assert not any(turn.series.failed for turn in turns)


def test_the_note_says_targets_spread_and_what_failed():
    found = [
        Series(writer=writer, corpus=corpus, measurement="time", command="do it")
        for corpus in CORPORA
        for writer in {name for target in TARGETS for name in target[1:3]}
    ]
    for each in found:
        each.rates = each.cpu_rates = [30.0, 60.0, 50.0] if each.writer == OWN else [1.0, 2.0, 3.0]
    found[-1].failed = "its digest differs"
    rows = {(row["corpus"], row["writer"], row["against"]): row for row in reached(found[:-1])}
    assert rows["T", OWN, "webdataset"]["reached"] == 30.0  # of rounds: 30, 30, 17
    machine = dict.fromkeys(("processor", "cores", "memory_gb", "kernel", "python"), "x")
    about = {"command": "it", "date": "today", "machine": {**machine, "load_before": 0.5}}
    note = markdown(found, {**about, "rounds": 3, "left_out": {}, "versions": {}})
    assert "| 50 (30 to 60) |" in note
    assert "| T | shardloader | webdataset | 25 | 30.00 | 30.00 | yes |" in note
    assert ": its digest differs" in note
