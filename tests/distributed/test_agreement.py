"""Ranks compare what they are about to read: a difference is the same error on all of them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from torch.multiprocessing.spawn import start_processes

import shardloader as sl
from shardloader.order.agreement import FIELDS, absent, verdict
from tests.corpora import kept_corpus
from tests.distributed.agreeing import start

COUNTS = (9, 8, 7)
STAND: dict[str, Any] = {
    "world_size": 4,
    "dataset": "d" * 32,
    "seed": 0,
    "window": 10,
    "steps_per_epoch": None,
    "even": "pad",
    "batch_size": 2,
    "epoch": 1,
    "consumed": 16,
    "grid": [4, 1, 2],
    "num_steps": 3,
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_difference_in_any_field_is_told_with_its_ranks_and_a_way_out(name):
    stands = [STAND, STAND | {name: "other"}, STAND, STAND]
    told = verdict(stands)
    assert told is not None
    assert f"differ in {name}: {STAND[name]!r} on ranks 0, 2-3; 'other' on rank 1: " in told
    assert told.endswith(FIELDS[name])
    assert verdict([STAND] * 4) is None


def test_those_who_did_not_come_are_named_in_runs():
    assert "after 3 s ranks 1, 4-6 had not" in absent([1, 4, 5, 6], 3.0)
    assert "after 0.5 s rank 2 had not" in absent([2], 0.5)


def outcome(tmp_path, *ways: dict[str, Any]) -> list[str]:
    """What each rank told; a hang fails by the test's own time limit."""
    corpus = str(kept_corpus(COUNTS))
    context = start_processes(
        start, (corpus, str(tmp_path), list(ways)), len(ways), join=False, start_method="fork"
    )
    deadline = time.monotonic() + 60
    while not context.join(timeout=10):  # it returns when the next rank ends
        assert time.monotonic() < deadline, "a rank hangs"
    return [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(len(ways))]


def state_after(steps: int) -> dict[str, Any]:
    dataset = sl.ShardDataset(
        kept_corpus(COUNTS),
        shuffle=sl.Shuffle(window=10),
        topology=sl.Topology(rank=0, world_size=2),
    )
    loader: Any = sl.ShardLoader(dataset, batch_size=2)
    loader.skip(steps)
    return dict(loader.state_dict())


def test_ranks_that_agree_read(tmp_path):
    state = state_after(2)
    assert outcome(tmp_path, {"state": state}, {"state": state}) == ["read 2", "read 2"]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"state": 2}, "differ in consumed: 0 on rank 0; 8 on rank 1: load the same checkpoint"),
        ({"epoch": 1}, "differ in epoch: 0 on rank 0; 1 on rank 1"),
        ({"seed": 5}, "differ in seed: 0 on rank 0; 5 on rank 1"),
        ({"window": 4}, "differ in window: 10 on rank 0; 4 on rank 1"),
        ({"even": "drop"}, "differ in even: 'pad' on rank 0; 'drop' on rank 1"),
        ({"batch_size": 3}, "differ in batch_size: 2 on rank 0; 3 on rank 1"),
        ({"num_workers": 2}, "differ in grid: [2, 1, 2] on rank 0; [2, 2, 2] on rank 1"),
        ({"steps_per_epoch": 3}, "differ in steps_per_epoch: None on rank 0; 3 on rank 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_ranks_that_differ_all_raise_the_same_sentence(tmp_path, other, says):
    if "state" in other:
        other = {"state": state_after(other["state"])}
    first, second = outcome(tmp_path, {}, other)
    assert says in first
    assert first == second


def test_another_dataset_on_one_rank_is_told(tmp_path):
    first, second = outcome(tmp_path, {}, {"corpus": str(kept_corpus((9, 8)))})
    assert "differ in dataset: " in first
    assert first == second


@pytest.mark.parametrize("absentee", [0, 1])
def test_a_rank_that_never_comes_is_an_error_on_the_others_in_time(tmp_path, absentee):
    ways: list[dict[str, Any]] = [{}, {}, {}]
    ways[absentee] = {"stays_away": True}
    told = outcome(tmp_path, *ways)
    others = [each for rank, each in enumerate(told) if rank != absentee]
    assert all(
        f"rank {absentee} had not: iterate the loader on all ranks" in each for each in others
    )


def test_without_a_process_group_nobody_is_asked():
    dataset = sl.ShardDataset(kept_corpus(COUNTS), topology=sl.Topology(rank=0, world_size=2))
    loader: Any = sl.ShardLoader(dataset, batch_size=2, agreement_timeout=0.001)
    assert len(next(iter(loader))["__index__"]) == 2
