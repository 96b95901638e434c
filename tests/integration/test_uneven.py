"""Two real ranks with uneven data: the loops of docs/uneven.md, each against a single process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy

from tests.corpora import kept_corpus, loader_of, loaders_of
from tests.integration.evaluation import BATCH_SIZE as EVALUATION_BATCH
from tests.integration.models import a_model, an_optimizer, classes, losses, scores
from tests.integration.uneven import BATCH_SIZE, EPOCHS, SHUFFLE

ROOT = Path(__file__).parents[2]
SHORTER = (2, 3, 3, 3)  # 4 samples, 4 more, and then 2 and 1
EMPTY = (2, 3, 1, 3)  # 4 samples, 4 more, and then 1 and none
LAST = {"shorter": [2, 1], "empty": [1, 0]}
EVALUATED = ((5, 4), (4, 3), (1, 7, 8))  # a rank with none in the last step; with fewer; whole
OF_ONE = (1,)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each of the two ranks tells of every loop, all in one launch; a hang is an error."""
    out = tmp_path_factory.mktemp("uneven")
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(Path(__file__).with_name("uneven.py")), str(out)]
    command += [str(kept_corpus(counts)) for counts in (SHORTER, EMPTY, OF_ONE, *EVALUATED)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # noqa: TID251 - the child's, not ours
    )
    assert done.returncode == 0, done.stderr
    return [torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]


def side_by_side(told, case):
    """For each step what each rank that took part in it tells, rank by rank."""
    by_step: dict[Any, list[Any]] = {}
    for of_rank in told:
        counts = dict.fromkeys(range(EPOCHS), 0)
        for step in of_rank[case]["steps"]:
            by_step.setdefault((step["epoch"], counts[step["epoch"]]), []).append(step)
            counts[step["epoch"]] += 1
    return [by_step[place] for place in sorted(by_step)]


def valid_of(ranks):
    return [number for each in ranks for number in each["valid"]]


def same(got, want):
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


class SingleProcess:
    """Training on the whole batch at once."""

    def __init__(self):
        self.model = a_model()
        self.optimizer = an_optimizer(self.model)

    def gradients(self, numbers):
        self.optimizer.zero_grad()
        losses(self.model, torch.tensor(numbers)).mean().backward()
        return [each.grad for each in self.model.parameters()]


@pytest.mark.parametrize("last", ["shorter", "empty"])
@pytest.mark.parametrize("way", ["ddp", "fsdp", "join"])
def test_two_epochs_on_two_ranks_train_what_a_single_process_would(told, way, last):
    """Every parameter's gradient at every step, and the model at the end on both ranks."""
    steps = side_by_side(told, f"{way}, {last}")
    at_the_end = LAST[last] if way != "join" else [each for each in LAST[last] if each]
    assert [[len(each["valid"]) for each in ranks] for ranks in steps] == (
        [[2, 2], [2, 2], at_the_end] * EPOCHS
    )
    single = SingleProcess()
    for ranks in steps:
        wanted = single.gradients(valid_of(ranks))
        for each in ranks:
            same(each["gradients"], wanted)
        single.optimizer.step()
    for of_rank in told:
        same(of_rank[f"{way}, {last}"]["parameters"], list(single.model.parameters()))


@pytest.mark.parametrize(("last", "factor"), [("shorter", 1), ("empty", 2)])
def test_a_divisor_that_shrinks_makes_the_last_gradient_larger_by_the_ranks_that_are_gone(
    told, last, factor
):
    """World size over the ranks that are left: loss_scale counts on the world size."""
    single = SingleProcess()
    *before, (step, *others) = side_by_side(told, f"join by the left, {last}")
    assert len(others) == 2 - factor
    for ranks in before:
        same(ranks[0]["gradients"], single.gradients(valid_of(ranks)))
        single.optimizer.step()
    wanted = single.gradients(valid_of([step, *others]))
    same(step["gradients"], [factor * gradient for gradient in wanted])


def test_join_leaves_the_optimizers_apart_where_a_rank_had_no_last_batch(told):
    """Why docs/uneven.md has rank 0's state loaded by all after each epoch."""

    def momenta(last, rank):
        return torch.cat([each.flatten() for each in told[rank][f"join, {last}"]["apart"][0]])

    torch.testing.assert_close(momenta("shorter", 0), momenta("shorter", 1))
    assert (momenta("empty", 0) - momenta("empty", 1)).abs().max() > 0.01


def test_under_join_the_states_of_ranks_differ_only_between_the_last_batch_and_the_end(told):
    first, second = (of_rank["join, empty"] for of_rank in told)

    def places(of_rank):
        states = [step["state"] for step in of_rank["steps"]] + [of_rank["ended"]]
        return [(state["epoch"], state["consumed"]) for state in states]

    assert places(first) == [(0, 4), (0, 8), (1, 0), (1, 4), (1, 8), (2, 0), (2, 0)]
    assert places(second) == [(0, 4), (0, 8), (1, 4), (1, 8), (2, 0)]
    assert first["ended"] == second["ended"]
    assert [first["steps"][step]["state"] for step in (0, 1, 3, 4)] == [
        step["state"] for step in second["steps"]
    ]


def test_either_ranks_state_of_the_last_step_serves_all_of_them(told):
    """Rank 0's, taken with its last batch, begins the next epoch; rank 1's gives the last step."""
    loaders = loaders_of(kept_corpus(EMPTY), 2, batch_size=BATCH_SIZE, even="join", shuffle=SHUFFLE)
    for rank, loader in enumerate(loaders):
        epochs = [[batch["__index__"].tolist() for batch in loader] for _ in range(3)]
        of_rank_0, of_rank_1 = told[rank]["resumed"]
        assert of_rank_0 == epochs[1:3]
        assert of_rank_1 == [epochs[0][2:], epochs[1]]
        assert len(epochs[0][2:]) == (1 if rank == 0 else 0)


def test_ranks_that_each_load_their_own_state_of_the_last_step_are_told(told):
    first, second = (of_rank["resumed from its own"] for of_rank in told)
    assert "differ in epoch: 1 on rank 0; 0 on rank 1: load the same checkpoint" in first
    assert first == second


def single_process(counts):
    """One process over all samples: the accuracy, by hand and by torchmetrics, and the area."""
    accuracy, area = MulticlassAccuracy(num_classes=10, average="micro"), BinaryAUROC()
    right = 0
    for batch in loader_of(kept_corpus(counts), shuffle=False, batch_size=1):
        said, true = classes(batch["__index__"]), batch["cls"]
        accuracy.update(said, true)
        area.update(scores(batch["__index__"]), true % 2)
        right += int((said == true).sum())
    return right / sum(counts), float(accuracy.compute()), float(area.compute())


@pytest.mark.parametrize("number", range(len(EVALUATED)))
def test_figures_over_two_ranks_are_exactly_those_of_one_process(told, number):
    exact, of_torchmetrics, area = single_process(EVALUATED[number])
    assert 0 < exact < 1
    for of_rank in told:
        figures = of_rank["figures"][number]
        assert figures["by_the_mask"] == exact
        assert figures["by_gathering"] == exact
        assert figures["by_torchmetrics"] == of_torchmetrics
        assert figures["area_by_torchmetrics"] == area
        padded = sum(EVALUATED[number]) % (2 * EVALUATION_BATCH) > 0
        assert (figures["without_the_mask"] != exact) == padded


def test_a_rank_that_has_nothing_valid_in_the_whole_evaluation_finds_the_figure_too(told):
    for of_rank in told:
        figures = of_rank["figures"][-1]
        assert {figures[way] for way in ("by_the_mask", "by_gathering", "by_torchmetrics")} == {1.0}


def test_every_block_of_the_page_stands_in_a_script_that_these_tests_run():
    """But for its indentation."""
    page = (ROOT / "docs" / "uneven.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        assert any(stands_in(block, ran) for ran in ("uneven.py", "evaluation.py")), block


def stands_in(block, script):
    lines = Path(__file__).with_name(script).read_text().splitlines()
    wanted = dedent(block).splitlines()
    windows = (lines[start : start + len(wanted)] for start in range(len(lines)))
    return any(dedent("\n".join(window)).splitlines() == wanted for window in windows)
