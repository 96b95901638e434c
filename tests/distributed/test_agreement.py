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
from tests.distributed.agreeing import PATIENCE_S, start

COUNTS = (9, 8, 7)
STAND: dict[str, Any] = {
    "world_size": 4,
    "dataset": "d" * 32,
    "next_dataset": "d" * 32,
    "seed": 0,
    "window": 10,
    "steps_per_epoch": None,
    "even": "pad",
    "batch_size": 2,
    "accumulate": 1,
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
    assert "let no two data-parallel ranks give the same rank" in absent([2], 0.5)


def outcomes(tmp_path, cases: list[list[dict[str, Any]]]) -> list[list[str]]:
    """What each rank told, case by case, in one launch; a hang fails in a minute."""
    corpus, num_ranks = str(kept_corpus(COUNTS)), len(cases[0])
    context = start_processes(
        start, (corpus, str(tmp_path), cases), num_ranks, join=False, start_method="fork"
    )
    deadline = time.monotonic() + 90
    try:
        while not context.join(timeout=10):  # it returns when the next rank ends
            assert time.monotonic() < deadline, "a rank hangs"
    finally:
        for process in context.processes:
            process.kill()
    of_rank = [
        json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(num_ranks)
    ]
    return [list(told) for told in zip(*of_rank, strict=True)]


def state_after(steps: int) -> dict[str, Any]:
    dataset = sl.ShardDataset(
        kept_corpus(COUNTS),
        shuffle=sl.Shuffle(window=10),
        topology=sl.Topology(rank=0, world_size=2),
    )
    loader: Any = sl.ShardLoader(dataset, batch_size=2)
    loader.skip(steps)
    return dict(loader.state_dict())


def test_ranks_that_agree_read_and_those_that_differ_all_raise_the_same_sentence(tmp_path):
    grid = sl.Grid(ranks=1, workers=1, batch=4)
    finished = state_after(6)  # of six steps
    told_of: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {"state": state_after(2)}, "consumed: 0 on rank 0; 8 on rank 1: load the same"),
        ({}, {"epoch": 1}, "epoch: 0 on rank 0; 1 on rank 1"),
        ({}, {"seed": 5}, "seed: 0 on rank 0; 5 on rank 1"),
        ({}, {"window": 4}, "window: 10 on rank 0; 4 on rank 1"),
        ({}, {"even": "drop"}, "even: 'pad' on rank 0; 'drop' on rank 1"),
        ({}, {"batch_size": 3}, "batch_size: 2 on rank 0; 3 on rank 1"),
        ({}, {"num_workers": 2}, "grid: [2, 1, 2] on rank 0; [2, 2, 2] on rank 1"),
        ({}, {"grid": grid}, "grid: [2, 1, 2] on rank 0; [1, 1, 4] on rank 1"),
        ({}, {"steps_per_epoch": 3}, "steps_per_epoch: None on rank 0; 3 on rank 1"),
        ({}, {"corpus": str(kept_corpus((9, 8)))}, "dataset: "),
        ({"state": finished}, {"state": finished, "epoch": 0}, "num_steps: 6 on rank 0; 0 on"),
    ]
    same = {"state": state_after(2)}
    cases = [[same, same], *([one, other] for one, other, _ in told_of), [same, same]]
    first, *differing, last = outcomes(tmp_path, cases)
    assert first == last == ["read 2", "read 2"]  # a difference does no harm to what comes later
    for (_, _, says), (one, other) in zip(told_of, differing, strict=True):
        assert f"differ in {says}" in one
        assert one == other


def test_ranks_of_different_world_sizes_and_one_that_alone_evaluates_are_told(tmp_path):
    topologies = [
        sl.Topology(rank=rank, world_size=size) for rank, size in ((0, 2), (1, 3), (2, 3))
    ]
    evaluation, by_size = outcomes(
        tmp_path,
        [
            [{"then": "evaluates"}, {"then": "trains on"}, {"then": "trains on"}],
            [{"topology": each} for each in topologies],
        ],
    )
    assert len(set(by_size)) == 1
    assert "differ in world_size: 2 on rank 0; 3 on rank 1" in by_size[0]
    assert len(set(evaluation)) == 1
    assert "is it only one rank that evaluates?" in evaluation[0]
    assert " had not" not in evaluation[0]  # nobody waited in vain


@pytest.mark.parametrize("absentee", [0, 1])
def test_a_rank_that_never_comes_is_an_error_on_the_others_in_time(tmp_path, absentee):
    ways: list[dict[str, Any]] = [{}, {}, {}]
    ways[absentee] = {"stays_away": True}
    begun = time.monotonic()
    (told,) = outcomes(tmp_path, [ways])
    assert time.monotonic() - begun < 2 * PATIENCE_S + 5 + 30  # and the start of three processes
    others = [each for rank, each in enumerate(told) if rank != absentee]
    assert all(
        f"rank {absentee} had not: iterate the loader on all ranks" in each for each in others
    )


def test_a_tensor_parallel_peer_that_did_not_load_the_checkpoint_is_told_to_all(tmp_path):
    """It comes when the others read already; they hear of it at their next start."""
    of = [sl.Topology(rank=rank, world_size=2) for rank in (0, 1)]
    usual: dict[str, Any] = {"state": state_after(2), "then": "lets others come"}
    ways = [{**usual, "topology": of[rank]} for rank in (0, 1, 0)]
    late = {"topology": of[1], "comes_late": True}
    (told,) = outcomes(tmp_path, [[*ways, late]])
    assert "those of rank 1 differ in consumed: 8 on process 1; 0 on process 3: load" in told[3]
    assert told == [told[3]] * 4


def test_without_a_process_group_nobody_is_asked():
    dataset = sl.ShardDataset(kept_corpus(COUNTS), topology=sl.Topology(rank=0, world_size=2))
    loader: Any = sl.ShardLoader(dataset, batch_size=2, agreement_timeout=0.001)
    assert len(next(iter(loader))["__index__"]) == 2
