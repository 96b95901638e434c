"""Real ranks: torchrun with gloo, stopped on two ranks and resumed on three."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shardloader.planning.audit import audit_logs
from tests.corpora import kept_corpus

SCRIPT = Path(__file__).with_name("torchrun_reads.py")
COUNTS = (5, 0, 4, 7, 9)


def torchrun(ranks, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_two_ranks_read_apart_in_equal_steps_and_three_go_on(tmp_path):
    torchrun(2, kept_corpus(COUNTS), tmp_path, 3)
    torchrun(3, kept_corpus(COUNTS), tmp_path, 0)
    history = audit_logs(tmp_path / "log")
    assert history.is_exact
    assert history.attempts == 2
    (epoch,) = history.epochs
    assert epoch.tally.samples == 25
    assert epoch.steps == 3 + 3
