"""`shardloader bench`: what is measured, in which turns, what is told, and how it fails.

No test looks at how fast anything was.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
from pathlib import Path

import pytest

from shardloader.cli import bench
from shardloader.planning.recommend import Measurement, Setting
from tests.cli.workplace import PYTHON, make_corpus

PAGE = Path(__file__).parents[2] / "docs" / "feeding.md"

QUICK = ("--seconds", "0.02", "--rounds", "1")
ONE = (*QUICK, "--num-workers", "0", "--decode", "none")  # one measurement

MINE = """
import os, threading

def noted(sample):
    with open("seen.txt", "a") as file:
        file.write(sample["txt"] + "\\n")
    return sample

def breaks(sample):
    raise LookupError("no such colour")

def dies(sample):
    os._exit(7)

def waits(sample):
    os.write(1, b"%d\\n" % os.getpid())
    threading.Event().wait()

number = 3
decode = {"txt": lambda data: open("decoded.txt", "ab").write(data)}
"""

WITHOUT_TORCH = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a parent ignores it
from shardloader.cli import main
code = main(sys.argv[1:])
assert not {"torch", "torchdata"} & set(sys.modules)
sys.exit(code)
"""


@pytest.fixture
def corpus(place):
    make_corpus(place / "corpus")
    (place / "mine.py").write_text(MINE)
    return place / "corpus"


class Machine:
    """Stands for the processes that measure: notes their settings, and gives what it is told."""

    def __init__(self, **rates: tuple[float, ...]) -> None:
        self.asked: list[Setting] = []
        self.seconds: set[float] = set()
        self._rates = rates

    def __call__(self, context, asked, code):
        setting = asked["setting"]
        rates = self._rates.get(f"workers_{setting.num_workers}", (1000.0,))
        at = self.asked.count(setting) % len(rates)
        self.asked.append(setting)
        self.seconds.add(asked["seconds"])
        return Measurement(
            samples_per_s=rates[at], first_batch_s=0.1, cpu_s=1e-4, loop_cpu_s=1e-5, memory_bytes=9
        )


@pytest.fixture
def machine(monkeypatch):
    def machine(cores=8, **rates):
        made = Machine(**rates)
        monkeypatch.setattr("shardloader.cli.measuring._in_a_process", made)
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
        return made

    return machine


def test_each_setting_is_measured_and_one_of_them_recommended(corpus, run):
    words = ("--batch-size", "8,4", "--num-workers", "1", *QUICK)
    ended = run("bench", "corpus", *words, "--json")
    assert (ended.code, ended.err) == (0, "")
    told = ended.json
    measured = [(e["batch_size"], e["num_workers"], e["is_raw"]) for e in told["measured"]]
    assert measured == [
        (4, 0, True),
        (4, 0, False),
        (4, 1, False),
        (8, 0, True),
        (8, 0, False),
        (8, 1, False),
    ]
    for each in told["measured"]:
        for name in ("samples_per_s", "bytes_per_s", "first_batch_s"):
            assert 0 < each[name]["least"] <= each[name]["median"] <= each[name]["most"]
        for name in ("cpu_s_per_1000", "loop_cpu_s_per_1000", "memory_bytes"):
            assert each[name]["least"] >= 0
        # txt of 20 bytes, cls of 1
        assert each["bytes_per_s"]["median"] == pytest.approx(each["samples_per_s"]["median"] * 21)
    assert told["dataset"]["samples"] == 200
    recommended = told["recommended"]
    taken = (recommended["batch_size"], recommended["num_workers"], False)
    assert taken in measured
    assert recommended["reasons"]


def test_the_table_has_a_line_for_each_setting_and_the_advice_its_reasons(corpus, run, machine):
    machine(workers_2=(3000.0,))
    text = run("bench", "corpus", "--num-workers", "2", *QUICK).out
    table = text.split("\n\n")[1].splitlines()
    assert [line.split()[:4] for line in table[1:]] == [
        ["32", "0", "bytes", "1,000"],
        ["32", "0", "values", "1,000"],
        ["32", "2", "values", "3,000"],
    ]
    assert (
        "recommended: ShardLoader(dataset, batch_size=32, num_workers=2, persistent_workers=True)\n"
        "- num_workers=2: " in text
    )
    assert "none: yours is not in this" in text


def test_settings_take_turns_round_after_round(corpus, run, machine):
    made = machine(workers_0=(900.0, 1000.0, 1400.0))
    told = run("bench", "corpus", "--num-workers", "1,2", "--json").json
    turn = made.asked[:4]
    assert [each.num_workers for each in turn] == [0, 0, 1, 2]
    assert made.asked == turn * 3
    assert told["measured"][1]["samples_per_s"] == {"median": 1000, "least": 900, "most": 1400}


def test_a_spread_that_is_too_large_is_told(corpus, run, machine):
    machine(workers_0=(500.0, 1000.0, 3000.0), workers_2=(400.0, 2000.0, 4000.0))
    told = run("bench", "corpus", "--num-workers", "2", "--json").json["recommended"]
    assert (told["num_workers"], told["is_clear"]) == (0, False)


@pytest.mark.parametrize(
    ("cores", "workers"), [(1, [0, 1]), (2, [0, 1, 2]), (8, [0, 1, 4, 8]), (64, [0, 1, 32, 64])]
)
def test_by_default_no_more_workers_than_cores_are_tried(cores, workers, corpus, run, machine):
    made = machine(cores)
    told = run("bench", "corpus", "--json").json
    asked = [each["num_workers"] for each in told["measured"] if not each["is_raw"]]
    assert asked == workers
    assert told["machine"]["cores"] == cores
    assert sum(made.seconds) * len(made.asked) <= bench.ALL_S + 0.01 * len(made.asked)


def test_bytes_are_measured_once_where_nothing_is_decoded(corpus, run):
    (each,) = run("bench", "corpus", *ONE, "--fields", "CLS", "--json").json["measured"]
    assert not each["is_raw"]
    assert each["bytes_per_s"]["median"] == pytest.approx(each["samples_per_s"]["median"])
    assert "bytes" in run("bench", "corpus", *ONE).out.split("\n\n")[1]


def test_a_transform_of_the_current_folder_is_run_on_decoded_samples_alone(corpus, run):
    words = (*QUICK, "--num-workers", "0", "--transform", "mine:noted")
    ended = run("bench", "corpus", *words)
    assert ended.code == 0
    assert "mine:noted" in ended.out
    seen = (corpus.parent / "seen.txt").read_text().splitlines()
    assert {line.split()[0] for line in seen} == {"text"}


def test_a_mapping_of_own_decoders_is_used(corpus, run):
    words = (*QUICK, "--num-workers", "0", "--fields", "txt", "--decode", "mine:decode")
    ended = run("bench", "corpus", *words)
    assert ended.code == 0
    assert (corpus.parent / "decoded.txt").read_bytes().startswith(b"text ")
    assert len(ended.out.split("\n\n")[1].splitlines()) == 3
    assert run("bench", "corpus", *words[:-1], "mine:number").code == 2


def test_every_command_of_the_page_is_one_that_runs(place, run, machine):
    machine()
    lines = [line for line in PAGE.read_text().replace("`", "\n").splitlines() if "--" in line]
    commands = {line.partition("shardloader ")[2] for line in lines if "shardloader bench" in line}
    assert len(commands) > 3
    for name in ("corpus", "tokens", "photos"):
        make_corpus(place / name, shards=1, samples=2)
    for words in commands:
        assert run(*words.split()).code == 0, words


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        ("nothing:at_all", "No module named 'nothing'"),
        ("mine:missing", "has no attribute 'missing'"),
        ("mine", "--transform is MODULE:NAME"),
        ("mine:number", "transform"),
        ("mine:breaks", "raised LookupError: no such colour, in transform= of the sample"),
    ],
)
def test_a_transform_that_can_not_be_run_is_wrong_use(transform, says, corpus, run):
    ended = run("bench", "corpus", *ONE, "--transform", transform)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert ended.err.count("error: ") == 1


def test_a_process_that_ends_is_told_with_how_it_ended(corpus, run):
    ended = run("bench", "corpus", *ONE, "--transform", "mine:dies")
    assert (ended.code, ended.out) == (1, "")
    assert "batches of 32 with 0 workers ended with exit code 7" in ended.err


def test_a_process_that_hangs_is_ended(corpus, run, monkeypatch):
    monkeypatch.setattr("shardloader.cli.measuring.PATIENCE_S", 1.0)
    ended = run("bench", "corpus", *ONE, "--transform", "mine:waits", "--batch-size", "2")
    assert (ended.code, ended.out) == (1, "")
    assert "batches of 2 with 0 workers did not" in ended.err
    assert not multiprocessing.active_children()


def test_an_error_of_the_dataset_is_raised_as_itself(corpus, run):
    ended = run("bench", "corpus", *ONE, "--fields", "jpg", "--json")
    assert ended.code == 1
    assert ended.json["error"]["kind"] == "SampleError"
    assert "it has ['cls', 'txt']" in ended.json["error"]["message"]


@pytest.mark.parametrize(
    "words",
    [
        ["nowhere"],
        ["empty"],
        [],
        ["corpus", "--batch-size", "0"],
        ["corpus", "--batch-size", "8,"],
        ["corpus", "--num-workers", "-1"],
        ["corpus", "--num-workers", "some"],
        ["corpus", "--seconds", "0"],
        ["corpus", "--seconds", "nan"],
        ["corpus", "--seconds", "9999"],
        ["corpus", "--rounds", "0"],
        ["corpus", "--window", "0"],
        ["corpus", "--fields", "jpg,,cls"],
        ["corpus", "--decode", "jpg"],
    ],
)
def test_wrong_use_is_exit_code_2_with_one_message(words, corpus, run, machine):
    made = machine()
    (corpus.parent / "empty").mkdir()
    ended = run("bench", *words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("error: ") == 1
    assert not made.asked


def test_ctrl_c_ends_what_is_measuring_and_torch_never_came_in(corpus):
    words = [PYTHON, "-W", "error", "-c", WITHOUT_TORCH, "bench", "corpus", *ONE]
    with subprocess.Popen(
        [*words, "--transform", "mine:waits"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        measuring = int(process.stderr.readline())  # printed to stdout, which is the result's
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "shardloader: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(measuring, 0)
