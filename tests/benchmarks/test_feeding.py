"""The benchmark of feeding runs, and its comparison is of the same work; no time is judged here."""

from __future__ import annotations

from functools import lru_cache, partial

import pytest

from benchmarks.feeding.__main__ import options_of, parsed
from benchmarks.feeding.digest import Digest
from benchmarks.feeding.measure import checked, first, held, timed
from benchmarks.feeding.peers import PINNED, asked_for
from benchmarks.feeding.picture import draw
from benchmarks.feeding.processes import held_mb, run
from benchmarks.feeding.registry import find, loaders
from benchmarks.feeding.rounds import Series, Turn, measure, planned
from benchmarks.feeding.tables import markdown, reached
from benchmarks.feeding.work import (
    BATCHES,
    OWN,
    RAW,
    Loader,
    Opened,
    Work,
    many_samples,
    one_sample,
)
from tools.corpora.__main__ import make
from tools.corpora.corpus import corpus_of
from tools.corpora.samples import LEAST_BYTES, MOST_BYTES, sample
from tools.corpora.shards import stored

LEAST = 10**6  # a divisor that leaves every corpus its fewest samples
ABOUT = {
    "command": "python -m benchmarks.feeding",
    "date": "2026-01-01",
    "machine": {
        "processor": "abacus",
        "cores": 2,
        "memory_gb": 1,
        "kernel": "6",
        "python": "3.11",
        "load_before": 0.0,
    },
    "left_out": {"slowpoke": "no wheel"},
    "versions": {"webdataset": {"webdataset": "1.0.2"}},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


def work_of(place, loader, corpus, mode):
    small = corpus_of(corpus, LEAST)
    make(small, place, "tar")
    return Work(corpus=small, mode=mode, folder=make(small, place, loader.form))


def digest_of(place, loader, corpus, mode):
    work = work_of(place, loader, corpus, mode)
    found = checked(loader.opens[mode](work), work.corpus, mode)
    return Digest(found["samples"], found["total"], found["brightness"])


@pytest.fixture(scope="module")
def reference(place):
    """The digest that the bare loop over the shards gives, once for each corpus and mode."""
    return lru_cache(partial(digest_of, place, find("floor")))


OWN_LOADERS = [
    each
    for each in loaders()
    if not each.is_peer and each.gives_samples and each.name not in {"floor", "webdataset"}
]
WORK = [
    (each.name, corpus, mode)
    for each in OWN_LOADERS
    for corpus in ("T", "I", "K")
    for mode in (RAW, BATCHES, OWN)
    # one corpus is enough for what takes worker processes
    if each.does(corpus, mode)
    and (mode != OWN or corpus == "I")
    and (mode == RAW or corpus == "K" or each.name == "shardloader")
]


@pytest.mark.parametrize(("name", "corpus", "mode"), WORK)
def test_every_loader_gives_what_the_corpus_holds(place, reference, name, corpus, mode):
    expected = reference(corpus, mode)
    assert expected.samples == corpus_of(corpus, LEAST).num_samples
    assert not digest_of(place, find(name), corpus, mode).differs_from(expected)


@pytest.mark.parametrize(("corpus", "mode"), [("T", RAW), ("K", BATCHES)])
def test_webdataset_gives_what_the_corpus_holds(place, reference, corpus, mode):
    # in a process of its own: it leaves files to the garbage collector, which is an error here
    work_of(place, find("webdataset"), corpus, mode)
    command = ["-m", "benchmarks.feeding.measure", "check", "webdataset", corpus, mode]
    command += ["--divide", str(LEAST), "--work", str(place)]
    ran = run(command, is_peer=False, limit_s=60)
    assert ran.result is not None, ran.reason
    found = Digest(*(ran.result[name] for name in ("samples", "total", "brightness")))
    assert not found.differs_from(reference(corpus, mode))


@pytest.mark.parametrize("corpus", ["T", "I", "K"])
def test_the_shards_hold_the_samples_that_were_drawn(place, corpus):
    small = corpus_of(corpus, LEAST)
    folder = make(small, place, "tar")
    for number, found in enumerate(stored(small, folder)):
        assert found == sample(small, number)


def test_images_have_the_sizes_they_are_said_to_have():
    small = corpus_of("I", LEAST)
    sizes = [len(sample(small, number)["jpg"]) for number in range(24)]
    assert all(LEAST_BYTES <= size <= MOST_BYTES for size in sizes)


def test_a_corpus_is_made_once_and_anew_for_other_parameters(place):
    small = corpus_of("K", LEAST)
    folder = make(small, place, "tar")
    before = (folder / "manifest.json").stat().st_mtime_ns
    make(small, place, "tar")
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    folder.with_name("tar.stamp.json").write_text("another")
    make(small, place, "tar")
    assert (folder / "manifest.json").stat().st_mtime_ns > before


def given(samples):
    return Opened(items=samples, item_samples=1, columns=one_sample)


def test_a_digest_ignores_the_order_and_nothing_else(place):
    small = corpus_of("T", LEAST)
    samples = list(stored(small, make(small, place, "tar")))
    whole = Digest(**checked(given(samples), small, RAW))
    assert not Digest(**checked(given(samples[::-1]), small, RAW)).differs_from(whole)
    repeated = [*samples[1:], samples[1]]
    assert "digest" in Digest(**checked(given(repeated), small, RAW)).differs_from(whole)
    fewer = Digest(**checked(given(samples[1:]), small, RAW))
    assert "95 samples arrived" in fewer.differs_from(whole)
    swapped = [{**samples[0], "txt": samples[1]["txt"]}, *samples[1:]]
    assert "digest" in Digest(**checked(given(swapped), small, RAW)).differs_from(whole)


def test_images_of_another_brightness_are_told_from_those_of_the_corpus():
    one = Digest(samples=2, total=7, brightness=200.0)
    assert not Digest(samples=2, total=7, brightness=201.0).differs_from(one)
    assert "brightness" in Digest(samples=2, total=7, brightness=210.0).differs_from(one)


def test_a_pass_is_timed_to_its_end_and_a_slow_one_to_the_limit():
    small = corpus_of("T", LEAST)
    whole = timed(given(range(small.num_samples)), small, seconds=60.0)
    assert (whole["samples"], whole["whole"]) == (96, True)
    stopped = timed(given(iter(range(10**9))), small, seconds=0.0)
    assert (stopped["samples"], stopped["whole"]) == (256, False)
    assert first(given([1]))["seconds"] > 0


def test_an_iterator_is_made_when_the_clock_runs_and_outlives_what_was_measured():
    class Items:
        made = gone = 0

        def __iter__(self):
            Items.made += 1
            try:
                yield from range(10**9)
            finally:
                Items.gone += 1

    small = corpus_of("T", LEAST)
    opened = held(Opened(items=Items(), item_samples=1, columns=many_samples))
    assert Items.made == 0
    assert not timed(opened, small, seconds=0.0)["whole"]
    assert (Items.made, Items.gone) == (1, 0)
    del opened
    assert Items.gone == 1


def only_in_order(place, rounds):
    options = options_of(
        parsed(
            [
                *("--only", "K,tarfile", "--divide", str(LEAST), "--rounds", str(rounds)),
                *("--seconds", "5", "--work", str(place)),
            ]
        )
    )
    chosen = [each for each in loaders() if each.name in {"cat", "floor", "tarfile"}]
    return options, [turn for turn in planned(chosen, options) if turn.mode == RAW]


def test_rounds_fill_every_series_and_a_loader_that_gives_too_little_is_not_timed(place):
    options, turns = only_in_order(place, rounds=2)
    make(corpus_of("K", LEAST), place, "tar")
    forgetful = Loader(name="nobody", form="tar", opens={RAW: lambda work: given([])})
    unknown = Turn(
        forgetful,
        turns[0].corpus,
        RAW,
        "time",
        Series(loader="nobody", corpus="K", measurement=RAW, command=""),
    )
    measure([*turns, unknown], options, say=lambda what: None)
    assert {turn.loader.name: len(turn.series.values) for turn in turns} == {
        "cat": 2,
        "floor": 2,
        "tarfile": 2,
    }
    assert all(value > 0 for turn in turns for value in turn.series.values)
    assert unknown.series.failed
    assert not unknown.series.values


def test_a_process_that_hangs_is_ended_at_its_limit():
    ran = run(["-c", "import threading; threading.Event().wait()"], is_peer=False, limit_s=0.5)
    assert ran.result is None
    assert "no result within" in ran.reason


def test_a_process_that_fails_gives_its_reason():
    ran = run(["-c", "raise ValueError('no shards')"], is_peer=False, limit_s=20)
    assert ran.reason == "ValueError: no shards"


def test_memory_is_that_of_the_process_and_what_it_started():
    held = "import os, sys, time; b = bytearray(os.urandom(64 << 20)); time.sleep(0.3)"
    code = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {held!r}]); print('{{}}')"
    )
    ran = run(["-c", code], is_peer=False, limit_s=20, watch=True)
    assert ran.result == {}
    assert ran.worker_mb > 64
    assert ran.total_mb > ran.worker_mb
    assert held_mb(2**30) == 0.0


def series(loader, values, *, measurement=RAW, corpus="T", **more):
    made = Series(loader=loader, corpus=corpus, measurement=measurement, command="do it", **more)
    made.values = values
    made.whole = [True] * len(values)
    return made


def test_a_target_is_judged_by_the_ratio_of_medians():
    found = [
        series("shardloader", [400.0, 900.0, 500.0]),
        series("webdataset", [10.0, 11.0, 9.0]),
        series("floor", [1000.0, 1000.0, 1000.0]),
        series("LitData", [1.0], failed="its digest differs"),
    ]
    rows = {
        row["against"]: row
        for row in reached(found)
        if (row["measurement"], row["corpus"]) == (RAW, "T")
    }
    assert rows["webdataset"]["reached"] == 50.0
    assert rows["floor"]["reached"] == 0.5
    assert rows["LitData"]["reached"] is None


def test_the_note_holds_medians_spread_targets_and_what_failed():
    found = [
        series("shardloader", [400.0, 900.0, 500.0]),
        series("webdataset", [10.0, 11.0, 9.0]),
        series("MDS", [], failed="its digest differs"),
        series("shardloader", [2.0], measurement="first"),
        series("shardloader", [150.0], measurement="memory", workers_mb=[60.0]),
    ]
    note = markdown(found, ABOUT)
    assert "| shardloader | 500 (400 to 900) |" in note
    assert "| raw | T | webdataset | 40 | 50.00 | yes |" in note
    assert "| MDS | failed |" in note
    assert "- MDS, raw, T: its digest differs" in note
    assert "- slowpoke: not installed: no wheel" in note
    assert "| 150 (150 to 150) | 60 (60 to 60) |" in note


def test_a_picture_is_drawn(tmp_path):
    draw([series("shardloader", [4.0, 9.0]), series("cat", [10.0])], tmp_path / "feeding.png")
    assert (tmp_path / "feeding.png").read_bytes().startswith(b"\x89PNG")


def test_only_what_is_asked_for_is_planned(place):
    options = options_of(parsed(["--only", "T", "--only", "WebDataset,litdata"]))
    assert options.corpora == ("T",)
    names = {each.name for each in loaders() if options.wants(each)}
    assert {"webdataset", "LitData", "cat", "floor", "shardloader"} <= names
    assert "MDS" not in names


def test_every_package_of_the_peers_is_pinned_and_torch_comes_first():
    packages = asked_for(PINNED.read_text())
    assert packages[0].startswith("torch==")
    assert all("==" in package for package in packages)
    assert len(set(packages)) == len(packages)
