"""A training job on the hosts: started as tools/launch has it, watched by what it writes.

Waiting is for events in the sample logs and for the ends of agents. Nothing here decides what is
done to the hosts: that is in `scenario`.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tools.multinode.store import KEYS, PORT
from tools.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from tools.multinode.hosts import Command, Network
    from tools.progress import Progress

ROOT: Final = Path(__file__).resolve().parents[2]
LAUNCH: Final = ROOT / "tools/launch/torchrun.sh"
SHOWN_CHARACTERS: Final = 4000  # of an agent's output, where the job failed
LOOK_EVERY_S: Final = 0.05
# How soon a host that says nothing counts as lost. On a cluster these are minutes.
TIMEOUT_S: Final = 10
RENDEZVOUS: Final = (
    "join_timeout=120,last_call_timeout=2,read_timeout=15,"
    "keep_alive_interval=1,keep_alive_max_attempt=8"
)
PATHS: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT: Final = {
    **KEYS,
    "PATH": PATHS,
    "PYTHONPATH": str(ROOT),
    "PYTHON": sys.executable,
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TIMEOUT": str(TIMEOUT_S),
    "RDZV_CONF": RENDEZVOUS,
}


Found = TypeVar("Found")


class JobError(Exception):
    """The job did not do what it was to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is trained, and where.

    nodes: the least and the most hosts; ranks: of each host.
    """

    out: Path
    store: str
    num_samples: int
    nodes: str
    ranks: int
    batch_size: int
    epochs: int

    @property
    def whole(self) -> int:
        """Positions of all epochs."""
        return self.epochs * self.num_samples


class Job:
    """The agents of a job, at most one running on each host."""

    def __init__(self, plan: Plan, network: Network, deadline: float) -> None:
        self._plan = plan
        self._network = network
        self._deadline = deadline
        self._started = 0
        self.agents: dict[str, Command] = {}

    def start(self, name: str, *, head: str) -> None:
        """Start torchrun on a host, as whoever keeps the cluster would."""
        plan = self._plan
        options = {"endpoint_url": f"http://{plan.store}:{PORT}"}
        command = ["bash", str(LAUNCH), "s3://corpus", str(plan.out)]
        command += ["--cache", str(plan.out / f"disk-of-{name}"), "--cache-bytes", "1GB"]
        command += ["--storage-options", json.dumps(options), "--num-workers", "0"]
        command += ["--batch-size", str(plan.batch_size), "--epochs", str(plan.epochs)]
        command += ["--width", "32", "--save-every", "5"]
        environment = {
            **ENVIRONMENT,
            "HEAD": head,
            "NNODES": plan.nodes,
            "NPROC": str(plan.ranks),
        }
        self._started += 1
        with (plan.out / f"agent-{self._started:02d}-{name}.txt").open("wb") as output:
            self.agents[name] = self._network.hosts[name].start(
                command, environment=environment, output=output
            )

    def progress(self) -> Progress:
        """How far the newest launch has come."""
        return progress(self._plan.out / "samples", self._plan.num_samples)

    def come_to(self, place: int, *, hosts: int, after: int = 0) -> Progress:
        """Wait until so many hosts, in a launch behind `after`, have consumed `place` positions."""

        def event() -> Progress | None:
            here = self.progress()
            is_there = here.launch > after and here.place >= place
            return here if is_there and here.ranks == hosts * self._plan.ranks else None

        what = f"{place} positions, by {hosts} hosts"
        return self._waited_for(what, event, needed=True)

    def end_of(self, name: str) -> int:
        """Wait for the end of a host's agent; its exit code."""
        agent = self.agents[name]
        self._waited_for(f"the end of torchrun on {name}", lambda: agent.ended is not None)
        return agent.ended or 0

    def fence(self, name: str) -> None:
        """Wait until a host's ranks have given up, and end its agent.

        As a cluster's keeper does with a host that does not answer: torchrun itself may wait for
        the rendezvous for a quarter of an hour, until TCP gives up.
        """
        agent = self.agents[name]
        self._waited_for(f"the end of the ranks of {name}", lambda: not agent.has_children)
        agent.kill()

    def _waited_for(
        self, what: str, event: Callable[[], Found | None], *, needed: bool = False
    ) -> Found:
        """Wait for an event; raises JobError if it comes too late, or none is left to bring it."""
        while not (found := event()):
            ended = {name: agent.ended for name, agent in self.agents.items()}
            is_over = needed and None not in ended.values()
            if is_over or time.monotonic() > self._deadline:
                raise JobError(
                    f"{what}: did not come; training stands at {self.progress()}, and the exit "
                    f"codes of torchrun are {ended}\n{self._printed()}"
                )
            time.sleep(LOOK_EVERY_S)
        return found

    def _printed(self) -> str:
        paths = sorted(self._plan.out.glob("*.txt"))
        texts = [path.read_text(errors="replace")[-SHOWN_CHARACTERS:] for path in paths]
        return "\n".join(f"--- {p.name}\n{text}" for p, text in zip(paths, texts, strict=True))
