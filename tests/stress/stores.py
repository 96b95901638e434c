"""Ranks that read from S3 behind a bad network, and are killed now and then: is all of it exact?

    python -m tests.stress.stores [--epochs 20] [--seed 0]

Two ranks of two workers share the least cache, two thirds of the corpus. Requests meet every kind
of fault that the proxy has, by chance. Now and then a random process gets SIGKILL, and all ranks
start again from the last saved state. In the end the audit must find every sample once an epoch;
the cache was never above its limit, which a process of its own watches; nothing is left behind: no
process, no part of a file, no lock, no shared memory; and no shard came more often than it had to.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.request import urlopen

import numpy as np
import psutil
import zstandard

from shardloader.order.window import Shuffle
from shardloader.planning.audit import audit_logs
from shardloader.planning.least_cache import LeastCache, reach_of
from shardloader.planning.plan import plan
from shardloader.reading.cache import Cache
from shardloader.reading.cache_folder import CacheFolder
from shardloader.reading.catalog import open_catalog
from shardloader.reading.indexing import index_dataset
from shardloader.reading.needs_files import told_needs
from tests.servers.plan import Fault, Plan
from tests.servers.processes import started
from tests.servers.s3 import s3_server
from tests.shards import tar_bytes
from tests.stress.kills import END_S, FORK, Job, Options

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from shardloader.format.manifest import Manifest

NUM_SHARDS = 24
SAMPLES = 24  # a shard
WINDOW = SAMPLES // 2
MOST_INDEX_BYTES = 24_000
TEXT_BYTES = 6000
PIECE_BYTES = 60_000  # of one request
WORLD_SIZE, NUM_WORKERS, BATCH = 2, 2, 4
STEPS = NUM_SHARDS * SAMPLES // (WORLD_SIZE * BATCH)
LANES = WORLD_SIZE * NUM_WORKERS
READERS_OF_A_SHARD = 2  # at most: those whose lanes meet in it
# Shards of a lane, at most, that a launch after a kill fetches anew: two that were on their way,
# and as many as were read since the state was saved that it goes on from.
BACK_AFTER_A_KILL = 4
# Faults after which all of a shard is fetched anew: another version of it seems to be there, or it
# is not as listed. Whatever else happens to a piece, that piece alone is asked for again.
COSTS_A_SHARD = ("changed HEAD", "page HEAD", "damage GET")
PATIENCE = {"first_s": 0.02, "longest_s": 0.2, "stall_s": 1.0, "deadline_s": 60.0}
VICTIMS = ("worker", "worker", "worker", "rank")
LOOK_S = 0.01
HANG_S = 90.0  # that no rank makes a step
MORE_OPEN = 24  # files that a process may have open at one epoch's end more than at another's
SHARED = Path("/dev/shm")  # noqa: S108 - nothing is made there


def plan_of(seed: int) -> Plan:
    """Every fault, by chance. What may come once and no second time in a row is kept apart."""
    both = ("*.tar", "*.zst")
    on_all = [
        Fault(kind="slow", path="*", method="*", chance=0.03, seconds=0.2),
        Fault(kind="status", status=503, path="*", method="*", chance=0.02),
        Fault(kind="status", status=503, retry_after=0, path="*", method="*", chance=0.01),
        Fault(kind="status", status=429, path="*", method="*", chance=0.02),
        Fault(kind="status", status=429, retry_after=1, path="*", method="*", chance=0.004),
        Fault(kind="expired", path="*", method="*", chance=0.006, apart=8),
        Fault(kind="reset", chance=0.03),
        Fault(kind="cut", chance=0.02),
        Fault(kind="stall", chance=0.008),
        Fault(kind="page", chance=0.01, apart=8),
    ]
    on_shards = [
        each
        for path in both
        for each in (
            Fault(kind="short", path=path, chance=0.02, apart=8),
            Fault(kind="changed", path=path, method="HEAD", chance=0.02, apart=4),
        )
    ]
    # A shard that is not as listed is fetched once more: so one of these two for each.
    damage = [
        Fault(kind="damage", path=f"*[0145]{end}", chance=0.02, apart=30)
        for end in (".tar", ".zst")
    ]
    pages = [
        Fault(kind="page", path=f"*[236789]{end}", method="HEAD", chance=0.02, apart=10)
        for end in (".tar", ".zst")
    ]
    return Plan(faults=(*damage, *pages, *on_shards, *on_all), seed=seed, latency_s=0.005)


def name_of(fault: Fault) -> str:
    """What a fault is called in the figures."""
    status = f" {fault.status}" if fault.kind == "status" else ""
    asks = " with Retry-After" if fault.retry_after is not None else ""
    method = {"GET": "", "*": "", "HEAD": " of HEAD"}[fault.method]
    return f"{fault.kind}{status}{asks}{method}"


def make_corpus(folder: Path, seed: int) -> Path:
    """Plain shards and zstd ones in turn, with digests."""
    rng = random.Random(seed)
    folder.mkdir()
    for shard in range(NUM_SHARDS):
        members = []
        for number in range(shard * SAMPLES, (shard + 1) * SAMPLES):
            text = f"text {number} {rng.randbytes(TEXT_BYTES // 2).hex()}"
            members.append((f"{number:06d}.txt", text.encode()))
        data, name = tar_bytes(members), f"shard-{shard:04d}.tar"
        if shard % 2:
            data, name = zstandard.compress(data), f"{name}.zst"
        (folder / name).write_bytes(data)
    cache = Cache(folder.parent / "local-cache")
    index_dataset(folder, digest=True, progress=False, cache=cache)
    return folder


def watch(folder: Path, connection: Connection, other: Connection) -> None:
    """Look how large a cache is until the other side speaks or ends; then tell it the most."""
    other.close()
    most = looks = 0
    cache = CacheFolder(folder)
    while not connection.poll(LOOK_S):
        if folder.is_dir():
            with cache.lock("space.lock"):
                most, looks = max(most, size_of(folder)), looks + 1
    with suppress(BrokenPipeError):
        connection.send((most, looks))


def size_of(folder: Path) -> int:
    """Bytes of what counts; the same under `space.lock` as what the limit is of."""
    found = 0
    for file in folder.iterdir():
        if file.suffix in {".cached", ".part"}:
            with suppress(FileNotFoundError):
                found += file.stat().st_size
    return found


class Watcher:
    """A process that watches a cache's size. most_bytes: that it saw in so many looks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.most_bytes = self.looks = 0

    def __enter__(self) -> Self:
        self._here, there = FORK.Pipe()
        self._process = FORK.Process(target=watch, args=(self._folder, there, self._here))
        self._process.start()
        there.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._here.send("end")
        if self._here.poll(END_S):
            self.most_bytes, self.looks = self._here.recv()
        else:
            self._process.kill()
        self._process.join()


def least_bytes(manifest: Manifest) -> int:
    """The least cache of shards as large as the largest, as the packed ones are, nearly."""
    made = plan(
        manifest,
        world_size=WORLD_SIZE,
        batch_size=BATCH,
        num_workers=NUM_WORKERS,
        shuffle=Shuffle(window=WINDOW),
    )
    reach = reach_of(made.schedule, num_workers=NUM_WORKERS, ranks_per_node=WORLD_SIZE)
    sizes = np.full(NUM_SHARDS, manifest.sizes.max() + MOST_INDEX_BYTES)
    return LeastCache.of(sizes, manifest.counts, reach).least_bytes


class Run:
    """All epochs, through faults and kills. kills: how many launches are killed."""

    def __init__(self, out: Path, *, epochs: int, seed: int, kills: int) -> None:
        self.rng = random.Random(seed)
        self.out = out
        self.epochs = epochs
        self.kills = kills
        self.figures: Counter[str] = Counter()
        self.plan = plan_of(seed)
        self.corpus = make_corpus(out / "corpus", seed)
        local = open_catalog(self.corpus, cache=Cache(out / "local-cache"))
        self.max_bytes = least_bytes(local.manifest)
        self.cache = Cache(out / "cache", max_bytes=self.max_bytes)
        self.watcher = Watcher(Path(self.cache.folder))

    def go(self) -> None:
        """Run it; raises what is wrong."""
        with s3_server() as s3:
            url = s3.put_folder("chaos", self.corpus)
            plan = self.out / "plan.json"
            plan.write_text(self.plan.to_json())
            command = (sys.executable, "-m", "tests.servers.proxy", "--to", s3.url, "--plan", plan)
            with started(*map(str, command)) as proxy, self.watcher:
                store = {
                    "cache": self.cache.folder,
                    "max_bytes": self.max_bytes,
                    "piece_bytes": PIECE_BYTES,
                    "storage_options": {**s3.options(proxy), "patience": PATIENCE},
                    "proxy": proxy,
                }
                self._launches(url, store)
                with urlopen(f"{proxy}/-/counts", timeout=END_S) as answer:  # noqa: S310
                    counts = json.load(answer)
        self._tell(counts)
        self._check_history()
        self._check_cache()
        self._check_downloads()
        self._check_what_is_left()

    def _launches(self, url: str, store: dict[str, Any]) -> None:
        number = 0
        while not self._is_over():
            with Job(self._options(number, url, store)) as job:
                is_killed = number < self.kills and self._kill(job)
                # It may go on: a worker that had handed over all that it had is not missed.
                self._follow(job, None)
                assert is_killed or job.succeeded, f"a launch failed by itself: {job.log}"
                self.figures["steps"] += job.words["step"] // WORLD_SIZE
            self.figures["launches"] += 1
            number += 1

    def _options(self, number: int, url: str, store: dict[str, Any]) -> Options:
        return Options(
            corpus=url,
            out=str(self.out),
            launch=number,
            world_size=WORLD_SIZE,
            batch_size=BATCH,
            num_workers=NUM_WORKERS,
            persistent=self.rng.random() < 0.5,
            even="pad",
            window=WINDOW,
            steps_per_epoch=None,
            save_every=self.rng.randint(3, 12),
            epochs=self.epochs,
            lifetime_s=self.epochs * HANG_S,
            store=store,
        )

    def _kill(self, job: Job) -> bool:
        """After about as many steps that the kills are spread over all epochs; whether it was."""
        steps = self.epochs * STEPS / (self.kills + 1)
        self._follow(job, int(WORLD_SIZE * steps * self.rng.uniform(0.5, 1.2)))
        kind = None if job.has_ended else job.kill(self.rng, self.rng.choice(VICTIMS))
        self.figures[f"{kind} kills" if kind else "too late"] += 1
        return kind is not None

    def _follow(self, job: Job, steps: int | None) -> None:
        """Until so many steps, or the end; each must come in time."""
        while not (job.has_ended or (steps is not None and job.words["step"] >= steps)):
            if not job.follow(HANG_S, partial(_is_beyond, job.words["step"])):
                raise job.hang("did not go on")

    def _is_over(self) -> bool:
        state = self.out / "state.json"
        return state.exists() and json.loads(state.read_text())["epoch"] >= self.epochs

    def _notes(self) -> list[dict[str, Any]]:
        files = sorted(self.out.glob("notes-*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def _tell(self, counts: dict[str, Any]) -> None:
        self.figures["requests"] = counts["requests"]
        self.figures["bytes sent"] = counts["bytes"]
        for fault, met in zip(self.plan.faults, counts["met"], strict=True):
            self.figures[f"fault {name_of(fault)}"] += met
        self.figures["most bytes in the cache"] = self.watcher.most_bytes
        self.figures["limit of the cache"] = self.max_bytes
        self.figures["looks at the cache"] = self.watcher.looks

    def _check_history(self) -> None:
        history = audit_logs(self.out / "samples", self.corpus)
        assert not history.faults(), f"the audit finds {history.faults()}"
        assert len(history.epochs) == self.epochs
        self.figures["samples"] = sum(epoch.tally.samples for epoch in history.epochs)
        self.figures["superseded batches"] = history.superseded

    def _check_cache(self) -> None:
        most = self.watcher.most_bytes
        assert self.watcher.looks, "nobody looked at the cache"
        assert most <= self.max_bytes, f"the cache held {most} of {self.max_bytes} bytes"

    def _check_downloads(self) -> None:
        """By epoch: how often each shard came whole, pieces counted as parts of it."""
        ended = [note for note in self._notes() if "counts" in note]
        ended = list({note["epoch"]: note for note in ended}.values())  # the last launch's
        begins = [each for each in self._notes() if each["what"] == "begins" and not each["rank"]]
        done = -1
        before: dict[str, Any] = {"whole": {}, "faults_by_path": {}, "bytes": 0, "requests": 0}
        for note in sorted(ended, key=lambda each: each["epoch"]):
            counts, epoch = note["counts"], note["epoch"]
            times = self._times_fetched(Counter(counts["whole"]) - Counter(before["whole"]))
            met = Counter(counts["faults_by_path"]) - Counter(before["faults_by_path"])
            anew = self._times_fetched_anew(met)
            # An epoch whose rank 0 was killed before it had noted its end is told with the next.
            launches = sum(done < each["epoch"] <= epoch for each in begins)
            done = epoch
            num_bytes = counts["bytes"] - before["bytes"]
            print(
                f"epoch {epoch}: {num_bytes} bytes, {counts['requests'] - before['requests']} "
                f"requests, {launches} launches; a shard came {max(times):.2f} times at "
                f"most, {sum(times) / len(times):.2f} in the mean",
                flush=True,
            )
            self.figures["most times of a shard in an epoch, in hundredths"] = max(
                self.figures["most times of a shard in an epoch, in hundredths"],
                int(100 * max(times)),
            )
            for name, found, faults in zip(self._shards(), times, anew, strict=True):
                most = READERS_OF_A_SHARD * launches + faults
                assert found <= most, f"epoch {epoch}: {name} was fetched {found} times of {most}"
            # Once, and once more where lanes meet: what is needed again is not let go too soon.
            back = LANES * BACK_AFTER_A_KILL * (launches - 1)
            most = NUM_SHARDS + LANES * launches + back + sum(anew)
            assert sum(times) <= most, f"epoch {epoch}: shards came {sum(times)} times of {most}"
            before = counts

    def _times_fetched(self, whole: Counter[str]) -> list[float]:
        """How often each shard was fetched: whole answers, over the pieces that it has."""
        return [whole[f"GET chaos/corpus/{name}"] / self._pieces(name) for name in self._shards()]

    def _times_fetched_anew(self, met: Counter[str]) -> list[float]:
        """How often each shard had to be, at most, for the faults that it has met."""
        return [
            sum(met[f"{fault} chaos/corpus/{name}"] for fault in COSTS_A_SHARD)
            # What lies in its place is looked at, by a request that counts as one of its pieces.
            + met[f"page HEAD chaos/corpus/{name}"] / self._pieces(name)
            for name in self._shards()
        ]

    def _shards(self) -> list[str]:
        return sorted(p.name for p in self.corpus.iterdir() if p.suffix in {".tar", ".zst"})

    def _pieces(self, name: str) -> int:
        return -(-(self.corpus / name).stat().st_size // PIECE_BYTES)

    def _check_what_is_left(self) -> None:
        notes = self._notes()
        processes = {int(number) for note in notes for number in note["open"]}
        alive = [number for number in processes if psutil.pid_exists(number)]
        assert not alive, f"these processes are still there: {alive}"
        for file in SHARED.iterdir():
            assert not any(f"_{number}_" in file.name for number in processes), file
        self._check_open_files(notes)
        use = self.cache.use()
        assert (use.parts, use.used, use.readers) == (0, 0, 0), use
        folder = CacheFolder(Path(self.cache.folder))
        for file in folder.path.glob("*.lock"):
            with folder.lock_if_free(file.name) as held:
                assert held is not None, f"somebody holds {file}"
        assert told_needs(folder.path) == []
        self.cache.clear()
        left = {file.name for file in folder.path.iterdir()} - {"space.lock", "alone.lock"}
        assert not left, f"the cache has these files left: {left}"

    def _check_open_files(self, notes: list[dict[str, Any]]) -> None:
        """A process that has read more epochs has no more files open."""
        of: defaultdict[str, list[int]] = defaultdict(list)
        for note in notes:
            if note["what"] == "ended":
                for number, num_open in note["open"].items():
                    of[number].append(num_open)
        grown = [counts[-1] - min(counts) for counts in of.values()]
        self.figures["files more open at a last epoch's end than before"] = max(grown)
        assert max(grown) <= MORE_OPEN, f"files that are open, by process: {dict(of)}"


def _is_beyond(steps: int, words: Counter[str]) -> bool:
    return words["step"] > steps


def run(epochs: int, *, seed: int, kills: int) -> Counter[str]:
    """Run so many epochs; the figures. Raises what is wrong, and then keeps the folder."""
    out = Path(tempfile.mkdtemp(prefix=f"shardloader-stores-{seed}-"))
    found = Run(out, epochs=epochs, seed=seed, kills=kills)
    try:
        found.go()
    except BaseException as error:
        error.add_note(f"so far: {dict(found.figures)}; its folder: {out}")
        raise
    left = psutil.Process().children(recursive=True)
    assert not left, f"these processes are left: {left}"
    shutil.rmtree(out)
    return found.figures


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, help="of launches; by default one for two epochs")
    options = parser.parse_args()
    kills = options.epochs // 2 if options.kills is None else options.kills
    began = time.monotonic()
    figures = run(options.epochs, seed=options.seed, kills=kills)
    for name, number in figures.items():
        print(f"{name}: {number}")
    print(f"{options.epochs} epochs, seed {options.seed}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
