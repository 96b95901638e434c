"""Some of the nightly stress: chains of topology changes, ranks that are killed, a bad store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.stress.chains import chain

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_chains_of_topology_changes_read_every_sample_once_and_as_planned(first):
    for seed in range(first, first + 25):
        try:
            chain(seed)
        except BaseException as error:
            error.add_note(f"replay it: python -m tests.stress.chains --replay {seed}")
            raise


def test_a_run_whose_processes_are_killed_at_random_has_an_exact_history():
    command = [sys.executable, "-m", "tests.stress.kills", "1"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rounds: 1," in done.stdout


def test_an_epoch_from_a_store_with_every_fault_is_exact_and_leaves_nothing():
    pytest.importorskip("s3fs")
    command = [sys.executable, "-W", "ignore", "-m", "tests.stress.stores"]
    command += ["--epochs", "1", "--seed", "8", "--kills", "1"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker kills: 1\n" in done.stdout
    assert "1 epochs, seed 8," in done.stdout
