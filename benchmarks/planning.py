"""How much does a plan cost? The figures of a million shards of ten thousand samples.

    python benchmarks/planning.py [--shards 1000000] [--json]

For 1,024 ranks of 8 workers, each in a process of its own: setting a plan up from arrays and
opening a manifest from disk (seconds, and growth of the peak resident memory in MB), and the cost
of evaluating a position, as a worker does it, at the start, in the middle and at the end of an
epoch, for several windows (CPU microseconds a sample).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from shardloader.format.manifest import Manifest
from shardloader.order.epoch import Order
from shardloader.order.grid import Grid
from shardloader.order.schedule import Schedule
from shardloader.planning.plan import plan

SAMPLES_A_SHARD = 10_000
RANKS, WORKERS, BATCH = 1024, 8, 32
WINDOWS = (10, 100, 1_000, 10_000, 40_000)


def _peak_mb() -> float:
    """Peak resident memory of this process (getrusage would count its parent's before exec)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure_setup(num_shards: int) -> dict[str, float]:
    """Seconds and MB to plan from arrays, the first batch of a rank included."""
    counts = np.full(num_shards, SAMPLES_A_SHARD, dtype=np.int64)
    before, start = _peak_mb(), time.perf_counter()
    made = plan(counts, batch_size=BATCH, world_size=RANKS, num_workers=WORKERS, epoch=3)
    made.batch(min(5, made.steps - 1), RANKS - 1)
    return {"seconds": time.perf_counter() - start, "mb": _peak_mb() - before}


def write_manifest(path: Path, num_shards: int) -> None:
    """A manifest such as `shardloader index` writes, of shards that do not exist."""
    manifest = Manifest(
        names=tuple(f"part-{i // 1000:04d}/shard-{i:07d}.tar" for i in range(num_shards)),
        sizes=np.full(num_shards, 10**9, dtype=np.int64),
        counts=np.full(num_shards, SAMPLES_A_SHARD, dtype=np.int64),
        index_digests=tuple(f"{i:032x}" for i in range(num_shards)),
    )
    path.write_bytes(manifest.to_json_bytes())


def measure_manifest(path: Path) -> dict[str, float]:
    """Seconds and MB to open a manifest from disk."""
    before, start = _peak_mb(), time.perf_counter()
    Manifest.from_json_bytes(path.read_bytes(), name=path.name)
    return {"seconds": time.perf_counter() - start, "mb": _peak_mb() - before}


def measure_evaluation(
    num_shards: int, window: int, num_samples: int = 500_000
) -> dict[str, float]:
    """Microseconds a sample for a worker at the start, in the middle and at the end."""
    counts = np.full(num_shards, SAMPLES_A_SHARD, dtype=np.int64)
    grid = Grid(ranks=RANKS, workers=WORKERS, batch=BATCH)
    order = Order(counts=counts, seed=1, window=window, grid=grid)
    schedule = Schedule.of(
        order, epoch=3, consumed=0, world_size=RANKS, batch_size=BATCH, even="pad"
    )
    reader = schedule.reader(5)
    reader.steps(np.zeros(1, dtype=np.int64))
    mine = np.arange(0, schedule.dealing.num_steps, WORKERS, dtype=np.int64)
    wanted = min(len(mine), num_samples // BATCH)
    starts = {"first": 0, "middle": (len(mine) - wanted) // 2, "last": len(mine) - wanted}
    at_once = schedule.steps_at_once(WORKERS)
    figures = {}
    for name, first in starts.items():
        start = time.process_time()
        for begin in range(first, first + wanted, at_once):
            reader.steps(mine[begin : min(begin + at_once, first + wanted)])
        figures[name] = (time.process_time() - start) / (wanted * BATCH) * 1e6
    return figures


def _in_its_own_process(*arguments: str) -> Any:
    command = [sys.executable, __file__, *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)  # noqa: S603


def report(num_shards: int) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "manifest.json"
        write_manifest(manifest, num_shards)
        return {
            "shards": num_shards,
            "setup": _in_its_own_process("--shards", str(num_shards), "--only", "setup"),
            "manifest": _in_its_own_process("--only", f"manifest:{manifest}"),
            "microseconds_a_sample": {
                str(window): _in_its_own_process(
                    "--shards", str(num_shards), "--only", f"window:{window}"
                )
                for window in WINDOWS
            },
        }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        what, _, argument = options.only.partition(":")
        measure: dict[str, Any] = {
            "setup": lambda: measure_setup(options.shards),
            "manifest": lambda: measure_manifest(Path(argument)),
            "window": lambda: measure_evaluation(options.shards, int(argument)),
        }
        print(json.dumps(measure[what]()))
        return
    figures = report(options.shards)
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    print(f"{figures['shards']} shards x {SAMPLES_A_SHARD} samples, {RANKS} ranks x {WORKERS}")
    for name in ("setup", "manifest"):
        print(f"{name:10} {figures[name]['seconds']:6.2f} s {figures[name]['mb']:7.0f} MB")
    for window, costs in figures["microseconds_a_sample"].items():
        row = "  ".join(f"{name} {cost:.2f}" for name, cost in costs.items())
        print(f"window {window:>6}: {row}  CPU microseconds a sample")


if __name__ == "__main__":
    main()
