"""How long is it from process start to the first batch, cold and when resumed at 90%?

    python benchmarks/resume.py [--samples 400000] [--rounds 5] [--json]

A corpus of texts of about 1.5 KB with a small JSON in 40 shards; two workers, window 10,000. Each
start is a process of its own, cold starts and resumes in turn. Also: decode calls against samples
delivered over the whole rest of the epoch, the state's size, and the time state_dict() takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 256
WORKERS = 2


def make_corpus(folder: Path, num_samples: int) -> None:
    """Deterministic texts in 40 shards, or as many as there are samples."""
    from shardloader import ShardWriter

    rng = np.random.default_rng(0)
    words = np.array([b"shard", b"order", b"grid", b"lane", b"window", b"sample", b"step"])
    with ShardWriter(folder, max_samples=max(1, -(-num_samples // 40)), max_bytes="4GB") as writer:
        for number in range(num_samples):
            text = b" ".join(words[rng.integers(len(words), size=260)])
            about = json.dumps({"number": number, "words": 260}).encode()
            writer.write({"__key__": f"{number:07d}", "txt": text, "json": about})


def make_loader(folder: Path, num_workers: int, decode: Any = "default") -> Any:
    """The loader that all measurements use."""
    import shardloader as sl

    dataset = sl.ShardDataset(folder, seed=0, shuffle=sl.Shuffle(window=10_000), decode=decode)
    return sl.ShardLoader(dataset, batch_size=BATCH, num_workers=num_workers)


def first_batch(folder: Path, state: dict[str, Any] | None) -> float:
    """Seconds from this process's start to its first batch."""
    import psutil

    loader = make_loader(folder, WORKERS)
    if state is not None:
        loader.load_state_dict(state)
    next(iter(loader))
    return time.time() - float(psutil.Process().create_time())


def decoded_and_delivered(folder: Path, state: dict[str, Any]) -> tuple[int, int]:
    """Decode calls, and fields delivered, from a state to the epoch's end."""
    from shardloader.reading.decode import decode_text

    calls = 0

    def counting(data: memoryview) -> str:
        nonlocal calls
        calls += 1
        return decode_text(data)

    loader = make_loader(folder, 0, decode={"txt": counting})
    loader.load_state_dict(state)
    delivered = sum(len(batch["txt"]) for batch in loader)
    return calls, delivered


def state_at(folder: Path, share: float) -> dict[str, Any]:
    """The state after a share of the epoch."""
    loader = make_loader(folder, WORKERS)
    loader.skip(int(len(loader) * share))
    return dict(loader.state_dict())


def seconds_a_state(folder: Path, calls: int = 2000) -> float:
    """Mean seconds that state_dict() takes."""
    loader = make_loader(folder, WORKERS)
    loader.state_dict()
    start = time.perf_counter()
    for _ in range(calls):
        loader.state_dict()
    return (time.perf_counter() - start) / calls


def _started(folder: Path, state: dict[str, Any] | None) -> float:
    command = [sys.executable, __file__, "--only", json.dumps([str(folder), state])]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)  # noqa: S603


def report(num_samples: int, rounds: int) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "corpus"
        make_corpus(folder, num_samples)
        state = state_at(folder, 0.9)
        cold, resumed = [], []
        for _ in range(rounds):
            cold.append(_started(folder, None))
            resumed.append(_started(folder, state))
        decoded, delivered = decoded_and_delivered(folder, state)
        return {
            "samples": num_samples,
            "cold_seconds": sorted(cold),
            "resumed_seconds": sorted(resumed),
            "ratio_of_medians": statistics.median(resumed) / statistics.median(cold),
            "decoded": decoded,
            "delivered": delivered,
            "state_bytes": len(json.dumps(state)),
            "state_dict_ms": seconds_a_state(folder) * 1e3,
        }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        folder, state = json.loads(options.only)
        print(first_batch(Path(folder), state))
        return
    figures = report(options.samples, options.rounds)
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    for name in ("cold", "resumed"):
        times = figures[f"{name}_seconds"]
        print(
            f"{name:8} process start to first batch: median {statistics.median(times):.2f} s "
            f"(least {times[0]:.2f}, most {times[-1]:.2f}, {len(times)} rounds)"
        )
    print(f"resumed at 90% / cold: {figures['ratio_of_medians']:.2f}")
    print(f"texts decoded {figures['decoded']}, delivered {figures['delivered']}")
    print(f"state {figures['state_bytes']} bytes, state_dict() {figures['state_dict_ms']:.3f} ms")


if __name__ == "__main__":
    main()
