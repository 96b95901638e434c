"""How much memory does writing take, for inputs of any size?

    python -m benchmarks.writing_memory [--shuffled-mb 500 4000] [--members 20000 200000]

`ShardWriter` making one shard of so many members, a byte each, and `shardloader write --shuffle`
of inputs of some sizes, with two workers: anonymous and shared memory of all processes together,
at its peak. The page cache is none of it: whoever limits a cgroup sees that given back. Every
measurement is a process of its own. The largest input takes three times its size on the disk.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

import shardloader as sl
from benchmarks.feeding.processes import run
from shardloader.cli import main as shardloader

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLE_BYTES: Final = 10_000
LIMIT_S: Final = 3600.0
MB: Final = 1_000_000


def main() -> None:
    """Measure, and print a line for each input."""
    options = _options()
    if options.measure == "shuffle":
        words = ["write", f"{options.folder}/in", f"{options.folder}/out", "--shuffle", "0"]
        words += ["--workers", str(options.workers), "--max-bytes", "100MB"]
        code = shardloader(words)
        print(json.dumps({"code": code}))
    elif options.measure == "members":
        _write_members(Path(options.folder), options.members[0])
    else:
        for name, peak in report(options):
            print(f"{name:>40}  {peak:7.1f} MB", flush=True)


def report(options: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """Yield what was written, and the peak of all processes together in MB."""
    for members in options.members:
        with tempfile.TemporaryDirectory() as folder:
            words = ["--measure", "members", "--folder", folder, "--members", str(members)]
            yield f"a shard of {members:,} members", _peak(words)
    for size in options.shuffled_mb:
        with tempfile.TemporaryDirectory() as folder:
            _make(Path(folder, "in"), size)
            words = ["--measure", "shuffle", "--folder", folder, "--workers", str(options.workers)]
            yield f"write --shuffle of {size:,} MB", _peak(words)


def _peak(words: list[str]) -> float:
    module = ["-W", "ignore", "-m", "benchmarks.writing_memory"]
    ran = run([*module, *words], is_peer=False, limit_s=LIMIT_S, watch=True)
    if ran.result is None or ran.result.get("code", 0):
        raise RuntimeError(f"{' '.join(words)}: {ran.reason or ran.result}")
    return ran.total_mb


def _make(folder: Path, size: int) -> None:
    rng = np.random.default_rng(0)
    with sl.ShardWriter(folder, max_bytes="100MB", max_samples=10**9) as writer:
        for number in range(size * MB // SAMPLE_BYTES):
            writer.write({"__key__": f"{number:09d}", "bin": rng.bytes(SAMPLE_BYTES)})


def _write_members(folder: Path, members: int) -> None:
    with sl.ShardWriter(folder, max_samples=members) as writer:
        for number in range(members):
            writer.write({"__key__": f"{number:09d}", "txt": b"x"})
    if writer.num_shards != 1:
        raise AssertionError
    print(json.dumps({"samples": writer.num_samples}))


def _options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shuffled-mb", type=int, nargs="*", default=[500, 4000])
    parser.add_argument("--members", type=int, nargs="*", default=[20_000, 200_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--measure", choices=("shuffle", "members"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
