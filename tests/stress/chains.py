"""Chains of launches in random topologies: is every sample read once, and as the plan says?

    python -m tests.stress.chains 5000 [--first SEED] [--jobs 2]
    python -m tests.stress.chains --replay SEED

A chain is made from one seed. It goes through launches with any topology, batch size, policy and
grid, whose loaders (all ranks, in this process) are stopped, loaded, rolled back, broken off,
skipped and moved by set_epoch at random. What arrives is held against the plan of the place that
`stand` says, and counted by the `ledger`. Prints figures, and each fault with its seed; exits 1 if
there is one.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from shardloader.planning.audit import audit_logs
from tests.stress.ledger import Ledger, place_of
from tests.stress.stand import Stand
from tests.stress.worlds import (
    Fleet,
    Launch,
    Run,
    drawn_grid,
    manifest_of,
    next_step,
    planned,
    planned_steps,
    told_by,
    valid_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardloader.planning.planned import Plan

# What of a state says which samples come next.
ORDER = ("dataset", "seed", "epoch", "consumed", "grid", "window", "steps_per_epoch")
SECONDS_A_CHAIN = 100  # of patience: a chain takes a fraction of a second
WITH_WORKERS = 0.04  # of the launches


class Chain:
    """One chain. tame: it never leaves an epoch behind, so that its logs must pass the audit."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.run = Run.drawn(self.rng)
        self.grid = drawn_grid(self.rng) if self.rng.random() < 0.3 else None
        self.tame = self.rng.random() < 0.4
        self.folder = folder / "log"
        self.ledger = Ledger(self.run.num_samples)
        self.stand = Stand()
        self.state: dict[str, Any] | None = None
        self.figures: Counter[str] = Counter()

    def go(self) -> Counter[str]:
        """Run it; raises what is wrong."""
        launches = self.rng.randint(2, 6)
        for number in range(launches):
            self._launch(number)
            if number < launches - 1:
                self._leave()
        if self.tame:
            self._end()
        self.figures["passes"] += self.ledger.check()
        if self.tame and self.ledger.num_read:
            self._audit()
        self.figures["chains"] += 1
        return self.figures

    def _launch(self, number: int) -> None:
        rng = self.rng
        if rng.random() < 0.1:  # another grid= only says what a new run would take
            self.grid = rng.choice([None, drawn_grid(rng)])
        self.launch = Launch.drawn(rng, grid=self.grid, workers=rng.random() < WITH_WORKERS)
        log = self.folder if self.tame else None
        self.fleet = Fleet(self.run, self.launch, log=log, number=number)
        early = self.fleet.iterators() if rng.random() < 0.2 else None
        self.stand = Stand()
        if self.state is not None:
            self._load(self.state)
            self.figures["topology changes"] += 1
        each_epoch, once = rng.random() < 0.3, rng.random() < 0.2
        for turn in range(rng.randint(1, 3)):
            if each_epoch or (once and turn == 0):
                self._set_epoch(self.stand.epoch)
            elif not self.tame and rng.random() < 0.1:
                self._set_epoch(max(0, self.stand.epoch + rng.choice([-2, -1, 1, 2])))
            self._pass(early or self.fleet.iterators())
            early = None
            self._between()

    # What users do to a position

    def _load(self, state: dict[str, Any]) -> None:
        self.fleet.load(state)
        at = place_of(state)
        self.ledger.go_back(at)
        self.state = state
        self.stand.loads(at)
        plan = planned(self.run, self.launch, at, state)
        if at[1] and plan.steps == 0:  # the epoch is over in this topology
            self._omit(plan)
            self.ledger.finished[at[0]] = plan.dealing.length
            self.stand.loads((at[0] + 1, 0))
        self._check_state()
        if self.rng.random() < 0.1 and self.stand.consumed == 0 and self.stand.epoch:
            self._set_epoch(self.stand.epoch - 1)  # the loop that saved the finished epoch

    def _set_epoch(self, epoch: int) -> None:
        if self.stand.set_epoch(epoch):
            self.ledger.go_back((epoch, 0))
        self.fleet.set_epoch(epoch, by_sampler=self.rng.random() < 0.3)

    def _skip(self) -> None:
        steps = self.rng.randint(0, 6)
        plan = self._plan()
        self.state = plan.checkpoint.to_state()
        self.fleet.skip(steps)
        stand, dealing = self.stand, plan.dealing
        ends = steps > 0 and steps >= plan.steps
        if ends or stand.leaves:
            if not stand.leaves or ends:
                self._note("skipped", plan, min(steps, plan.steps))
            if ends:
                self._finish(plan)
            else:
                stand.finishes()
                self.ledger.go_back(stand.place)
        else:
            self._note("skipped", plan, steps)
            stand.moves((stand.epoch, stand.consumed + steps * dealing.step_size))
        self.figures["skipped"] += steps
        self._check_state()

    def _between(self) -> None:
        """After a pass: go on from the state, from an older one, skip, or break the epoch off."""
        choice = self.rng.random()
        if self.stand.running and (choice < 0.5 or self.tame):
            self._load(self._keep())
        elif choice < 0.65 and self.ledger.kept:
            self._load(self.rng.choice(self.ledger.kept))
            self.figures["rollbacks"] += 1
        elif choice < 0.75:
            self._skip()

    def _leave(self) -> None:
        """End the launch: the next one starts from here, or from an older state."""
        self.state = self._keep()
        if self.rng.random() < 0.15:
            self.state = self.rng.choice(self.ledger.kept)
            self.figures["rollbacks"] += 1

    # Reading, and what must hold

    def _pass(self, iterators: list[Any], *, whole: bool = False) -> None:
        if self.stand.empty:
            assert set(self.fleet.steps_left) == {0}
            assert not any(next_step(iterators)), "an empty pass gave batches"
            self.stand.empty = False
            self._check_state()
            return
        before = self.stand.place
        again = self.stand.running
        if again:
            self.stand.begins()
        plan = self._plan()
        whole = whole or self.rng.random() < 0.5
        stop = plan.steps if whole else self.rng.randint(0, plan.steps)
        if stop == 0 and plan.steps:  # iterators that are never asked change nothing
            if again:
                self.stand = Stand(*before, running=True)
            return
        self.ledger.go_back(self.stand.place)
        self.state = plan.checkpoint.to_state()
        promised = self.fleet.lengths if self.stand.consumed == 0 else self.fleet.steps_left
        counts = self._read(plan, iterators, stop)
        if stop == plan.steps:
            assert counts == promised, f"{promised} batches promised, {counts} came"
            self._at_end(iterators)

    def _read(self, plan: Plan, iterators: list[Any], stop: int) -> list[int]:
        """Take steps, each as planned; batches of each rank."""
        counts = [0] * len(iterators)
        start, dealing = self.stand.place, plan.dealing
        expectations = planned_steps(plan)
        if plan.steps:
            step, rank = self.rng.randrange(plan.steps), self.rng.randrange(len(iterators))
            assert expectations[step][rank] == told_by(plan, step, rank)
        for step, expected in enumerate(expectations[:stop]):
            came = next_step(iterators)
            assert came == expected, f"{start}, step {step}: {expected} planned, {came} came"
            assert self.launch.even == "join" or None not in came, "ranks differ in steps"
            self._check_weights(came)
            for rank, batch in enumerate(came):
                counts[rank] += batch is not None
            self._note_step("read", plan, step, valid_in(came))
            self.figures["batches"] += sum(batch is not None for batch in came)
            self.figures["samples"] += len(valid_in(came))
            if step + 1 < plan.steps:
                self.stand.receives(start[1] + (step + 1) * dealing.step_size)
                self._meanwhile()
        if stop == plan.steps:
            if plan.steps == 0:
                assert next_step(iterators) == [None] * len(iterators)
            self._finish(plan)
        self._check_state()
        return counts

    def _meanwhile(self) -> None:
        """What happens between two steps of a pass."""
        if self.rng.random() < 0.1:
            self._keep()
        if not self.tame and self.rng.random() < 0.01:
            self._set_epoch(max(0, self.stand.epoch + self.rng.choice([-1, 0, 1, 2])))
        if self.rng.random() < 0.05:
            self._check_state()

    def _at_end(self, iterators: list[Any]) -> None:
        if self.rng.random() < 0.5:
            assert next_step(iterators) == [None] * len(iterators)
            self._check_state()

    def _check_weights(self, came: list[Any]) -> None:
        """The valid samples of a step are as many as every rank was told."""
        told = {batch[2] for batch in came if batch is not None}
        assert told == {len(valid_in(came))}, f"told {told}, came {len(valid_in(came))}"

    def _check_state(self) -> None:
        state = self.fleet.state()
        assert place_of(state) == self.stand.place, f"{state} is not {self.stand}"
        if not self.stand.running:
            plan = self._plan().checkpoint.to_state()
            differing = [name for name in ORDER if state[name] != plan[name]]
            assert not differing, f"the state is {state}, planned {plan}, {self.stand}"

    def _end(self) -> None:
        """Read an epoch to its end: a load stands in the log once it was read from."""
        while self.stand.empty:
            self._pass(self.fleet.iterators())
        self._pass(self.fleet.iterators(), whole=True)

    def _audit(self) -> None:
        history = audit_logs(self.folder, manifest_of(self.run.counts))
        # A window of one keeps each shard's order, so few shards repeat an epoch's by chance.
        faults = [fault for fault in history.faults(unfinished=True) if fault.kind != "same_order"]
        assert not faults, f"the audit finds {faults}"
        logged = sum(epoch.tally.samples for epoch in history.epochs)
        assert logged == self.ledger.num_read, f"logged {logged}, read {self.ledger.num_read}"
        self.figures["audits"] += 1

    # The plan, and the ledger

    def _plan(self, **other: Any) -> Plan:
        return planned(self.run, self.launch, self.stand.place, self.state, **other)

    def _keep(self) -> dict[str, Any]:
        """Take the state."""
        state = self.fleet.state()
        assert place_of(state) == self.stand.place, f"{state} is not {self.stand}"
        self.ledger.kept.append(state)
        return state

    def _note(self, kind: str, plan: Plan, steps: int, *, first: int = 0) -> None:
        for step, expected in enumerate(planned_steps(plan)):
            if first <= step < first + steps:
                self._note_step(kind, plan, step, valid_in(expected))

    def _note_step(self, kind: str, plan: Plan, step: int, samples: list[int]) -> None:
        consumed = plan.dealing.consumed + step * plan.dealing.step_size
        place = plan.checkpoint.epoch, consumed
        self.ledger.add(kind, place, plan.dealing.first + consumed, samples)

    def _omit(self, plan: Plan) -> None:
        """Note what "drop" leaves out: what "pad" would have read in one step more."""
        if plan.dealing.num_omitted:
            assert plan.dealing.num_omitted < plan.dealing.step_size
            checkpoint = plan.checkpoint
            at = checkpoint.epoch, checkpoint.consumed
            padded = planned(self.run, self.launch, at, checkpoint.to_state(), even="pad")
            assert padded.steps == plan.steps + 1
            self._note("omitted", padded, 1, first=plan.steps)

    def _finish(self, plan: Plan) -> None:
        """The epoch of a plan was read to its end."""
        self._omit(plan)
        self.ledger.finished[plan.checkpoint.epoch] = plan.dealing.length
        self.state = plan.checkpoint.to_state()
        self.stand.finishes()
        self.ledger.go_back(self.stand.place)


@contextmanager
def _patience(seconds: int) -> Iterator[None]:
    """Let a hang fail, with its stacks."""

    def give_up(*_: object) -> None:
        faulthandler.dump_traceback()
        raise TimeoutError(f"a chain took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def chain(seed: int) -> Counter[str]:
    """Run the chain of a seed; its figures. Raises what is wrong."""
    folder = Path(tempfile.mkdtemp(prefix="shardloader-chain-"))
    try:
        with _patience(SECONDS_A_CHAIN):
            return Chain(seed, folder).go()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def chains(seeds: range) -> tuple[Counter[str], list[str]]:
    """Run many, and quietly; figures, and the faults with their seeds."""
    logging.getLogger("shardloader").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    figures: Counter[str] = Counter()
    faults = []
    for seed in seeds:
        try:
            figures += chain(seed)
        except Exception:
            faults.append(f"seed {seed}: {traceback.format_exc()}")
    return figures, faults


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=200, help="chains to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run them in")
    parser.add_argument("--replay", type=int, help="run the chain of this seed alone")
    options = parser.parse_args()
    if options.replay is not None:
        print(dict(chain(options.replay)))
        return
    started = time.monotonic()
    stop = options.first + options.count
    parts = [range(first, min(first + 50, stop)) for first in range(options.first, stop, 50)]
    figures: Counter[str] = Counter()
    num_faults = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        done = tqdm(pool.map(chains, parts), total=len(parts), unit="part", disable=None)
        for found, faults in done:
            figures += found
            num_faults += len(faults)
            for fault in faults:
                print(fault, flush=True)
    told = ", ".join(f"{name}: {number}" for name, number in figures.items())
    print(f"{told}, faults: {num_faults}, {time.monotonic() - started:.0f} s")
    sys.exit(num_faults > 0)


if __name__ == "__main__":
    main()
