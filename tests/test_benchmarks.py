"""The benchmarks' code runs, and what it measures is what it says; no time is judged here."""

from __future__ import annotations

import re

import pytest

from benchmarks import (
    flatness,
    indexing,
    memory,
    metering,
    planning,
    resume,
    verifying,
    writing_memory,
)


def test_planning_is_measured_for_every_window():
    figures = planning.report(num_shards=200)
    assert figures["shards"] == 200
    assert set(figures["microseconds_a_sample"]) == {str(window) for window in planning.WINDOWS}
    for costs in figures["microseconds_a_sample"].values():
        assert set(costs) == {"first", "middle", "last"}
        assert all(cost > 0 for cost in costs.values())
    assert figures["setup"]["seconds"] > 0
    assert figures["manifest"]["mb"] >= 0


def test_a_resume_decodes_only_what_it_delivers():
    figures = resume.report(num_samples=10 * resume.BATCH, rounds=1)
    assert figures["decoded"] == figures["delivered"] == resume.BATCH
    assert figures["state_bytes"] < 1024
    assert len(figures["cold_seconds"]) == len(figures["resumed_seconds"]) == 1


def test_the_cost_of_a_sample_is_told_for_each_number_of_shards(monkeypatch, capsys):
    words = ["--shards", "2", "5", "--samples-a-shard", "10", "--rounds", "2"]
    monkeypatch.setattr("sys.argv", ["flatness.py", *words])
    flatness.main()
    told = capsys.readouterr().out
    assert re.findall(r"^ *([0-9]+) shards", told, re.MULTILINE) == ["2", "5"]
    assert "most shards / fewest: " in told


def test_indexing_is_measured_against_the_careful_parser():
    figures = indexing.report(num_members=200, rounds=1)
    kinds = ("plain, as written", "plain, as read", "webdataset, as written", "webdataset, as read")
    for kind in kinds:
        assert min(figures[kind][way] for way in ("by columns", "carefully")) > 0


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset's
def test_verifying_is_measured_beside_other_readers_of_the_same_samples():
    figures = verifying.report(num_samples=60, rounds=1)
    assert set(figures) == {
        "verify",
        "verify, headers alone",
        "verify --decode",
        "tarfile",
        "webdataset",
    }
    assert min(figures.values()) > 0


def test_the_memory_of_a_worker_is_told_by_window_and_epoch():
    words = ["--samples", "2000", "--windows", "100", "--workers", "1", "--epochs", "2"]
    figures = memory.report(memory._options(words))
    assert set(figures) == {"idle", "window 100"}
    assert all(len(peaks) == 2 and min(peaks) > 0 for peaks in figures.values())


def test_what_the_counts_cost_a_step_is_told_beside_the_step(monkeypatch, capsys):
    words = ["--samples", "400", "--batches", "4", "--rounds", "2", "--batch-size", "8"]
    monkeypatch.setattr("sys.argv", ["metering.py", *words])
    metering.main()
    told = capsys.readouterr().out
    assert re.findall(r"^(bytes|values): [0-9.]+ microseconds", told, re.MULTILINE) == [
        "bytes",
        "values",
    ]
    assert "of a step of 10 ms" in told


def test_writing_takes_no_more_memory_for_an_input_of_five_times_the_size():
    words = ["--shuffled-mb", "60", "300", "--members", "4000", "20000"]
    peaks = dict(writing_memory.report(writing_memory._options(words)))
    few, many, small, large = peaks.values()
    assert many < few + 30  # an index of 20,000 members is a few megabytes
    # what differs is how full the buffers of each process are: were the input held, it were 240
    assert large < small + 150
    assert large < 500
