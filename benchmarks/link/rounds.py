"""The two hosts, the link between them, and everybody's turns on it.

The server's cable is a link of so many Mbit/s (`tc ... tbf`). A turn is one process on the client,
with an empty cache; what it cost the server is read from the server's own log and meter.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from benchmarks.link.loaders import KEYS, REGION
from benchmarks.link.server import PORT
from tools.multinode.hosts import Network
from tools.multinode.job import PATHS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.link.corpus import Corpus
    from benchmarks.link.loaders import Loader

ROOT: Final = Path(__file__).resolve().parents[2]
START_LIMIT_S: Final = 60.0
TURN_LIMIT_S: Final = 180.0
BURST: Final = "256kb"
QUEUE: Final = "20ms"


class LinkError(Exception):
    """The server or the link can't be had here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all turns share."""

    corpus: Corpus
    served: Path  # the folder that holds the bucket
    home: Path  # for what is left behind: logs and states
    caches: Path
    peers: Path
    mbit: float
    latency_s: float
    batch: int
    num_workers: int
    window: int

    def environment(self) -> dict[str, str]:
        """Nothing of this process's own."""
        return {
            **KEYS,
            "AWS_DEFAULT_REGION": REGION,
            "HOME": str(self.home),
            "PATH": PATHS,
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            "S3_ENDPOINT_URL": "http://server:" + str(PORT),
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }


class Link:
    """A server and a client on a link; a context manager that ends them."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._network = Network(["server", "client"], setting.home)

    def __enter__(self) -> Self:
        self._network.__enter__()
        try:
            self._limit()
            self._serve()
        except BaseException:
            self._network.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._network.__exit__()

    def _limit(self) -> None:
        rate = f"{self._setting.mbit:g}mbit"
        words = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf"]
        log = self._setting.home / "tc.txt"
        with log.open("wb") as output:
            command = [*words, "rate", rate, "burst", BURST, "latency", QUEUE]
            started = self._network.hosts["server"].start(
                command, environment=self._setting.environment(), output=output
            )
        if started.wait(START_LIMIT_S) != 0:
            raise LinkError(f"the link can't be limited: {log.read_text().strip()}")

    def _serve(self) -> None:
        setting, host = self._setting, self._network.hosts["server"]
        log = setting.home / "server.txt"
        command = [sys.executable, "-m", "benchmarks.link.server", host.address]
        command += [str(setting.served), str(setting.home), str(setting.latency_s)]
        with log.open("wb") as output:
            started = host.start(command, environment=setting.environment(), output=output)
        deadline = time.monotonic() + START_LIMIT_S
        while log.read_text() != "ready\n":
            if started.ended is not None or time.monotonic() > deadline:
                raise LinkError(f"the server does not start: {log.read_text().strip()}")
            time.sleep(0.02)

    def turn(self, loader: Loader, what: str) -> dict[str, Any]:
        """One process of one loader: its figures, or `failed`, why there are none."""
        setting = self._setting
        place, log = setting.home / "place.json", setting.home / "said.txt"
        cache = setting.caches / "turn"
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        place.write_text(json.dumps(self._place(loader, what, cache)))
        python = str(setting.peers) if loader.is_peer else sys.executable
        command = [python, "-m", "benchmarks.link.measure", loader.name, str(place)]
        asked_before = len(self._log())
        started_at = time.monotonic()
        with log.open("wb") as output:
            started = self._network.hosts["client"].start(
                command, environment=setting.environment(), output=output
            )
        code = started.wait(TURN_LIMIT_S)
        started.kill()
        shutil.rmtree(cache, ignore_errors=True)
        said = log.read_text(errors="replace").strip()
        if code != 0:
            return {"failed": f"exit code {code}, {said[-400:]}"}
        found = json.loads(said.splitlines()[-1])
        asked = self._log()[asked_before:]
        return self._figures(found, what, started_at, asked)

    def _place(self, loader: Loader, what: str, cache: Path) -> dict[str, Any]:
        setting = self._setting
        tars = setting.served / "corpus" / "tar"
        return {
            "endpoint": f"http://{self._network.hosts['server'].address}:{PORT}",
            "cache": str(cache),
            "names": sorted(path.name for path in tars.glob("*.tar")),
            "batch": setting.batch,
            "num_workers": setting.num_workers,
            "window": setting.window,
            "what": what,
            "middle": setting.corpus.num_samples // 2,
            "state": str(setting.home / f"state of {loader.name}.json"),
        }

    def _log(self) -> list[str]:
        path = self._setting.home / "access"
        return path.read_text().splitlines() if path.exists() else []

    def _figures(
        self, found: dict[str, Any], what: str, started_at: float, asked: list[str]
    ) -> dict[str, Any]:
        body = sum(int(line.rpartition(" ")[2]) for line in asked)
        figures = {
            "first_s": found["first_at"] - found["opened_at"],
            "first_from_start_s": found["first_at"] - started_at,
            "requests": len(asked),
            "body_bytes": body,
            "asked": asked,
            "versions": found["versions"],
        }
        if what == "resumed":
            return figures
        took = found["done_at"] - found["opened_at"]
        given = self._setting.corpus.payload_bytes if found["samples"] else body
        return {
            **figures,
            "samples": found["samples"],
            "total": found["total"],
            "seconds": took,
            "bytes_per_s": given / took,
            "steady_bytes_per_s": steady(self._meter(), found["opened_at"], found["done_at"]),
            "cpu_share": found["cpu_s"] / (found["done_at"] - started_at),
        }

    def _meter(self) -> Iterator[tuple[float, int]]:
        for line in (self._setting.home / "meter").read_text().splitlines()[:-1]:
            at, _, sent = line.partition(" ")
            yield float(at), int(sent)


def steady(meter: Iterator[tuple[float, int]], since: float, until: float) -> float:
    """Bytes a second over the wire, in the second half of the bytes that left in between.

    The last hundredth is left out: what comes at the very end are goodbyes.

    >>> steady(iter([(0.0, 0), (1.0, 0), (2.0, 50), (4.0, 99), (5.0, 100), (9.0, 100)]), 0.0, 9.0)
    24.5
    """
    read = [(at, sent) for at, sent in meter if since <= at <= until]
    if not read:
        return 0.0
    before, after = read[0][1], read[-1][1]
    (first, half), (last, most) = (
        next(each for each in read if each[1] >= before + share * (after - before))
        for share in (0.5, 0.99)
    )
    return (most - half) / (last - first) if last > first else 0.0
