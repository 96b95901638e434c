"""Runs of real ranks that are killed at random: does the history of each pass the audit?

    python -m tests.stress.kills 50 [--first SEED]
    python -m tests.stress.kills --replay SEED

A round is made from one seed: launches in random topologies, of each of which a random process (a
rank, a DataLoader worker or the launcher) gets SIGKILL at a random time, until two epochs are read.
The next launch goes on from the last saved state. A launch must end by itself soon after the kill;
one that does not is a fault, told with its stacks, and its processes are ended. When a kill strikes
is a matter of time, so a replay repeats the launches and not the instant.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
from tqdm import tqdm

from shardloader.planning.audit import audit_logs
from tests.corpora import kept_corpus
from tests.stress.ranks import launch

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

FORK = multiprocessing.get_context("fork")  # torch is imported once, and not for every launch
COUNTS = (17, 0, 9, 30, 1, 23, 40, 11, 0, 25)
EPOCHS = 2
MOST_KILLS = 4  # of a round; the launch after them is left alone
START_S = 60.0  # patience for a launch's first step
END_S = 60.0  # for the end of a launch that was killed, or of one that has all to read
STACKS_S = 5.0  # for the stacks of one that hangs


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `ranks` is told."""

    corpus: str
    out: str
    launch: int
    world_size: int
    batch_size: int
    num_workers: int
    persistent: bool
    even: str
    window: int
    steps_per_epoch: int | None
    save_every: int
    epochs: int = EPOCHS
    lifetime_s: float = 120.0
    store: dict[str, Any] | None = None  # see `ranks`

    @property
    def topology(self) -> str:
        return f"{self.world_size} ranks x {self.num_workers} workers x {self.batch_size}"


class HangError(AssertionError):
    """A launch that did not end, or not begin."""


class Job:
    """A launch. All of its processes hold one pipe, whose end is the end of the last of them."""

    def __init__(self, options: Options) -> None:
        self._about = options
        self._log = Path(options.out) / f"launch-{options.launch}.log"
        self._pipe, to_write = os.pipe()
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._launcher = FORK.Process(target=launch, args=(asdict(options), to_write, log))
        self._launcher.start()
        os.close(to_write)
        os.close(log)
        self.words: Counter[str] = Counter()
        self.has_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End what is left of the launch's process group."""
        for process in [each for members in self.family().values() for each in members]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._launcher.join()
        os.close(self._pipe)

    @property
    def succeeded(self) -> bool:
        self._launcher.join(END_S)
        return self._launcher.exitcode == 0

    def follow(self, seconds: float, until: Callable[[Counter[str]], bool]) -> bool:
        """Read what the ranks say until it is enough, or they ended; False if time was up first."""
        deadline = time.monotonic() + seconds
        while not (self.has_ended or until(self.words)):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._pipe], [], [], left)[0]:
                return False
            said = os.read(self._pipe, 1 << 16)
            self.has_ended = not said
            self.words.update(said.decode().split())
        return True

    def finish(self) -> None:
        """Wait for the end of all processes; raises HangError, with their stacks."""
        if not self.follow(END_S, lambda _: False):
            raise self.hang("did not end")

    def hang(self, what: str) -> HangError:
        """The fault, with the stacks of every process in the group."""
        family = self.family()
        for process in [member for members in family.values() for member in members]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGUSR1)
        self.follow(STACKS_S, lambda _: False)
        kinds = {kind: len(members) for kind, members in family.items()}
        return HangError(f"a launch of {self._about.topology} {what}; alive: {kinds}\n{self.log}")

    @property
    def log(self) -> str:
        """What the launch's processes wrote to stderr, the end of it."""
        return self._log.read_text(errors="replace")[-8000:]

    def family(self) -> dict[str, list[psutil.Process]]:
        """The living processes by kind; also those whose parent has gone."""
        members = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if self._launcher.pid in {process.pid, os.getpgid(process.pid)}:
                    members.append((process, process.ppid()))
        ranks = {process.pid for process, parent in members if parent == self._launcher.pid}
        family: dict[str, list[psutil.Process]] = {"launcher": [], "rank": [], "worker": []}
        for process, _ in members:
            is_launcher = process.pid == self._launcher.pid
            kind = "launcher" if is_launcher else "rank" if process.pid in ranks else "worker"
            family[kind].append(process)
        return family

    def kill(self, rng: Random, only: str | None = None) -> str | None:
        """SIGKILL a random process, of one kind; that kind, None if there was none any more."""
        family = {kind: members for kind, members in self.family().items() if members}
        wanted = [
            kind
            for kind in ("rank", "rank", "worker", "worker", "launcher")
            if kind in family and only in {None, kind}
        ]
        if not wanted:
            return None
        kind = rng.choice(wanted)
        victim = rng.choice(family[kind])
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            return None
        return kind


class Round:
    """A run of two epochs, through kills."""

    def __init__(self, seed: int, out: Path, *, most_kills: int = MOST_KILLS) -> None:
        self.rng = random.Random(seed)
        self.out = out
        self.kills = self.rng.randint(1, most_kills)
        self.steps_per_epoch = self.rng.choice([None, None, None, 25])
        self.window = self.rng.choice([1, 5, 20, 1000])
        self.figures: Counter[str] = Counter()

    def go(self) -> Counter[str]:
        """Run it; raises what is wrong."""
        number = 0
        while not self._is_over():
            options = self._drawn(number)
            with Job(options) as job:
                if number < self.kills:
                    self._kill(job)
                job.finish()
                if number >= self.kills:
                    assert job.succeeded, f"a launch that nobody killed failed: {job.log}"
            self.figures["launches"] += 1
            number += 1
        self._audit()
        return self.figures

    def _drawn(self, number: int) -> Options:
        rng = self.rng
        num_workers = rng.randint(0, 2)
        return Options(
            corpus=str(kept_corpus(COUNTS)),
            out=str(self.out),
            launch=number,
            world_size=rng.randint(2, 3),
            batch_size=rng.choice([1, 2, 2, 3]),
            num_workers=num_workers,
            persistent=num_workers > 0 and rng.random() < 0.5,
            even=rng.choice(["pad", "pad", "drop", "join"]),
            window=self.window,
            steps_per_epoch=self.steps_per_epoch,
            save_every=rng.randint(3, 8),
        )

    def _kill(self, job: Job) -> None:
        """Some time after a random step; of some launches while they start."""
        steps = self.rng.randint(1, 40)
        if self.rng.random() < 0.2:
            job.follow(self.rng.uniform(0, 6), lambda words: words["step"] >= steps)
        elif not job.follow(START_S, lambda words: words["step"] > 0):
            raise job.hang("did not begin")
        elif not job.follow(END_S, lambda words: words["step"] >= steps):
            raise job.hang("did not go on")
        kind = None if job.has_ended else job.kill(self.rng)
        self.figures[f"{kind} kills" if kind else "too late"] += 1

    def _is_over(self) -> bool:
        state = self.out / "state.json"
        return state.exists() and json.loads(state.read_text())["epoch"] >= EPOCHS

    def _audit(self) -> None:
        history = audit_logs(self.out / "samples", kept_corpus(COUNTS))
        faults = history.faults()
        if self.window == 1:  # shards keep their own order, and few of them may repeat an epoch's
            faults = tuple(fault for fault in faults if fault.kind != "same_order")
        assert not faults, f"the audit finds {faults}"
        self.figures["superseded batches"] += history.superseded
        self.figures["samples"] += sum(epoch.tally.samples for epoch in history.epochs)
        self.figures["rounds"] += 1


def one_round(seed: int, *, most_kills: int = MOST_KILLS) -> Counter[str]:
    """Run the round of a seed; its figures. Raises what is wrong, and then keeps its folder."""
    out = Path(tempfile.mkdtemp(prefix=f"shardloader-kills-{seed}-"))
    figures = Round(seed, out, most_kills=most_kills).go()
    shutil.rmtree(out)
    return figures


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=2, help="rounds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--replay", type=int, help="run the round of this seed alone")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.count)
    if options.replay is not None:
        seeds = range(options.replay, options.replay + 1)
    started = time.monotonic()
    figures: Counter[str] = Counter({"rounds": 0, "hangs": 0, "faults": 0})
    for seed in tqdm(seeds, unit="round", disable=None):
        try:
            figures.update(one_round(seed))
        except Exception as error:
            figures["hangs" if isinstance(error, HangError) else "faults"] += 1
            print(f"seed {seed}: {traceback.format_exc()}", flush=True)
    told = ", ".join(f"{name}: {number}" for name, number in figures.items())
    print(f"{told}, {time.monotonic() - started:.0f} s")
    sys.exit(figures["hangs"] + figures["faults"] > 0)


if __name__ == "__main__":
    main()
