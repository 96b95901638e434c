"""What do the counts of `loader.stats()` and the watch for stalls cost a step?

    python -m benchmarks.metering [--batch-size 64] [--rounds 300]

One loader of rows of 512 tokens, which measures, counts and notes in one turn, and in the next does
not. CPU microseconds a batch of the loop's thread; the difference of two turns, as the median over
the rounds; and the same of two turns that both measure, which should be nothing: it says how far
the figure can be trusted. As shares of the bare loader, and of steps of some lengths. Without
workers, as bytes, is the worst case: nothing else there is as quick.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import shardloader as sl
from shardloader.reading.counts import CountRow
from shardloader.reading.diary import Diary, Page

STEPS_MS = (1, 10, 100)
WARM_UP = 10  # batches, for the interpreter to get used to a turn


class BarePage(Page):
    """Says nothing."""

    def begin(self, *_: Any) -> None:
        """Nothing."""

    def at_sample(self, *_: Any) -> None:
        """Nothing."""

    def made(self, num_batches: int = 1) -> None:
        """Nothing."""


class BareRow(CountRow):
    """Counts nothing."""

    def add_field_bytes(self, num_bytes: int) -> None:
        """Nothing."""


class BareDiary(Diary):
    """Notes and counts nothing."""

    own = BarePage(memoryview(bytearray(64)).cast("q"))

    @property
    def page(self) -> Page:
        """The same for all."""
        return self.own

    def start_pass(self) -> None:
        """Nothing."""


class BareMeter:
    """Looks at no clock."""

    def now(self) -> float:
        """No moment."""
        return 0.0

    def begin(self, _: float) -> None:
        """Nothing."""

    def received(self, _: float) -> None:
        """Nothing."""


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        corpus = _made(Path(folder), options.samples)
        for told, decode in (("bytes", None), ("values", "default")):
            _tell(told, report(corpus, options, decode=decode))


def report(corpus: Path, options: argparse.Namespace, *, decode: Any) -> dict[str, list[float]]:
    """CPU microseconds a batch, by round, of the loader as it is, bare, and as it is again."""
    loader = _loader(corpus, options, decode)
    batches = iter(loader)
    next(batches)
    stream = loader._engine._made[0]  # noqa: SLF001
    bare = BareMeter(), BareDiary(counts=BareRow())
    whole = batches._meter, stream.diary  # noqa: SLF001
    turns = {"as it is": whole, "bare": bare, "again": whole}
    costs: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(options.rounds):
        names = list(turns)
        for name in names if number % 2 else reversed(names):
            batches._meter, stream.diary = turns[name]  # noqa: SLF001
            stream._reader.diary = stream.diary  # noqa: SLF001
            for _ in islice(batches, WARM_UP):
                pass
            begun = time.thread_time()
            for _ in islice(batches, options.batches):
                pass
            costs[name].append((time.thread_time() - begun) / options.batches * 1e6)
    return costs


def _tell(told: str, costs: dict[str, list[float]]) -> None:
    bare = statistics.median(costs["bare"])
    more, noise = (
        statistics.median(np.subtract(costs["as it is"], costs[name]).tolist())
        for name in ("bare", "again")
    )
    print(f"{told}: {bare:.1f} microseconds a batch bare, {more:.2f} more as it is")
    print(f"  {noise:.2f} between two turns as it is")
    print(f"  {more / bare:.2%} of the bare loader, which does nothing but give batches")
    for step in STEPS_MS:
        print(f"  {more / (1000 * step):.3%} of a step of {step} ms")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--batches", type=int, default=100, help="a turn")
    parser.add_argument("--rounds", type=int, default=300)
    return parser.parse_args()


def _made(folder: Path, num_samples: int) -> Path:
    random = np.random.default_rng(0)
    with sl.ShardWriter(folder, max_samples=5_000) as writer:
        for number in range(num_samples):
            row = random.integers(0, 50_000, 512, dtype=np.uint16)
            writer.write({"__key__": f"{number:06d}", "npy": row})
    return folder


def _loader(corpus: Path, options: argparse.Namespace, decode: Any, **others: Any) -> Any:
    dataset = sl.ShardDataset(
        corpus,
        decode=decode,
        shuffle=sl.Shuffle(window=1_000),
        topology=sl.Topology(rank=0, world_size=1),
        steps_per_epoch=1_000_000,
    )
    return sl.ShardLoader(dataset, options.batch_size, **others)


if __name__ == "__main__":
    main()
