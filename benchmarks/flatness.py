"""Does a sample cost the same, however many shards there are?

    python benchmarks/flatness.py [--samples-a-shard 200] [--shards 10 100 1000]

Reads whole epochs of tiny samples as raw bytes in one process, and prints CPU microseconds a
sample (medians over rounds, the corpora interleaved) and the growth of the peak memory. How a
position of a huge dataset is evaluated, up to 10**10 samples, `benchmarks/planning.py` measures.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import shardloader as sl

WINDOW_SHARDS = 4


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        corpora = {num: _made(Path(folder, str(num)), num, options) for num in options.shards}
        _cost(corpora[min(corpora)], options)  # imports what is imported when first used
        costs: dict[int, list[float]] = {num: [] for num in corpora}
        for _ in range(options.rounds):
            for num, corpus in corpora.items():
                costs[num].append(_cost(corpus, options))
        for num, values in costs.items():
            spread = f"least {min(values):.2f}, most {max(values):.2f}"
            median = statistics.median(values)
            print(f"{num:7} shards  {median:6.2f} CPU microseconds a sample ({spread})")
        first, last = (statistics.median(costs[num]) for num in (min(costs), max(costs)))
        print(f"most shards / fewest: {last / first:.2f}")
        print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--samples-a-shard", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def _made(folder: Path, num_shards: int, options: argparse.Namespace) -> Path:
    with sl.ShardWriter(folder, max_samples=options.samples_a_shard) as writer:
        for number in range(num_shards * options.samples_a_shard):
            writer.write({"__key__": f"{number:09d}", "txt": b"%d" % number})
    return folder


def _cost(corpus: Path, options: argparse.Namespace) -> float:
    """CPU microseconds a sample of one epoch, the opening of every shard included."""
    window = sl.Shuffle(window=WINDOW_SHARDS * options.samples_a_shard)
    dataset = sl.ShardDataset(corpus, shuffle=window, decode=None)
    loader: Any = sl.ShardLoader(dataset, batch_size=100)
    len(loader)  # opens the manifest
    started = time.process_time()
    num_samples = sum(len(batch["__key__"]) for batch in loader)
    return (time.process_time() - started) / num_samples * 1e6


if __name__ == "__main__":
    main()
