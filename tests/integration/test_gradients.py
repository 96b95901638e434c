"""With loss_scale, DDP's gradient is that of the mean over the global batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tests.corpora import kept_corpus
from tests.integration.gradients import Scenario
from tests.integration.models import a_model, losses, token_losses

ROOT = Path(__file__).parents[2]

# Each with the number of valid samples of every optimiser step, by rank.
SCENARIOS = {
    "four samples as one batch": (Scenario(counts=(4,)), [[2, 2]]),
    "2 and 1 in a short last step": (Scenario(counts=(4, 3)), [[2, 2], [2, 1]]),
    "a rank with nothing valid": (Scenario(counts=(5, 4), batch_size=4), [[4, 4], [1, 0]]),
    "the rest dropped": (Scenario(counts=(5, 4), batch_size=4, even="drop"), [[4, 4]]),
    "two epochs": (Scenario(counts=(5, 2), epochs=2), [[2, 2], [2, 1]] * 2),
    "groups, the last one short, in two epochs": (
        Scenario(counts=(9, 10), accumulate=2, epochs=2),
        [[4, 4], [4, 4], [2, 1]] * 2,
    ),
    "a group of steps with unlike numbers": (
        Scenario(counts=(9, 4), accumulate=4),
        [[7, 6]],
    ),
    "a group whose last step is nothing on a rank": (
        Scenario(counts=(9,), accumulate=3),
        [[5, 4]],
    ),
    "3 and 1, the others refused": (
        Scenario(counts=(6,), batch_size=3, by="sync", refused=(3, 4)),
        [[3, 1]],
    ),
    "everything refused": (
        Scenario(counts=(4,), by="sync", refused=(0, 1, 2, 3)),
        [[0, 0]],
    ),
    "groups, some samples refused": (
        Scenario(counts=(9, 10), accumulate=2, by="sync", refused=(0, 3, 7, 8, 12)),
        None,
    ),
    "samples that a transform refuses": (
        Scenario(counts=(9, 10), by="sync", refused=(0, 1, 2, 3, 7, 12), how="transform"),
        None,
    ),
    "groups, some samples bad": (
        Scenario(counts=(9, 10), accumulate=2, by="sync", refused=(0, 3, 7, 8, 12), how="error"),
        None,
    ),
    "nothing good in most batches": (
        Scenario(counts=(9, 10), by="sync", refused=tuple(range(1, 19)), how="error"),
        None,
    ),
    "tokens": (Scenario(counts=(4, 3), by="tokens"), [[2, 2], [2, 1]]),
    "tokens of groups": (
        Scenario(counts=(9, 10), accumulate=2, by="tokens"),
        [[4, 4], [4, 4], [2, 1]],
    ),
    "bf16": (Scenario(counts=(9, 10), accumulate=2, bf16=True), [[4, 4], [4, 4], [2, 1]]),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What two ranks made of every scenario, by its name."""
    out = tmp_path_factory.mktemp("gradients") / "trained.pt"
    scenarios = [scenario for scenario, _ in SCENARIOS.values()]
    corpora = [str(kept_corpus(scenario.counts)) for scenario in scenarios]
    script = Path(__file__).with_name("gradients.py")
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(script), str(out)]
    done = subprocess.run(
        [*command, json.dumps(corpora), json.dumps([asdict(each) for each in scenarios])],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # noqa: TID251 - the child's, not ours
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(SCENARIOS, torch.load(out, weights_only=True), strict=True))


def gradients_of_one_process(index, *, of_tokens=False):
    """Of the mean loss of all these samples, or of all their tokens, in one batch."""
    model = a_model()
    numbers = torch.tensor(index, dtype=torch.int64)
    if of_tokens:
        by_sample, num_tokens = token_losses(model, numbers)
        loss = by_sample.sum() / num_tokens.sum()
    else:
        loss = losses(model, numbers).mean() if index else 0 * losses(model, numbers + 1).sum()
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_gradient_is_that_of_the_mean_over_all_ranks(trained, name):
    scenario, dealt = SCENARIOS[name]
    steps = trained[name]
    counts = [[len(of_rank) for of_rank in valid] for valid, _ in steps]
    assert counts == (counts if dealt is None else dealt)
    read = [number for valid, _ in steps for of_rank in valid for number in of_rank]
    assert not set(read) & set(scenario.refused)
    for valid, gradients in steps:
        index = [number for of_rank in valid for number in of_rank]
        wanted = gradients_of_one_process(index, of_tokens=scenario.by == "tokens")
        for got, want in zip(gradients, wanted, strict=True):
            if scenario.bf16:  # a part in 256 for each of two layers forth and back, and the loss
                assert (got - want).norm() <= 5 / 256 * want.norm()
            else:
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)


def test_refusal_leaves_the_ranks_with_different_numbers(trained):
    counts = [
        [len(of_rank) for of_rank in valid] for valid, _ in trained["groups, some samples refused"]
    ]
    assert sum(map(sum, counts)) == 19 - 5
    assert any(one != other for one, other in counts)
