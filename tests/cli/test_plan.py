"""`shardloader plan`: the figures are those of the plan, and steps count as training does."""

from __future__ import annotations

import json

import pytest

import shardloader as sl
from shardloader.planning.opened import Look
from shardloader.planning.plan import plan
from shardloader.reading.indexing import index_dataset
from tests.cli.workplace import make_corpus, state_of
from tests.shards import sample_members

TOPOLOGY = ("--batch-size", "4", "--world-size", "3", "--num-workers", "2")


@pytest.fixture
def corpus(place):
    make_corpus(place / "corpus")
    return index_dataset(place / "corpus")[0]


def test_shards_of_some_ranks_are_told_to_be_of_some(run, monkeypatch):
    made = plan([100] * 100, batch_size=4, world_size=50, num_workers=2)
    less = Look.at(made, most_looked_up=0, most_exact=1000, most_sampled=100)
    monkeypatch.setattr("shardloader.cli.stretches.Look.at", lambda _: less)
    ended = run("plan", "--counts", "100x100", "--batch-size", "4", "--world-size", "50")
    assert "shards were counted on 1 of 50 ranks, in 25 of 50 steps" in ended.out
    assert "over all ranks, of the readers looked at" in ended.out


def test_a_huge_topology_is_planned_without_data(run):
    topology = ("--batch-size", "32", "--world-size", "1024", "--num-workers", "8")
    words = ("plan", "--counts", "1000000x10000", *topology)
    told = run(*words, "--steps", "305000:305001", "--rank", "1023", "--json").json
    assert told["dataset"]["samples"] == 10**10
    assert told["steps"] == 305_176
    assert len(told["listing"]) == 32
    assert {row["name"] for row in told["listing"]} == {None}


def test_a_batch_that_fills_the_memory_is_not_looked_into(run):
    huge = ("--batch-size", 2**31 - 1, "--grid", "1,1,5")
    ended = run("plan", "--counts", "10x10", *huge)
    assert ended.code == 0
    assert "shards were not counted" in ended.out
    assert run("plan", "--counts", "10x10", *huge, "--json").json["stretches"][0]["steps"] == 1


def test_json_holds_the_figures_of_the_plan(corpus, run):
    told = run("plan", "corpus", *TOPOLOGY, "--seed", "5", "--epoch", "2", "--json").json
    made = plan(corpus, batch_size=4, world_size=3, num_workers=2, seed=5, epoch=2)
    assert told["state"] == made.checkpoint.to_state()
    assert (told["steps"], told["pads"], told["omitted"]) == (17, 4, 0)
    assert told["samples"] == 200
    (stretch,) = told["stretches"]
    assert stretch["shards_counted"] == {"is_exact": True, "ranks": 3, "steps": 17}
    assert stretch["samples_a_worker"] == {"least": 32, "median": 33, "most": 35}
    assert stretch["quality"] is None
    assert told["listing"] is None


def test_the_policies_are_told_apart(corpus, run):
    for even, samples, pads, omitted in (
        ("pad", 200, 4, 0),
        ("drop", 192, 0, 8),
        ("join", 200, 0, 0),
    ):
        told = run("plan", "corpus", *TOPOLOGY, "--even", even, "--json").json
        assert (told["samples"], told["pads"], told["omitted"]) == (samples, pads, omitted)


def test_options_reach_the_order(corpus, run):
    words = ("plan", "corpus", *TOPOLOGY, "--json")
    assert run(*words, "--no-shuffle").json["state"]["window"] is None
    assert run(*words, "--window", "7").json["state"]["window"] == 7
    assert run(*words, "--shuffle").json["state"]["window"] == 10_000
    assert run(*words, "--grid", "5,1,2").json["state"]["grid"] == [5, 1, 2]
    assert run(*words, "--steps-per-epoch", "99").json["steps"] == 99


def test_a_listing_names_the_samples_of_the_steps(corpus, run):
    rows = run("plan", "corpus", *TOPOLOGY, "--steps", "15:17", "--json").json["listing"]
    made = plan(corpus, batch_size=4, world_size=3, num_workers=2)
    assert len(rows) == 2 * 3 * 4
    keys = [name.removesuffix(".txt") for name, _ in sample_members(200)[::2]]
    at = iter(rows)
    for step in (15, 16):
        for rank in range(3):
            batch = made.batch(step, rank)
            for slot in range(4):
                index = int(batch.index[slot])
                assert next(at) == {
                    "step": step,
                    "rank": rank,
                    "slot": slot,
                    "index": index,
                    "shard": index // 50,
                    "name": f"shard-{index // 50:03d}.tar",
                    "sample": index % 50,
                    "valid": bool(batch.valid[slot]),
                    "key": keys[index],
                }
    text = run("plan", "corpus", *TOPOLOGY, "--steps", "15:17", "--rank", "2").out
    assert text.count(" valid ") + text.count(" pad ") == 8
    assert keys[rows[8]["index"]] in text


def test_keys_are_left_out_where_the_indexes_are_not_there(corpus, place, run):
    for path in (place / "corpus").glob("*.index"):
        path.unlink()
    ended = run("plan", "corpus", *TOPOLOGY, "--steps", "0:1", "--json")
    assert {row["key"] for row in ended.json["listing"]} == {None}


def test_steps_after_a_state_count_from_the_epochs_start(corpus, place, run):
    options = {"batch_size": 4, "world_size": 3, "num_workers": 2, "seed": 1, "epoch": 2}
    state = state_of(corpus, 5 * 12, **options)
    (place / "ckpt.json").write_text(json.dumps(state))
    whole = run(
        "plan", "corpus", *TOPOLOGY, "--seed", "1", "--epoch", "2", "--json", "--steps", "7:9"
    )
    rest = run("plan", "corpus", *TOPOLOGY, "--state", "ckpt.json", "--json", "--steps", "7:9")
    assert rest.json["listing"] == whole.json["listing"]
    assert (rest.json["first_step"], rest.json["steps"]) == (5, 12)
    assert run("plan", "corpus", *TOPOLOGY, "--state", "ckpt.json", "--steps", "16:17").code == 0
    assert "(step 5)" in run("plan", "corpus", *TOPOLOGY, "--state", "ckpt.json").out
    other = run("plan", "corpus", "--batch-size", "7", "--state", "ckpt.json").out
    assert "(step 8, rounded down: other steps came before)" in other


def test_what_any_step_held_is_told_from_a_state_alone(corpus, place, run):
    options = {"batch_size": 4, "world_size": 3, "num_workers": 2, "seed": 1, "epoch": 2}
    (place / "ckpt.json").write_text(json.dumps(state_of(corpus, 60, **options)))
    of_state = ("--state", "ckpt.json", "--json", "--steps", "3:7")
    told = run("plan", "corpus", *TOPOLOGY, *of_state)
    whole = run(
        "plan", "corpus", *TOPOLOGY, "--seed", "1", "--epoch", "2", "--json", "--steps", "3:7"
    )
    assert told.json["listing"] == whole.json["listing"]
    assert {row["step"] for row in told.json["listing"]} == {3, 4, 5, 6}


def test_the_loaders_part_of_a_checkpoint_is_found(corpus, place, run):
    state = state_of(corpus, 12, batch_size=4, world_size=3)
    (place / "whole.json").write_text(json.dumps({"model": [], "loader": state}))
    assert (
        run("plan", "corpus", *TOPOLOGY, "--state", "whole.json", "--json").json["first_step"] == 1
    )
    (place / "ckpt.pt").write_bytes(b"\x80\x02}")
    ended = run("plan", "corpus", *TOPOLOGY, "--state", "ckpt.pt")
    assert ended.code == 2
    assert "write its loader's part with json.dump" in ended.err


def test_steps_before_the_state_that_another_topology_read_are_refused(corpus, place, run):
    state = state_of(corpus, 60, batch_size=4, world_size=3, num_workers=2, seed=1, epoch=2)
    (place / "ckpt.json").write_text(json.dumps(state))
    ended = run("plan", "corpus", "--batch-size", "7", "--state", "ckpt.json", "--steps", "4:6")
    assert (ended.code, ended.out) == (2, "")
    assert "the position 60 is no whole number of steps of 7 samples" in ended.err


@pytest.mark.parametrize(
    "steps", ["17:18", "3:3", "5:2", "x:y", "-1:2", "4", "0:99999999999999999"]
)
def test_steps_that_are_not_there_are_refused(steps, corpus, run):
    assert run("plan", "corpus", *TOPOLOGY, f"--steps={steps}").code == 2


def test_a_rank_that_is_not_there_and_too_long_a_listing_are_refused(corpus, run):
    assert run("plan", "corpus", *TOPOLOGY, "--steps", "0:1", "--rank", "3").code == 2
    words = ("plan", "--counts", "1000000x1000", "--batch-size", "1000", "--steps", "0:999999")
    ended = run(*words)
    assert ended.code == 2
    assert "a listing has at most 5,000,000 lines" in ended.err


@pytest.mark.parametrize(
    "change", [{"dataset": "0" * 32}, {"version": 9}, {"consumed": 999}, {"seed": "x"}]
)
def test_a_state_of_something_else_is_refused_in_words(change, corpus, place, run):
    state = state_of(corpus, 12, batch_size=4, world_size=3) | change
    (place / "ckpt.json").write_text(json.dumps(state))
    ended = run("plan", "corpus", *TOPOLOGY, "--state", "ckpt.json")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("shardloader: error: ")


def test_a_state_speaks_for_itself(corpus, place, run):
    (place / "ckpt.json").write_text(json.dumps(state_of(corpus, 12, batch_size=4, world_size=3)))
    for given, says in (
        (("--window", "5"), "which shuffle it is of, 10000"),
        (("--seed", "3"), "which seed it is of, 0, and seed=3"),
        (("--epoch", "2"), "which epoch it is of, 0, and epoch=2"),
        (("--no-shuffle",), "which shuffle it is of, 10000"),
    ):
        ended = run("plan", "corpus", *TOPOLOGY, "--state", "ckpt.json", *given)
        assert ended.code == 2
        assert says in ended.err


def test_a_pattern_and_a_list_are_datasets_too(corpus, place, run):
    shards = sorted((place / "corpus").glob("*.tar"))
    listed = run("plan", *shards, *TOPOLOGY, "--json").json
    pattern = run("plan", f"{place}/corpus/shard-{{000..003}}.tar", *TOPOLOGY, "--json").json
    folder = run("plan", "corpus", *TOPOLOGY, "--json").json
    assert listed["state"] == pattern["state"] == folder["state"]


def test_what_a_run_reads_that_goes_on_without_a_shard_can_be_told(corpus, place, run):
    asked = ("plan", "corpus", "--batch-size", "4", "--steps", "0:50", "--json")
    whole = run(*asked)
    (place / "corpus" / "shard-001.tar").unlink()
    ended = run(*asked)
    assert (ended.code, ended.json) == (0, whole.json)
    assert "shard-001.tar: the manifest lists this shard, and it can't be found" in ended.err


def test_a_state_from_before_shards_were_appended_is_planned_on_what_it_was_made_with(run, place):
    for start, append in ((0, False), (20, True)):
        with sl.ShardWriter(place / "grown", max_samples=5, append=append) as writer:
            for number in range(start, start + 20):
                writer.write({"__key__": f"{number:04d}", "cls": number})
        if not append:
            state = state_of(place / "grown", 8, batch_size=4)
            (place / "ckpt.json").write_text(json.dumps(state))
    words = ("plan", "grown", "--batch-size", "4", "--state", "ckpt.json", "--json")
    told = run(*words)
    assert told.code == 0, told.err
    assert told.json["dataset"]["samples"] == 20
    assert told.json["dataset"]["digest"] == state["dataset"]
    (place / "grown" / f"manifest-{state['dataset']}.json").unlink()
    assert run(*words).code == 2
