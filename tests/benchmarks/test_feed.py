"""The benchmark of fed steps runs under torchrun, and says what it measured; no time is judged."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch

import shardloader as sl
from benchmarks import feed
from benchmarks.training.loop import Times, bytes_of, endless, synthetic
from benchmarks.training.measure import opened, summed
from benchmarks.training.profiles import PROFILES, profile_of
from benchmarks.training.tables import markdown, rows

LEAST = 10**6  # a divisor that leaves every corpus its fewest samples


def test_two_ranks_are_fed_and_the_three_files_are_written(tmp_path):
    words = ["--divide", str(LEAST), "--seconds", "0.2", "--no-peers", "--only", "K-10ms,shardl"]
    words += ["--work", str(tmp_path / "work"), "--results", str(tmp_path)]
    found = feed.report(feed.parsed(words))
    assert not found["failed"]
    (run,) = json.loads((tmp_path / "feed.json").read_text())["runs"]
    assert (run["loader"], run["ranks"]) == ("shardloader", 2)
    for what in ("limit", "fed"):
        first, second = run["profiles"]["K-10ms"][what]["by_rank"]
        assert first["steps"] == second["steps"] > 0
        assert 0 <= first["wait_share"] < 1
        assert first["samples_per_s"] > 0
    assert "| K-10ms | shardloader |" in (tmp_path / "feed.md").read_text()
    assert (tmp_path / "feed.png").read_bytes().startswith(b"\x89PNG")


def times(waits, computes):
    steps = len(waits)
    taken = Times(waits=waits, copies=[0.0] * steps, computes=computes, reduces=[0.0] * steps)
    taken.seconds, taken.bytes_a_batch = 10.0, 2_000_000
    return taken


def test_the_share_of_waiting_and_the_skew_are_those_of_the_ranks():
    found = summed([times([1.0, 1.0], [1, 2]), times([0.0, 4.0], [1, 1])], profile_of("K-10ms"))
    assert [each["wait_share"] for each in found["by_rank"]] == [0.2, 0.4]
    assert found["wait_share"] == pytest.approx(0.3)
    assert found["skew_ms"] == pytest.approx(1000 * (1.0 + 2.0) / 2)
    assert found["samples_per_s"] == pytest.approx(2 * 2 * 8 / 10)
    assert found["mb_per_s"] == pytest.approx(2 * 2 * 2 / 10)


def test_a_run_in_two_parts_counts_as_one():
    whole = times([1.0], [1])
    whole.add(times([2.0, 3.0], [1, 1]))
    assert (whole.waits, whole.seconds) == ([1.0, 2.0, 3.0], 20.0)


def test_a_target_asks_for_little_waiting_and_for_the_rate_of_the_limit():
    def run(wait_share, rate):
        fed = {"wait_share": wait_share, "samples_per_s": rate, "mb_per_s": 1.0, "skew_ms": 0.1}
        fed["by_rank"] = [{"wait_ms": {"most": 3.0}}]
        about = {"wait_limit": 0.02}
        profile = {"about": about, "fed": fed, "limit": {"samples_per_s": 100.0}}
        return {"loader": "shardloader", "device": "cpu", "profiles": {"K-10ms": profile}}

    assert [row["reached"] for row in rows([run(0.01, 98.0)])] == [True]
    assert [row["reached"] for row in rows([run(0.03, 98.0)])] == [False]
    assert [row["reached"] for row in rows([run(0.01, 90.0)])] == [False]
    assert [row["reached"] for row in rows([{**run(0.01, 98.0), "loader": "MDS"}])] == [None]


def test_the_note_tells_the_share_of_the_copy_engine_where_there_is_one():
    rates = {"wait_share": 0.01, "samples_per_s": 99.0, "mb_per_s": 1.0, "skew_ms": 0.1}
    fed = {**rates, "by_rank": [{"wait_ms": {"most": 3.0}}]}
    profile = {"about": {"wait_limit": None}, "fed": fed, "limit": {"samples_per_s": 100.0}}
    runs = [
        {"loader": name, "device": "a GPU", "profiles": {"vit": {**profile, **more}}}
        for name, more in (("shardloader", {"copy_engine_share": 0.25}), ("MDS", {}))
    ]
    machine = {"processor": "abacus", "cores": 2, "load_before": 0.0}
    about = {"command": "feed", "date": "2026-01-01", "machine": machine, "ranks": 2, "rounds": 1}
    told = markdown(runs, {**about, "failed": {}})
    assert "| vit | shardloader | 25.00% |" in told
    assert "| vit | MDS | 25" not in told
    assert "busy" not in markdown(runs[1:], {**about, "failed": {}})


def test_shardloader_copies_by_itself_and_the_limit_starts_on_the_host(tmp_path, monkeypatch):
    given = {}

    class Loader:
        def __init__(self, *_, **options):
            given.update(options)

    monkeypatch.setattr(sl, "ShardLoader", Loader)
    opened(
        "shardloader", profile_of("K-10ms"), torch.device("cuda", 1), divide=LEAST, work=tmp_path
    )
    assert given["device"] == "cuda:1"

    class There(torch.Tensor):
        def cpu(self, *_, **__):
            return torch.ones(2)

    (first,) = islice(synthetic(iter([{"x": torch.zeros(2).as_subclass(There), "t": ["a"]}])), 1)
    assert (first["x"].tolist(), first["t"]) == ([1, 1], ["a"])


def test_a_note_of_loaders_that_failed_names_the_reason(tmp_path):
    machine = {"processor": "abacus", "cores": 2, "load_before": 0.0}
    about = {"command": "feed", "date": "2026-01-01", "machine": machine, "ranks": 2, "rounds": 1}
    assert "- MDS: no wheel" in markdown([], {**about, "failed": {"MDS": "no wheel"}})


def test_the_limit_repeats_one_batch_and_a_feed_goes_on_after_its_epoch():
    batches = endless([{"a": "one"}, {"a": "two"}])
    assert [next(batches)["a"] for _ in range(3)] == ["one", "two", "one"]
    limit = synthetic(iter([{"a": "one"}]))
    assert [next(limit)["a"] for _ in range(3)] == ["one"] * 3
    assert bytes_of({"txt": ["ab", b"cde"], "json": [{"a": 1}], "__key__": ["k"]}) == 5


def test_shardloader_is_measured_whatever_is_asked_for():
    assert feed.chosen(feed.parsed(["--only", "MDS"])) == ["shardloader", "MDS"]
    assert feed.chosen(feed.parsed(["--no-peers"])) == ["shardloader", "webdataset"]
    assert feed.parsed([]).profiles == [profile.name for profile in PROFILES]
