"""Writes of every kind of input with random options, killed again and again, and then finished.

    python -m tests.stress.writes 100 [--seed 0]

What comes out must be what an undisturbed write makes, to the byte, with nothing beside it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardloader.reading.source import UNFINISHED_NAME
from shardloader.writing.lock import LOCK_NAME
from shardloader.writing.selection import Selection
from shardloader.writing.write import write_shards
from tests.writing.inputs import MAKERS, cut_small
from tests.writing.reading_back import visible
from tests.writing.test_kills import DIED, ended, in_a_child, killed_write

if TYPE_CHECKING:
    from shardloader.writing.sources.base import Source

KILLS_A_WRITE = 30


def random_options(rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_samples": rng.choice([1, 3, 7, 20, 100]),
        "max_bytes": rng.choice([1500, 6000, 20_000, 10**6]),
    }
    if rng.random() < 0.4:
        options |= {"compression": "zstd", "frame_samples": rng.choice([1, 3, 10])}
    if rng.random() < 0.3:
        options["shuffle"] = rng.randrange(5)
    if rng.random() < 0.3:
        options["selection"] = Selection(fraction=(0.2, 0.9))
    mode = rng.choice(["new", "overwrite", "append"])
    return options if mode == "new" else {**options, mode: True}


class Stand:
    """One input and one set of options, and what they make undisturbed."""

    def __init__(self, place: Path, rng: random.Random) -> None:
        for name in ("in", "older"):
            (place / name).mkdir()
        self.kind = rng.choice(sorted(MAKERS))
        self.source: Source = MAKERS[self.kind](place / "in")
        self.older = MAKERS["shards"](place / "older")
        self.options = random_options(rng)
        self.rng = rng
        self.begin(place / "whole")
        write_shards(self.source, place / "whole", **self.options)
        self.whole = visible(place / "whole")

    def begin(self, folder: Path) -> None:
        """Put a dataset there where one is to be replaced or added to."""
        if {"overwrite", "append"} & set(self.options):
            compression = self.options.get("compression")
            write_shards(self.older, folder, max_samples=9, compression=compression)

    def is_done(self, folder: Path) -> bool:
        manifest = folder / "manifest.json"
        is_marked = (folder / UNFINISHED_NAME).exists()
        if is_marked or not manifest.exists():
            return False
        return manifest.read_bytes() == self.whole["manifest.json"]

    def kill(self, folder: Path) -> bool:
        """Write, and be killed at some step or moment; gives whether it was."""
        rng = self.rng
        options = {**self.options, "workers": rng.choice([1, 2, 3])}
        if rng.random() < 0.6:
            step = rng.randrange(1, 90)
            child = in_a_child(partial(killed_write, step, self.source, folder, **options))
        else:
            child = in_a_child(partial(write_shards, self.source, folder, **options))
            time.sleep(rng.uniform(0, 0.15))
            os.kill(child, signal.SIGKILL)
        code = ended(child)
        # one that dies by itself lost a worker, which is killed as well as it may be
        assert code in {0, -signal.SIGKILL} or (code == DIED and options["workers"] > 1), code
        return code != 0

    def disturbed(self, folder: Path) -> int:
        """Kill a write again and again, finish it and compare; gives the number of kills."""
        self.begin(folder)
        kills = 0
        for _ in range(KILLS_A_WRITE):
            if not self.kill(folder) or self.is_done(folder):
                break
            kills += 1
        if not self.is_done(folder):
            write_shards(self.source, folder, **self.options)
        (folder / LOCK_NAME).unlink(missing_ok=True)
        found = visible(folder)
        differ = [name for name in found if found[name] != self.whole.get(name)]
        assert found == self.whole, (self.kind, self.options, differ)
        assert {path.name for path in folder.iterdir()} == set(self.whole)
        return kills


def run(count: int, seed: int) -> int:
    """Disturb so many writes; gives the number of kills."""
    rng = random.Random(seed)
    kills = 0
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch)
        for _ in range(count):
            place = Path(tempfile.mkdtemp())
            try:
                kills += Stand(place, rng).disturbed(place / "out")
            finally:
                shutil.rmtree(place)
    return kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    kills = run(options.count, options.seed)
    print(f"{options.count} writes, {kills} kills, every result as undisturbed")


if __name__ == "__main__":
    main()
