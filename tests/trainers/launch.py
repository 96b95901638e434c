"""Runs a trainer's script on several ranks, launch after launch, and ends all that it started.

A script is given the corpus, the folder of the run and its options as JSON.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardloader.planning.audit import audit_logs
from tests.corpora import make_corpus

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DEADLINE_S = 100  # of one launch, on a machine that does much else
COUNTS = (7, 0, 9, 12, 5, 10)
NUM_SAMPLES = sum(COUNTS)  # 43: eleven steps of two ranks with 2 each, the last with 3 samples

# No script asks anything of the network, nor tells anybody of itself.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # how soon a report is taken up
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONWARNINGS": "ignore",  # the trainers' own
    "PYTHONPATH": str(ROOT),
}


def environment() -> dict[str, str]:
    """That of a script, whatever launched the tests."""
    outer = os.environ  # noqa: TID251 - the child's, not ours
    mine = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    return {**{name: outer[name] for name in outer if name not in mine}, **QUIET}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of several launches over one corpus, and its folder."""

    corpus: Path
    out: Path

    @classmethod
    def begin(cls, folder: Path) -> Run:
        """A run that has not begun, in an empty folder."""
        (folder / "out").mkdir()
        return cls(corpus=make_corpus(folder / "corpus", COUNTS), out=folder / "out")

    def arguments(self, options: dict[str, Any]) -> list[str]:
        """What a script is given."""
        return [str(self.corpus), str(self.out), json.dumps(options)]

    def history(self, log: str = "log") -> Any:
        """The audit of what all launches read, compared with the plan."""
        return audit_logs(self.out / log, self.corpus)

    def assert_exact(self, *, epochs: int, log: str = "log") -> Any:
        """Every epoch holds every sample once, and each in its place."""
        history = self.history(log)
        assert history.is_exact, [str(fault) for fault in history.faults()]
        assert [epoch.epoch for epoch in history.epochs] == list(range(epochs))
        assert {epoch.tally.samples for epoch in history.epochs} == {NUM_SAMPLES}
        return history

    def told(self, name: str) -> Any:
        """What a rank wrote down with `tell`."""
        return json.loads((self.out / f"{name}.json").read_text())


class Started:
    """A script that starts its ranks itself."""

    def __init__(self, run: Run, script: str, **options: Any) -> None:
        self.run = run
        self._printed = run.out / f"printed-{script}.txt"
        with self._printed.open("w") as printed:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / f"{script}.py"), *run.arguments(options)],
                stdout=printed,
                stderr=printed,
                env=environment(),
                start_new_session=True,
            )

    def wait(self) -> int:
        """Its exit code."""
        try:
            return self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {DEADLINE_S} s:\n{self.printed()}") from None

    def wait_for(self, path: Path) -> None:
        """Wait for a file that it writes."""
        deadline = time.monotonic() + DEADLINE_S
        while not path.exists():
            assert self._process.poll() is None, self.printed()
            assert time.monotonic() < deadline, self.printed()
            time.sleep(0.05)

    def printed(self) -> str:
        """What it has printed last."""
        return self._printed.read_text()[-8000:]

    def end(self) -> None:
        """The end of it and of all that it started."""
        end(self._process)
        self._process.wait()


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process and those of its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Ranks:
    """Ranks of scripts, forked for each launch from a process that has imported them."""

    def __init__(self) -> None:
        self._launches = 0
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(HERE / "forked.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )

    def end(self) -> None:
        """The end of the process and of what it forked."""
        end(self._process)
        self._process.communicate()

    def launch(
        self, run: Run, script: str, num_ranks: int, *, ends: str = "well", **options: Any
    ) -> None:
        """One launch, which ends "well" or with rank 1 "killed"."""
        self._launches += 1
        printed = run.out / f"printed-{self._launches}.txt"
        with socket.socket() as asked:
            asked.bind(("127.0.0.1", 0))
            port = asked.getsockname()[1]
        launch = {
            "script": script,
            "ranks": num_ranks,
            "port": port,
            "arguments": run.arguments(options),
            "printed": str(printed),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(launch) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], DEADLINE_S)
        codes = json.loads(self._process.stdout.readline() or "[]") if ready else []
        if not codes:  # the next test's launch is not to wait for this one's ranks
            self.end()
            self._process = self._begin()
        text = printed.read_text()[-8000:] if printed.exists() else ""
        if ends == "well":
            assert codes == [0] * num_ranks, f"{codes}: {text}"
        else:
            assert codes[1:2] == [-signal.SIGKILL], f"{codes}: {text}"
