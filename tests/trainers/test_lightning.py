"""Lightning itself, on two ranks: killed, resumed, and in each way that it takes loaders."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.corpora import each_once
from tests.trainers.launch import NUM_SAMPLES, Run, Started

STEPS = 11


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that lost a rank in its second epoch.

    It has Lightning's own launcher, whose first rank knows of no other when its loader is made.
    """
    run = Run.begin(tmp_path_factory.mktemp("lightning"))
    options = {"tag": "a", "devices": 2, "batch_size": 2, "die_at": STEPS + 3}
    started = Started(run, "lightning_train", **options)
    try:
        assert started.wait() != 0, started.printed()
        assert (run.out / "kept" / f"a-step={STEPS + 2}.ckpt").exists(), started.printed()
    finally:
        started.end()
    return run


def test_what_is_left_of_a_killed_run_is_exact(killed):
    history = killed.history()
    assert not history.faults(unfinished=True)
    assert [epoch.tally.samples for epoch in history.epochs] == [NUM_SAMPLES, 12]


def test_a_run_killed_twice_goes_on_from_any_step_and_ends_on_one_rank(killed, ranks):
    """The module keeps the loader's state: in mid-epoch, at an epoch's end, and after it."""
    # The epoch's last step. What Lightning saves after it counts as an epoch that is over.
    options = {"tag": "b", "devices": 2, "batch_size": 2, "die_at": STEPS + 5, "num_workers": 1}
    resume = f"a-step={STEPS}"
    ranks.launch(killed, "lightning_train", 2, ends="killed", resume=resume, **options)
    options = {"tag": "c", "devices": 1, "batch_size": 4}
    ranks.launch(killed, "lightning_train", 1, resume=f"b-step={STEPS + 3}", **options)
    history = killed.assert_exact(epochs=2)
    assert history.attempts == 3
    assert history.superseded > 0
    assert history.epochs[1].steps == STEPS


@pytest.fixture(scope="module")
def ways(tmp_path_factory, ranks):
    run = Run.begin(tmp_path_factory.mktemp("lightning"))
    ranks.launch(run, "lightning_ways", 2)
    return run, [run.told(f"rank-{rank}") for rank in (0, 1)]


def test_the_loader_is_used_as_it_is_and_validation_does_not_touch_its_position(ways):
    run, ranks = ways
    run.assert_exact(epochs=2, log="validation")
    for rank in ranks:
        assert rank["validation"]["untouched"]
        assert rank["validation"]["epoch"] == 2
    # each epoch two passes, and the sanity check's two batches of 4
    assert sum(rank["validation"]["validated"] for rank in ranks) == 4 * NUM_SAMPLES + 8


def test_a_loader_that_is_asked_for_again_goes_on_with_the_next_epoch(ways):
    run, _ = ways
    run.assert_exact(epochs=2, log="reload")


def test_epochs_that_are_limited_begin_differently(ways):
    run, ranks = ways
    assert {rank["limit"]["steps"] for rank in ranks} == {6}
    history = run.history("limit")
    assert [epoch.steps for epoch in history.epochs] == [3, 3]
    assert not history.repeated_orders


def test_a_loader_that_is_built_anew_gives_what_the_first_would(ways):
    _, ranks = ways
    assert {rank["overfit"]["steps"] for rank in ranks} == {6}
    given = chain.from_iterable(chain.from_iterable(rank["predict"]["given"] for rank in ranks))
    assert each_once(given, NUM_SAMPLES)


def test_without_hooks_lightnings_own_states_resume_in_mid_epoch(ways):
    run, _ = ways
    history = run.history("each-step")
    assert not history.faults(unfinished=True)
    assert history.superseded > 0
    assert [epoch.tally.samples for epoch in history.epochs] == [NUM_SAMPLES, 8]


def test_an_epoch_that_lightning_leaves_is_told(ways):
    """With max_steps it takes an epoch's end for the middle of an epoch, and ends that one."""
    run, ranks = ways
    assert [epoch.epoch for epoch in run.history("epochs-end").epochs] == [0, 1, 2]
    for rank in ranks:
        assert any("epoch 1 was broken off with 39" in said for said in rank["epoch's end"]["said"])
        assert rank["each step"]["said"] == []
