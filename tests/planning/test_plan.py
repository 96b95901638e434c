"""What plan says, from a path, a manifest, or counts; at a state; and its audit."""

from __future__ import annotations

import shutil
from itertools import islice
from typing import Any

import numpy as np
import pytest

import shardloader as sl
from shardloader.planning import planned
from tests.corpora import kept_corpus, loader_of, loaders_of, make_corpus

COUNTS = (5, 0, 4, 7)


def indexes(plan):
    return [
        [plan.batch(step, rank).index.tolist() for rank in range(plan.dealing.world_size)]
        for step in range(plan.steps)
    ]


def flat(steps):
    return [number for step in steps for batch in step for number in batch]


def test_a_path_a_manifest_and_counts_make_one_plan():
    manifest = sl.ShardDataset(kept_corpus(COUNTS)).manifest
    options: dict[str, Any] = {"batch_size": 3, "world_size": 2, "seed": 5}
    sources: list[Any] = [
        kept_corpus(COUNTS),
        str(kept_corpus(COUNTS)),
        [kept_corpus(COUNTS) / name for name in manifest.names],
        manifest,
        list(COUNTS),
        np.array(COUNTS),
    ]
    plans = [sl.plan(source, **options) for source in sources]
    assert all(indexes(each) == indexes(plans[0]) for each in plans)
    assert plans[0].names == manifest.names
    assert plans[-1].names is None


def test_a_plan_of_a_manifest_reads_no_shard(tmp_path):
    manifest = sl.ShardDataset(make_corpus(tmp_path / "corpus", COUNTS)).manifest
    shutil.rmtree(tmp_path / "corpus")
    plan = sl.plan(manifest, batch_size=3)
    assert plan.steps == 6
    assert plan.batch(0, 0).shard.size == 3


def test_a_batch_of_a_plan_has_all_that_the_loaders_batch_has():
    plan = sl.plan(COUNTS, batch_size=3, world_size=2)
    last = plan.batch(2, 1)
    assert last.valid.tolist() == [True, True, False]
    assert last.global_valid == 4
    starts = np.cumsum([0, *COUNTS])
    assert (starts[last.shard] + last.sample == last.index).all()


def test_a_plan_of_a_state_goes_on_as_the_loader_would():
    loader = loader_of(kept_corpus(COUNTS), batch_size=4, seed=3, shuffle=sl.Shuffle(window=5))
    list(islice(loader, 2))
    plan = sl.plan(kept_corpus(COUNTS), batch_size=1, world_size=2, state=loader.state_dict())
    assert (plan.steps, plan.first_step) == (4, 4)
    whole = sl.plan(COUNTS, batch_size=4, seed=3, shuffle=sl.Shuffle(window=5))
    assert sorted(flat(indexes(plan))) == sorted(flat(indexes(whole)[2:]))


def test_a_plan_of_a_state_at_an_epochs_end_is_of_the_next_epoch():
    loader = loader_of(kept_corpus(COUNTS), batch_size=4)
    list(loader)
    plan = sl.plan(kept_corpus(COUNTS), batch_size=4, state=loader.state_dict())
    assert indexes(plan) == indexes(sl.plan(COUNTS, batch_size=4, epoch=1))


def test_a_plan_of_an_unshuffled_state_takes_the_datasets_own_order():
    loader = loader_of(kept_corpus(COUNTS), batch_size=4, shuffle=False)
    plan = sl.plan(kept_corpus(COUNTS), batch_size=2, world_size=4, state=loader.state_dict())
    assert flat(indexes(plan)) == list(range(16))


def test_a_state_of_another_dataset_is_refused():
    state = loader_of(kept_corpus(COUNTS), batch_size=4).state_dict()
    with pytest.raises(sl.CheckpointError, match="give the source of that run"):
        sl.plan(kept_corpus((1,)), batch_size=4, state=state)


def test_a_state_that_consumed_more_than_the_counts_hold_is_refused():
    state = loader_of(kept_corpus(COUNTS), batch_size=4).state_dict()
    with pytest.raises(sl.CheckpointError, match=r"16 positions.*consumed 17"):
        sl.plan(COUNTS, batch_size=4, state=state | {"consumed": 17})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"world_size": 0}, "world_size must be at least 1"),
        ({"world_size": 1.5}, "world_size must be an integer"),
        ({"num_workers": -1}, "num_workers must be at least 0"),
        ({"epoch": -1}, "epoch must be at least 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"even": "fill"}, "even= is one of"),
        ({"shuffle": 5}, "window"),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be at least 1"),
        ({"state": {}}, "a state of ShardLoader names its format version"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_makes_no_sense_is_refused_in_words(options, words):
    with pytest.raises(sl.UsageError, match=words):
        sl.plan(COUNTS, **{"batch_size": 2, **options})


@pytest.mark.parametrize("counts", [[1.5], [-1], [[1, 2]]])
def test_counts_that_are_none_are_refused(counts):
    with pytest.raises(sl.UsageError, match=r"counts|holds at least 0 samples"):
        sl.plan(counts, batch_size=2)


@pytest.mark.parametrize(("step", "rank"), [(3, 0), (-1, 0), (0, 2), (0, -1), (0.5, 0)])
def test_a_step_and_a_rank_that_the_plan_does_not_have_are_refused(step, rank):
    with pytest.raises(sl.UsageError, match="must be"):
        sl.plan(COUNTS, batch_size=3, world_size=2).batch(step, rank)


def test_a_plan_with_nothing_left_has_no_step():
    plan = sl.plan([0], batch_size=3)
    assert plan.steps == 0
    with pytest.raises(sl.UsageError, match="no step"):
        plan.batch(0, 0)
    assert plan.audit().tally.samples == 0
    assert plan.audit().batches == (0, 0)


@pytest.mark.parametrize(
    ("even", "pads", "omitted", "batches"),
    [("pad", 4, 0, (2, 2)), ("drop", 0, 6, (1, 1)), ("join", 0, 0, (2, 2))],
)
def test_an_audit_counts_what_a_policy_does(even, pads, omitted, batches):
    audit = sl.plan(COUNTS, batch_size=5, world_size=2, even=even).audit()
    assert audit.tally.pads == pads
    assert audit.omitted == omitted
    assert audit.batches == batches
    assert audit.tally.missing.size == omitted
    assert audit.tally.is_exact is (omitted == 0)


def test_an_audit_under_join_tells_that_ranks_have_different_numbers_of_batches():
    assert sl.plan(COUNTS, batch_size=5, world_size=3, even="join").audit().batches == (1, 2)


def test_an_audit_that_would_take_for_ever_is_refused(monkeypatch):
    monkeypatch.setattr(planned, "SAMPLES_TO_AUDIT", 10)
    with pytest.raises(sl.UsageError, match="at most 10, and 16 are left"):
        sl.plan(COUNTS, batch_size=5).audit()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"world_size": 2, "global_batch": 8, "batch_size": 4}, {"world_size": 1}),
        ({"world_size": 2, "global_batch": 8, "batch_size": 4}, {"world_size": 4}),
        ({"world_size": 2, "batch_size": 2, "accumulate": 2}, {"world_size": 1, "accumulate": 4}),
        ({"world_size": 1, "batch_size": 4, "accumulate": 1}, {"world_size": 2}),
    ],
)
def test_a_plan_of_grouped_steps_goes_on_from_a_state_as_the_loader_does(before, after):
    counts, options = (13, 9, 11), {**before, **after}
    first = loaders_of(kept_corpus(counts), **before)
    for loader in first:
        list(loader)
    state = first[0].state_dict()
    resumed = loaders_of(kept_corpus(counts), **options)
    made = sl.plan(counts, state={**state, "dataset": ""}, **options)
    for rank, loader in enumerate(resumed):
        loader.load_state_dict(state)
        assert loader.state_dict()["grid"] == made.checkpoint.to_state()["grid"]
        assert loader.global_batch == made.checkpoint.global_batch
        for step, batch in enumerate(loader):
            planned = made.batch(step, rank)
            assert batch["__index__"].tolist() == planned.index.tolist()
            assert batch["__group_valid__"] == planned.group_valid


def test_a_change_of_topology_keeps_the_global_batch():
    made = sl.plan([100], global_batch=24, batch_size=4, world_size=3)
    assert (made.dealing.batch_size, made.dealing.accumulate) == (4, 2)
    changed = made.change(step=2, world_size=2)
    assert (changed.dealing.batch_size, changed.dealing.accumulate) == (4, 3)
    with pytest.raises(sl.UsageError, match="24 samples are no multiple of 5 ranks"):
        made.change(step=2, world_size=5)


def test_a_plan_without_a_batch_is_refused():
    with pytest.raises(sl.UsageError, match="give batch_size=, or global_batch="):
        sl.plan([100])
