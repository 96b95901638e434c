"""A worker ends soon after its main process was killed, whatever it is about to hand over."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from shardloader.loader import orphan
from tests.corpora import make_corpus_with

PATIENCE_S = 60
ROOT = Path(__file__).parents[2]
MAIN = """
import multiprocessing, sys, time
from tests.corpora import loader_of

if __name__ == "__main__":
    loader = loader_of(
        sys.argv[1], batch_size=4, num_workers=2, prefetch_factor=10,
        multiprocessing_context=sys.argv[2], stall_s=None,
    )
    batches = iter(loader)
    next(batches)
    print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
    time.sleep(600)
"""


def _lives_on(never):
    orphan.LOOK_S = orphan.GRACE_S = 0.05  # type: ignore[misc]
    orphan.end_with_parent()
    never.wait(1)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_whose_main_process_lives_is_left_alone(method):
    context = multiprocessing.get_context(method)
    never = context.Event()
    process = context.Process(target=_lives_on, args=(never,))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_whose_pipe_is_full_ends_with_its_main_process(method, tmp_path):
    text = b"x" * 6000  # some batches of it are more than a pipe takes
    corpus = make_corpus_with(tmp_path / "corpus", ([("txt", text)] for _ in range(200)))
    program = tmp_path / "main.py"
    program.write_text(MAIN)
    command = [sys.executable, program, corpus, method]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        workers = [psutil.Process(int(number)) for number in process.stdout.readline().split()]
        process.send_signal(signal.SIGKILL)
    assert len(workers) >= 2
    deadline = time.monotonic() + PATIENCE_S
    _, alive = psutil.wait_procs(workers, timeout=deadline - time.monotonic())
    for worker in alive:
        worker.kill()
    assert not alive
