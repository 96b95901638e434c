"""`shardloader plan`: bytes, changes of topology, the shuffle's quality, and the picture."""

from __future__ import annotations

import builtins
import json
import re

import pytest

from shardloader.planning.plan import plan
from shardloader.planning.quality import quality
from shardloader.planning.stretches import Change, stretches
from shardloader.reading.indexing import index_dataset
from tests.cli.workplace import make_corpus

TOPOLOGY = ("--batch-size", "4", "--world-size", "2", "--num-workers", "2")
COUNTS = ("plan", "--counts", "8x50", *TOPOLOGY)


@pytest.fixture
def corpus(place):
    make_corpus(place / "corpus")
    return index_dataset(place / "corpus")[0]


def test_bytes_are_told_of_a_dataset_and_not_of_counts(corpus, run):
    told = run("plan", "corpus", *TOPOLOGY, "--json").json["stretches"][0]
    one = run("plan", "corpus", "--batch-size", "4", "--json").json["stretches"][0]
    total = int(corpus.sizes.sum())
    assert one["opened_bytes_a_rank"] == {"least": total, "median": total, "most": total}
    assert one["read_bytes_a_rank"] == one["opened_bytes_a_rank"]
    assert told["read_bytes_a_rank"]["least"] == pytest.approx(total / 2, abs=1)
    text = run("plan", "corpus", *TOPOLOGY).out
    assert "sample bytes are an estimate" in text
    counted = run(*COUNTS, "--json").json["stretches"][0]
    assert {counted[name] for name in counted if "bytes" in name} == {None}
    assert "bytes" not in run(*COUNTS).out


def test_each_stretch_has_figures_of_its_own(run):
    words = ("--then", "20:world-size=3", "--then", "30:num-workers=1,batch-size=8")
    told = run(*COUNTS, *words, "--json").json
    made = stretches(
        plan([50] * 8, batch_size=4, world_size=2, num_workers=2),
        [Change(20, world_size=3), Change(30, num_workers=1, batch_size=8)],
    )
    assert [each["first_step"] for each in told["stretches"]] == [0, 20, 30]
    assert [each["steps"] for each in told["stretches"]] == [part.steps for part in made]
    assert [each["samples"] for each in told["stretches"]] == [160, 120, 120]
    assert [each["topology"] for each in told["stretches"]] == [
        {
            "world_size": part.dealing.world_size,
            "num_workers": part.num_workers,
            "batch_size": part.dealing.batch_size,
            "accumulate": 1,
            "even": "pad",
        }
        for part in made
    ]
    assert (told["steps"], told["samples"], told["pads"]) == (35, 400, 0)
    text = run(*COUNTS, *words).out
    assert re.findall(r"^steps +(.*)", text, re.MULTILINE) == [
        "20 (0 to 19)",
        "10 (20 to 29)",
        "5 (30 to 34)",
    ]
    assert text.count("by more than one worker of a rank") == 3


def test_shards_of_several_workers_are_told_with_how_many_there_are(run):
    text = run(*COUNTS, "--window", "5", "--then", "20:world-size=3").out
    told = re.findall(r"of ([0-9]+) shards opened, ([0-9]+) by .* and ([0-9]+) by", text)
    assert told[0] == ("4", "0", "0")
    opened, of_a_rank, of_all = map(int, told[1])
    assert 0 < of_a_rank <= of_all <= opened <= 8


def test_a_change_counts_steps_from_the_epochs_start_after_a_state_too(place, run):
    made = plan([50] * 8, batch_size=4, world_size=2)
    state = made.checkpoint.to_state() | {"consumed": 80}
    (place / "ckpt.json").write_text(json.dumps(state))
    words = ("plan", "--counts", "8x50", "--batch-size", "4", "--world-size", "2")
    told = run(*words, "--state", "ckpt.json", "--then", "15:world-size=4", "--json").json
    assert [each["first_step"] for each in told["stretches"]] == [10, 15]
    ended = run(*words, "--state", "ckpt.json", "--then", "10:world-size=4")
    assert ended.code == 2
    assert "after the plan's first step, 10" in ended.err


@pytest.mark.parametrize(
    "text",
    [
        "20",
        "20:",
        "20:3",
        "20:world_size=3",
        "20:ranks=3",
        "20:world-size=3,world-size=4",
        "20:world-size=-3",
        "20:world-size=0",
        "0:world-size=3",
        "50:world-size=3",
        "x:world-size=3",
    ],
)
def test_a_change_that_makes_no_sense_is_refused(text, run):
    ended = run(*COUNTS, f"--then={text}")
    assert (ended.code, ended.out) == (2, "")


def test_steps_are_listed_of_one_topology_alone(run):
    ended = run(*COUNTS, "--then", "20:world-size=3", "--steps", "0:1")
    assert ended.code == 2
    assert "leave --then out" in ended.err


def test_the_quality_is_that_of_the_plan(run):
    words = (*COUNTS, "--window", "20", "--then", "20:world-size=3", "--quality")
    told = run(*words, "--json").json["stretches"]
    measured = quality(plan([50] * 8, batch_size=4, world_size=2, num_workers=2))
    assert told[0]["quality"]["mean_distance"]["perfect"] == measured.mean_distance.perfect
    assert told[0]["quality"]["mean_distance"]["plan"] < 1 / 3
    assert told[0]["quality"]["shards_a_run"]["num_all"] == 1
    text = run(*words).out
    assert text.count("shuffle quality") == 2
    assert "shards in 20 steps in a row" in text
    assert "392 of 392 pairs" in text
    assert "shuffle quality" not in run(*COUNTS).out


@pytest.mark.parametrize(
    ("name", "magic"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.SVG", b"<?xml")]
)
def test_a_picture_is_written_in_the_format_of_its_ending(name, magic, place, run):
    ended = run(*COUNTS, "--then", "20:world-size=3", "--plot", name)
    assert ended.code == 0
    assert f"drawn to {name}" in ended.out
    assert (place / name).read_bytes().startswith(magic)


@pytest.mark.parametrize("world_size", [1, 9])
def test_workers_of_one_rank_and_many_ranks_are_drawn_too(world_size, place, run):
    words = ("plan", "--counts", "8x50", "--batch-size", "4", "--num-workers", "3")
    told = run(*words, "--world-size", world_size, "--plot", "plan.png", "--json").json
    assert told["plot"] == "plan.png"
    assert (place / "plan.png").stat().st_size > 10_000


def test_a_picture_of_another_format_or_in_no_folder_is_refused(place, run):
    ended = run(*COUNTS, "--plot", "plan.bmp")
    assert (ended.code, ended.out) == (2, "")
    assert "--plot writes .png, .pdf, .svg" in ended.err
    assert run(*COUNTS, "--plot", "nowhere/plan.png").code == 2


def test_without_matplotlib_the_extra_is_named(run, monkeypatch):
    imported = builtins.__import__

    def without(name, *arguments, **named):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return imported(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    ended = run(*COUNTS, "--plot", "plan.png")
    assert (ended.code, ended.out) == (2, "")
    assert "pip install 'shardloader[plot]'" in ended.err
    assert run(*COUNTS).code == 0


def test_an_absurd_world_size_is_refused_in_words(run):
    for words in (("--world-size", 2**31 - 1), ("--grid", f"{2**31 - 1},1,1")):
        ended = run("plan", "--counts", "10x10", "--batch-size", "1", *words)
        assert (ended.code, ended.out) == (2, "")
        assert "a plan looks at 1,048,576 ranks at most" in ended.err
