"""Whose rank is it? The order of the sources, and what travels to other processes."""

from __future__ import annotations

import json
import logging
import pickle
from typing import Any

import pytest
from torch import distributed
from torch.multiprocessing.spawn import spawn

import shardloader as sl
from shardloader.distributed.environment import from_environment, local_ranks
from shardloader.distributed.resolve import resolve_topology
from tests.corpora import each_once, kept_corpus
from tests.distributed.spawned import rank_reads

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4"}
SLURM_STEP = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "5"}
VARIABLES = (*TORCHRUN, *SLURM_STEP, "SLURM_NTASKS", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def group(tmp_path):
    """This process as rank 0 of an initialised group of one."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


def topology(rank, world_size):
    return sl.Topology(rank=rank, world_size=world_size)


@pytest.mark.parametrize(
    ("environment", "expected", "source"),
    [
        (TORCHRUN, topology(1, 4), "RANK and WORLD_SIZE of torchrun"),
        (SLURM_STEP, topology(2, 5), "SLURM_PROCID and SLURM_STEP_NUM_TASKS of a Slurm step"),
        (TORCHRUN | SLURM_STEP, topology(1, 4), "RANK and WORLD_SIZE of torchrun"),
    ],
    ids=["torchrun", "slurm", "torchrun in a slurm step"],
)
def test_a_launcher_says_the_rank(environment, expected, source):
    assert from_environment(environment) == (expected, source)


@pytest.mark.parametrize(
    "environment",
    [{}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, {"LOCAL_RANK": "1"}],
    ids=["nobody", "a script run by hand inside an allocation", "a local rank alone"],
)
def test_where_no_launcher_speaks_there_is_no_topology(environment):
    assert from_environment(environment) is None


@pytest.mark.parametrize(
    ("environment", "present", "absent"),
    [
        ({"RANK": "0"}, "RANK", "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE", "RANK"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
        ({"RANK": "0"} | SLURM_STEP, "RANK", "WORLD_SIZE"),
    ],
    ids=["rank", "size", "slurm's size", "half a torchrun before a whole slurm"],
)
def test_half_a_source_is_an_error_with_a_way_out(environment, present, absent):
    with pytest.raises(sl.TopologyError, match=f"{present} is set and {absent} is not: set both"):
        from_environment(environment)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK must be a whole number.*'one'"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE must be a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank=2 with world_size=2"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "world_size must be at least 1"),
    ],
    ids=["words", "empty", "outside", "nobody"],
)
def test_numbers_that_make_no_sense_are_refused(environment, words):
    with pytest.raises(sl.TopologyError, match=words):
        from_environment(environment)


def test_the_environment_is_read_anew_and_logged_with_its_source(monkeypatch, caplog):
    assert resolve_topology(None) == topology(0, 1)
    for name, value in SLURM_STEP.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO):
        assert resolve_topology(None) == topology(2, 5)
    assert "rank 2 of 5, from SLURM_PROCID and SLURM_STEP_NUM_TASKS" in caplog.text


def test_an_initialised_group_comes_before_the_environment(monkeypatch, group):
    monkeypatch.setenv("RANK", "1")  # half a source, which nobody asks
    assert resolve_topology(None) == topology(0, 1)


def test_the_argument_comes_before_all(monkeypatch, group):
    monkeypatch.setenv("RANK", "1")
    assert resolve_topology(topology(3, 7)) == topology(3, 7)
    assert sl.ShardDataset("x", topology=topology(3, 7)).resolve_topology() == topology(3, 7)


@pytest.mark.parametrize("environment", [TORCHRUN | SLURM_STEP, SLURM_STEP], ids=["both", "slurm"])
def test_a_loader_reads_by_its_launcher_or_its_argument_and_starts_no_group(
    monkeypatch, environment
):
    def refuse(*_, **__):
        raise AssertionError("the library starts no process group")

    monkeypatch.setattr(distributed, "init_process_group", refuse)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    corpus = kept_corpus((5, 4, 7))
    launched: Any = sl.ShardLoader(sl.ShardDataset(corpus), batch_size=1)
    given: Any = sl.ShardLoader(sl.ShardDataset(corpus, topology=topology(1, 3)), batch_size=1)
    alone: Any = sl.ShardLoader(sl.ShardDataset(corpus, topology=topology(0, 1)), batch_size=1)
    assert [next(iter(launched))["__world_size__"], launched.topology] == (
        [4, topology(1, 4)] if "RANK" in environment else [5, topology(2, 5)]
    )
    assert [next(iter(given))["__world_size__"], given.topology] == [3, topology(1, 3)]
    assert each_once((number for each in alone for number in each["__index__"].tolist()), 16)
    assert not distributed.is_initialized()


def test_a_topology_of_a_group_and_of_a_mesh(group):
    from torch.distributed.device_mesh import init_device_mesh

    assert sl.Topology.from_group(distributed.group.WORLD) == topology(0, 1)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    assert sl.Topology.from_mesh(mesh, "dp") == topology(0, 1)
    with pytest.raises(sl.TopologyError, match="needs the name of its data-parallel"):
        sl.Topology.from_mesh(mesh)
    with pytest.raises(sl.TopologyError, match="'pp' is none of them"):
        sl.Topology.from_mesh(mesh, "pp")


def test_a_topology_is_looked_up_once(monkeypatch):
    dataset = sl.ShardDataset(kept_corpus((4,)))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert dataset.resolve_topology() == topology(1, 2)
    monkeypatch.setenv("RANK", "0")
    assert dataset.resolve_topology() == topology(1, 2)


def test_a_dataset_pickles_where_the_environment_makes_no_sense(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    copied = pickle.loads(pickle.dumps(sl.ShardDataset(kept_corpus((4,)))))
    with pytest.raises(sl.TopologyError):
        copied.resolve_topology()


@pytest.mark.parametrize("start_method", [None, "fork", "spawn"])
def test_a_spawned_rank_has_its_own_topology_and_its_workers_have_its(tmp_path, start_method):
    """The parent has resolved its own, 0 of 1, before the dataset travels."""
    dataset = sl.ShardDataset(kept_corpus((5, 4, 7)), batch_size=2)
    assert dataset.resolve_topology() == topology(0, 1)
    ranks = spawn(rank_reads, (2, dataset, str(tmp_path), start_method), nprocs=2, join=False)
    try:
        while not ranks.join(timeout=90):
            assert all(process.is_alive() or process.exitcode == 0 for process in ranks.processes)
    finally:
        for process in ranks.processes:
            process.kill()
            process.join()
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [(each["rank"], each["world_size"]) for each in found] == [(0, 2), (1, 2)]
    assert each_once((number for each in found for number in each["numbers"]), 16)


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, 4),
        ({"LOCAL_WORLD_SIZE": "2", "SLURM_STEP_TASKS_PER_NODE": "1"}, 2),
        ({"LOCAL_WORLD_SIZE": "many"}, 1),
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
    ],
)
def test_the_ranks_of_a_node_are_what_its_launcher_says(environment, ranks):
    assert local_ranks(environment) == ranks
