"""How long does the first batch of a remote dataset take, at an epoch's start and in its middle?

    python -m benchmarks.first_batch [--shard-mb 256] [--shards 4] [--latency 0.05] [--link-mb 125]
    python -m benchmarks.first_batch --zstd --sample-kb 10      # compressed shards, by frames

nginx serves the shards behind a proxy that answers each request later and gives all connections
together so many bytes a second. Each measurement has a loader, and where there is one a cache, of
its own, with nothing in it: whole shards are waited for (`range_bytes=0`), or ranges come first,
or ranges alone (`cache=None`). The three take turns, round after round. Told are medians of the
seconds to the first batch and their ratio to waiting. The samples of all three are compared. With
--zstd they are text of random hexadecimal digits, which shrinks to about half, in compressed
shards; sizes are those of the tars.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

import shardloader as sl
from tests.servers.nginx import nginx_server
from tests.servers.processes import started

BATCH: Final = 32
WAYS: Final = ("whole shards", "ranges first", "ranges alone")


def report(
    *,
    shard_bytes: int,
    num_shards: int,
    latency: float,
    link_bytes: float,
    rounds: int,
    sample_bytes: int = 100_000,
    is_packed: bool = False,
) -> dict[str, Any]:
    """Medians of the seconds to the first batch, and ratios to waiting for whole shards."""
    seconds: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="first-batch-")))
        per_shard = max(1, shard_bytes // sample_bytes)
        _write(home / "corpus", per_shard, num_shards, sample_bytes, is_packed=is_packed)
        near = stack.enter_context(nginx_server(home / "corpus"))
        words = ("--to", near, "--latency", str(latency), "--bytes-per-s", str(link_bytes))
        far = stack.enter_context(started(sys.executable, "-m", "tests.servers.proxy", *words))
        for number in range(rounds):
            for place in ("start", "middle"):
                indexes = set()
                for way in WAYS:
                    cache = _cache(way, home / f"cache-{number}-{place}-{WAYS.index(way)}")
                    taken, index = _first(f"{far}/ranges", cache, place)
                    seconds.setdefault((place, way), []).append(taken)
                    indexes.add(index)
                if len(indexes) != 1:
                    raise AssertionError(f"the batches differ: {indexes}")
    medians = {each: statistics.median(times) for each, times in seconds.items()}
    return {
        place: {
            way: {
                "seconds": round(medians[place, way], 3),
                "ratio": round(medians[place, WAYS[0]] / medians[place, way], 2),
            }
            for way in WAYS
        }
        for place in ("start", "middle")
    }


def _write(
    folder: Path, per_shard: int, num_shards: int, sample_bytes: int, *, is_packed: bool
) -> None:
    numbers = np.random.default_rng(0)
    with sl.ShardWriter(
        folder, max_samples=per_shard, compression="zstd" if is_packed else None
    ) as writer:
        for number in range(per_shard * num_shards):
            data = numbers.bytes(sample_bytes)
            data = data[::2].hex().encode() if is_packed else data
            writer.write({"__key__": f"{number:08d}", "bin": data})


def _cache(way: str, folder: Path) -> sl.Cache | None:
    if way == "ranges alone":
        return None
    return sl.Cache(folder, range_bytes=0) if way == "whole shards" else sl.Cache(folder)


def _first(url: str, cache: sl.Cache | None, place: str) -> tuple[float, tuple[int, ...]]:
    """Seconds to the first batch, and which samples it held."""
    begun = time.perf_counter()
    dataset = sl.ShardDataset(
        url, cache=cache, decode=None, topology=sl.Topology(rank=0, world_size=1)
    )
    loader = sl.ShardLoader(dataset, batch_size=BATCH)
    if place == "middle":
        state = loader.state_dict()
        loader.load_state_dict({**state, "consumed": len(loader) // 2 * BATCH})
    batch = next(iter(loader))
    return time.perf_counter() - begun, tuple(batch["__index__"].tolist())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shard-mb", type=float, default=256)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument("--link-mb", type=float, default=125, help="MB a second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sample-kb", type=float, default=100)
    parser.add_argument("--zstd", action="store_true", help="compressed shards")
    options = parser.parse_args()
    figures = report(
        shard_bytes=int(options.shard_mb * 1e6),
        num_shards=options.shards,
        latency=options.latency,
        link_bytes=options.link_mb * 1e6,
        rounds=options.rounds,
        sample_bytes=int(options.sample_kb * 1e3),
        is_packed=options.zstd,
    )
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
