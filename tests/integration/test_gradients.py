"""With loss_scale, DDP's gradient is that of the mean over the global batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.corpora import kept_corpus
from tests.integration.models import a_model, losses

ROOT = Path(__file__).parents[2]


def steps_of_two_ranks(out, counts, batch_size, even):
    script = Path(__file__).with_name("gradients.py")
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(script), str(out), str(kept_corpus(counts))]
    done = subprocess.run(
        [*command, str(batch_size), even],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # noqa: TID251 - the child's, not ours
    )
    assert done.returncode == 0, done.stderr
    return torch.load(out, weights_only=True)


def gradients_of_one_process(index):
    model = a_model()
    losses(model, torch.tensor(index)).mean().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("counts", "batch_size", "even", "dealt"),
    [
        ((4, 3), 2, "pad", [[2, 2], [2, 1]]),  # split 2 and 1 in a short last step
        ((5, 4), 4, "pad", [[4, 4], [1, 0]]),  # a rank with no valid sample
        ((5, 4), 4, "drop", [[4, 4]]),
    ],
)
def test_the_gradient_is_that_of_the_mean_over_all_ranks(tmp_path, counts, batch_size, even, dealt):
    steps = steps_of_two_ranks(tmp_path / "steps.pt", counts, batch_size, even)
    assert [[len(of_rank) for of_rank in valid] for valid, _ in steps] == dealt
    for valid, gradients in steps:
        wanted = gradients_of_one_process([number for of_rank in valid for number in of_rank])
        for got, want in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)
