"""Restart for real: torchrun's agents are killed and join, and every sample is read once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from shardloader.planning.audit import audit_logs
from tests.corpora import kept_corpus

SCRIPT = Path(__file__).with_name("elastic_train.py")
ROOT = Path(__file__).parents[2]
COUNTS = (30, 0, 41, 25, 24)
NUM_SAMPLES = sum(COUNTS)
LIMIT_S = 110  # of the whole, on a loaded machine


class Job:
    """torchrun's agents of one job, each as if on a machine of its own, with one worker."""

    def __init__(self, out: Path, port: int) -> None:
        self.out = out
        self.agents: list[subprocess.Popen[bytes]] = []
        self._port = port
        self._deadline = time.monotonic() + LIMIT_S
        (out / "told").mkdir()
        for ranks in (1, 2, 3):
            self.hold(ranks, 0)

    def hold(self, ranks: int, position: int) -> None:
        """Let training with so many ranks wait once it has come to a position."""
        new = self.out / "hold.new"
        new.write_text(str(position))
        new.replace(self.out / f"hold-{ranks}")

    def add_agent(self) -> subprocess.Popen[bytes]:
        """Start one; the first holds the rendezvous' store."""
        number = len(self.agents)
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:3"]
        command += ["--nproc-per-node=1", "--max-restarts=9", "--monitor-interval=0.1"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}"]
        command += ["--local-addr=127.0.0.1", "--rdzv-id=elastic"]
        is_host = "true" if number == 0 else "false"
        conf = f"is_host={is_host},join_timeout=60,timeout=60,last_call_timeout=2,"
        conf += "keep_alive_interval=1,keep_alive_max_attempt=6"
        command += [f"--rdzv-conf={conf}"]
        command += [str(SCRIPT), str(kept_corpus(COUNTS)), str(self.out)]
        environment = {
            **os.environ,  # noqa: TID251 - the child's, not ours
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        with (self.out / f"agent-{number}.txt").open("wb") as output:
            agent = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        self.agents.append(agent)
        return agent

    def wait_for(self, what, event):
        """Wait for an event; a job that fails or takes too long shows what it printed."""
        while not (found := event()):
            ended = [each.poll() for each in self.agents]
            if time.monotonic() > self._deadline or any(
                code not in {None, 0, -9} for code in ended
            ):
                pytest.fail(f"{what} did not come, the agents are {ended}:\n{self.printed()}")
            time.sleep(0.02)
        return found

    def told(self, ranks: int) -> dict[int, tuple[int, int]]:
        """Rank -> position and process of the furthest step with so many ranks."""
        found: dict[int, tuple[int, int]] = {}
        for path in (self.out / "told").glob(f"{ranks}-*-*"):
            if path.suffix != ".new":
                _, rank, position = map(int, path.name.split("-"))
                here = (position, int(path.read_text()))
                found[rank] = max(here, found.get(rank, here))
        return found

    def stand_at(self, ranks: int, position: int) -> dict[int, int]:
        """Rank -> process, once all of so many ranks have come to a position."""
        told = self.told(ranks)
        come = [rank for rank, (reached, _) in told.items() if reached >= position]
        return {rank: told[rank][1] for rank in come} if len(come) == ranks else {}

    def kill(self, agent: subprocess.Popen[bytes]) -> None:
        """The end of a machine: the agent and its worker, at once."""
        workers = psutil.Process(agent.pid).children(recursive=True)
        agent.send_signal(signal.SIGKILL)
        for worker in workers:
            worker.kill()
        agent.wait()

    def end(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                self.kill(agent)

    def printed(self) -> str:
        paths = sorted(self.out.glob("agent-*.txt"))
        return "\n".join(f"--- {path.name}\n{path.read_text()[-6000:]}" for path in paths)


@pytest.fixture
def job(tmp_path):
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port = asked.getsockname()[1]
    job = Job(tmp_path, port)
    yield job
    job.end()


def test_a_job_that_loses_a_machine_and_gains_one_reads_every_sample_once(job):
    job.hold(3, 24)
    job.add_agent()
    job.add_agent()
    lost = job.add_agent()
    job.wait_for("the fourth step of three ranks", lambda: job.stand_at(3, 24))
    # The checkpoint is that of the third: the fourth will be rolled back.
    assert json.loads((job.out / "checkpoint.json").read_text())["loader"]["consumed"] == 18
    job.hold(2, 54)
    job.kill(lost)
    job.hold(3, NUM_SAMPLES + 1)  # the two that are left find out in their next step
    job.wait_for("the ninth step of two ranks", lambda: job.stand_at(2, 54))
    job.add_agent()
    for agent in job.agents:
        job.wait_for("the end of all agents", lambda agent=agent: agent.poll() is not None)
    history = audit_logs(job.out / "log")
    assert history.is_exact, history.faults()
    assert history.attempts >= 3
    assert history.superseded > 0
    (epoch,) = history.epochs
    assert epoch.tally.samples == NUM_SAMPLES
    launches = sorted((path.suffixes[0], path.name[11:19]) for path in (job.out / "log").iterdir())
    assert "of-00002" in {ranks for _, ranks in launches}
    assert [ranks for _, ranks in launches[-3:]] == ["of-00003"] * 3
