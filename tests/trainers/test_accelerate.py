"""Accelerate itself, on two ranks: killed in mid-epoch, resumed, and ended on one rank.

What `prepare` makes of loaders is in tests/integration/test_scenarios_accelerate.py.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tests.trainers.launch import Run

STEPS = 11
UPDATES = 6  # of two steps, the last of one


@pytest.fixture(scope="module")
def run(tmp_path_factory, ranks):
    run = Run.begin(tmp_path_factory.mktemp("accelerate"))
    ranks.launch(run, "accelerate_train", 2, ends="killed", name="a", die_at=5)
    # One step into the second epoch.
    again = {"num_workers": 1, "resume": 2, "die_at": STEPS - 4 + 1}
    ranks.launch(run, "accelerate_train", 2, ends="killed", name="b", **again)
    # The end of the first.
    last = {"batch_size": 4, "resume": UPDATES, "skips": True}
    ranks.launch(run, "accelerate_train", 1, name="c", **last)
    return run


def test_a_run_killed_twice_reads_every_sample_once_in_each_epoch(run):
    history = run.assert_exact(epochs=2)
    assert history.attempts == 3
    assert history.superseded > 0


def test_all_ranks_write_one_file_and_it_is_whole(run):
    states = [
        torch.load(run.out / "kept" / str(update) / "dl_state_dict.bin", weights_only=True)
        for update in range(1, 2 * UPDATES + 1)
    ]
    assert [state["epoch"] for state in states] == [0] * (UPDATES - 1) + [1] * UPDATES + [2]
    assert states[1]["consumed"] == 4 * 4
    assert all(
        (one["epoch"], one["consumed"]) < (two["epoch"], two["consumed"])
        for one, two in pairwise(states)
    )


def test_accumulate_makes_the_short_update_at_the_epochs_end(run):
    told = run.told("c-0")
    assert told["synced"] == [False, True] * (STEPS // 2) + [True]
    assert told["state"]["epoch"] == 2


def test_skip_first_batches_is_refused_with_what_to_do(run):
    said = run.told("c-0")["skipped"]
    assert "loader.skip(" in said
    assert "load" in said
