"""How many samples a second does a core verify, beside reading the same shards by other means?

    python benchmarks/verifying.py [SRC] [--rounds 3] [--json]

SRC is a folder of shards with a manifest; without it, a small corpus like T (texts of about 1.5 KB
with a small JSON) is written to a temporary folder. Counted is the CPU time of one process, all
ways in turn, with the shards warm in the page cache; medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shardloader as sl
from shardloader.reading.decode import resolve
from shardloader.reading.shard_check import ShardToCheck, check_shard
from shardloader.reading.source import resolve as resolve_source
from shardloader.reading.verifying import shards_to_check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardloader.reading.decode import DecodeTable


def write_texts(folder: Path, num_samples: int) -> None:
    text = "a small boat lay under the pier all winter " * 35
    with sl.ShardWriter(folder, max_samples=10_000) as writer:
        for number in range(num_samples):
            record = {"number": number, "label": number % 10}
            writer.write({"__key__": f"{number:08d}", "txt": text[number % 43 :], "json": record})


def _verify(shards: Sequence[ShardToCheck], decode: DecodeTable | None = None) -> int:
    checked = [check_shard(shard, decode=decode) for shard in shards]
    assert not any(each.findings for each in checked)
    return sum(each.num_samples for each in checked)


def _headers(shards: Sequence[ShardToCheck]) -> int:
    """Verify without content digests, as where the manifest has none."""
    without = [
        ShardToCheck(
            name=shard.name,
            path=shard.path,
            index_path=shard.index_path,
            listed=None,
        )
        for shard in shards
    ]
    return _verify(without)


def _tarfile(folder: Path) -> int:
    members = 0
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for info in archive:
                file = archive.extractfile(info)
                members += file is not None and file.read() is not None
    return members // 2


def _webdataset(folder: Path) -> int:
    import webdataset

    shards = [str(path) for path in sorted(folder.glob("*.tar"))]
    return sum(1 for _ in webdataset.WebDataset(shards, shardshuffle=False))


def _ways(folder: Path) -> dict[str, Callable[[], int]]:
    place = resolve_source(folder)
    plain = shards_to_check(place)
    table = resolve("default")
    return {
        "verify": lambda: _verify(plain),
        "verify, headers alone": lambda: _headers(plain),
        "verify --decode": lambda: _verify(plain, table),
        "tarfile": lambda: _tarfile(folder),
        "webdataset": lambda: _webdataset(folder),
    }


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Samples a CPU second of each way, all in turn."""
    ways = _ways(folder)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    counted = set()
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.process_time()
            counted.add(way())
            seconds[name].append(time.process_time() - start)
    (num_samples,) = counted
    return {name: num_samples / statistics.median(taken) for name, taken in seconds.items()}


def report(folder: Path | None = None, *, num_samples: int = 20_000, rounds: int = 3) -> Any:
    """Samples a CPU second of each way on a folder, or on a small corpus made for it."""
    if folder is not None:
        return measure(folder, rounds)
    with tempfile.TemporaryDirectory() as made:
        write_texts(Path(made), num_samples)
        return measure(Path(made), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = report(arguments.source, rounds=arguments.rounds)
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        beside = figures["verify"] / value
        print(f"{name:24} {value:12,.0f} samples a CPU second; verify is {beside:.2f} times that")


if __name__ == "__main__":
    main()
