"""The benchmarks' code runs, and what it measures is what it says; no time is judged here."""

from __future__ import annotations

from benchmarks import planning, resume


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
