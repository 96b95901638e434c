"""What do the counts of `loader.stats()` and the watch for stalls cost a step?

    python -m benchmarks.metering [--batch-size 64] [--rounds 15]

Two loaders of one corpus (rows of 512 tokens), in one process, in turns: as it is, and with nothing
measured, counted or noted. CPU microseconds a batch of the loop's thread, medians over the rounds,
the difference, and what share that is of the bare loader and of steps of some lengths. Without
workers, as bytes, is the worst case: nothing else there is as quick.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

import shardloader as sl
from shardloader.loader import engine
from shardloader.loader.stream import BatchStream
from shardloader.reading.diary import Diary, Page

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STEPS_MS = (1, 10, 100)


class BarePage(Page):
    """Says nothing."""

    def begin(self, *_: Any) -> None:
        """Nothing."""

    def at_sample(self, *_: Any) -> None:
        """Nothing."""

    def made(self, num_batches: int = 1) -> None:
        """Nothing."""


class BareDiary(Diary):
    """Notes and counts nothing."""

    own = BarePage(memoryview(bytearray(64)).cast("q"))

    @property
    def page(self) -> Page:
        """The same for all."""
        return self.own

    def read_bytes(self, num_bytes: int) -> None:
        """Nothing."""

    def start_pass(self) -> None:
        """Nothing."""


class BareStream(BatchStream):
    """Gives batches without counts."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.diary = BareDiary()

    def _with_counts(self, batch: Any) -> Any:
        return batch

    def _noted(self, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return read


class BareMeter:
    """Looks at no clock."""

    def now(self) -> float:
        """No moment."""
        return 0.0

    def received(self, *_: Any) -> float:
        """No moment."""
        return 0.0


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        corpus = _made(Path(folder), options.samples)
        for told, decode in (("bytes", None), ("values", "default")):
            _tell(told, report(corpus, options, decode=decode))


def report(corpus: Path, options: argparse.Namespace, *, decode: Any) -> dict[str, list[float]]:
    """CPU microseconds a batch, by round, of the loader as it is and of the bare one."""
    metered = iter(_loader(corpus, options, decode))
    with mock.patch.object(engine, "BatchStream", BareStream):
        made = _loader(corpus, options, decode, stall_s=None)
        made._account.meter = BareMeter()  # noqa: SLF001
        bare = iter(made)
        next(bare)
    next(metered)
    costs: dict[str, list[float]] = {"as it is": [], "bare": []}
    for _ in range(options.rounds):
        for name, batches in (("as it is", metered), ("bare", bare)):
            begun = time.thread_time()
            for _batch in islice(batches, options.batches):
                pass
            costs[name].append((time.thread_time() - begun) / options.batches * 1e6)
    return costs


def _tell(told: str, costs: dict[str, Sequence[float]] | dict[str, list[float]]) -> None:
    whole, bare = (statistics.median(costs[name]) for name in ("as it is", "bare"))
    pairs = zip(costs["as it is"], costs["bare"], strict=True)
    more = statistics.median(one - other for one, other in pairs)
    print(f"{told}: {whole:.1f} microseconds a batch, bare {bare:.1f}; {more:.2f} more a batch")
    print(f"  {more / bare:.2%} of the bare loader, which does nothing but give batches")
    for step in STEPS_MS:
        print(f"  {more / (1000 * step):.3%} of a step of {step} ms")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--batches", type=int, default=400, help="a round")
    parser.add_argument("--rounds", type=int, default=15)
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
