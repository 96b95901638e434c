"""The table in the docs is what the simulation gives, and its parts are what they say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import scale

DOCS = Path(__file__).parents[2] / "docs/scale.md"


@pytest.mark.parametrize(("workload", "ranks"), [("images", 16_384), ("tokens", 128)])
def test_the_docs_hold_what_is_computed(workload, ranks):
    (chosen,) = (each for each in scale.WORKLOADS if each.name == workload)
    lines = DOCS.read_text().splitlines()
    assert scale.row(scale.asked(chosen, ranks)) in lines
    assert scale.HEAD[0] in lines


def test_a_shard_is_alive_from_its_first_sample_to_its_last():
    assert scale.most_alive(np.array([1, 1, 2, 2])) == 1
    assert scale.most_alive(np.array([1, 2, 1, 3, 2, 3])) == 2
    assert scale.most_alive(np.array([1, 2, 3, 1])) == 2
    assert scale.most_alive(np.array([1, 2, 3, 2, 1])) == 3


def test_what_all_ask_grows_with_the_ranks_and_what_a_node_asks_hardly():
    few, many = (scale.asked(scale.WORKLOADS[0], ranks) for ranks in (128, 1024))
    assert many.store_gb_per_s == pytest.approx(8 * few.store_gb_per_s, rel=0.01)
    assert many.node_gbit_per_s == pytest.approx(few.node_gbit_per_s, rel=0.01)
    assert few.epoch_hours == pytest.approx(8 * many.epoch_hours)
    assert few.fetched >= 1


def test_the_command_line_tells_rows_and_costs_as_json(capsys, monkeypatch):
    monkeypatch.setattr(scale, "measured", lambda: {"setup_seconds": 0.5})
    scale.main(["--json", "--measure", "--ranks", "256"])
    told = json.loads(capsys.readouterr().out)
    assert [row["ranks"] for row in told["asked"]] == [256, 256]
    assert told["measured"] == {"setup_seconds": 0.5}
