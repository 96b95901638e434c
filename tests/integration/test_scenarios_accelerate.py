"""F04 of the cases: a trainer that deals what is dealt already, the real Accelerate on two ranks.

The corpus has 11 samples, so that with batches of 2 the last step has 3 for 2 ranks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.corpora import each_once, make_corpus_with

SCRIPT = Path(__file__).with_name("accelerated.py")
NUM_SAMPLES = 11


def text(number):
    return f"text {number} " + "." * number


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What both ranks got, by what was prepared and how."""
    folder = tmp_path_factory.mktemp("accelerate")
    samples = [[("txt", text(number).encode())] for number in range(NUM_SAMPLES)]
    corpus = make_corpus_with(folder / "corpus", samples)
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(SCRIPT), str(corpus), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    return {way: [rank[way] for rank in ranks] for way in ranks[0]}


@pytest.mark.parametrize("dispatch", [None, True, False])
@pytest.mark.parametrize("what", ["loader", "split"])
def test_a_shard_loader_comes_out_of_prepare_as_it_is_and_gives_each_sample_once(
    told, what, dispatch
):
    ranks = told[f"{what} {dispatch}"]
    assert all(rank["untouched"] for rank in ranks)
    assert [rank["steps"] for rank in ranks] == [3, 3]
    rows = [row for rank in ranks for row in rank["rows"]]
    assert len(rows) == 12
    assert each_once((number for number, valid, _ in rows if valid), NUM_SAMPLES)
    assert all(said == text(number) for number, _, said in rows)


@pytest.mark.parametrize("dispatch", [None, True, False])
def test_a_dataset_that_would_be_dealt_twice_is_refused_with_what_to_do(told, dispatch):
    for rank in told[f"twice {dispatch}"]:
        assert "divide it again" in rank["error"]
        assert "ShardLoader" in rank["error"]
        assert "dispatch_batches=False" in rank["error"]


def test_a_dataset_that_gives_everything_on_every_rank_is_dealt_by_accelerate(told):
    ranks = told["whole False"]
    assert len({rank["steps"] for rank in ranks}) == 1
    rows = [row for rank in ranks for row in rank["rows"]]
    assert {number for number, _, _ in rows} == set(range(NUM_SAMPLES))
    assert len(rows) == 12  # Accelerate fills up by repeating, and does not mark it
    assert all(said == text(number) for number, _, said in rows)
