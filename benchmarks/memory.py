"""How much memory does a worker take, for windows of several sizes, over three epochs?

    python -m benchmarks.memory [--samples 400000] [--windows 1000 100000] [--workers 2]

Anonymous and shared memory of the largest worker, at its peak in each epoch, beside that of a plain
torch DataLoader over numbers, which is what any worker has. The page cache that maps count is none
of it. Every measurement is a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
from typing import Any, Final

import shardloader as sl
from benchmarks.feeding.processes import ROOT, descendants, held_mb

IDLE: Final = 0  # in place of a window
BATCH: Final = 256
LOOK_EVERY_S: Final = 0.02


def main() -> None:
    """Measure, and print a line for each window."""
    options = _options()
    if options.measure is not None:
        _read(options)
        return
    for name, peaks in report(options).items():
        print(f"{name:>16}  " + "  ".join(f"{peak:7.1f} MB" for peak in peaks))


def report(options: argparse.Namespace) -> dict[str, list[float]]:
    """Peaks of the largest worker in MB, by epoch; "idle" is torch's own."""
    with tempfile.TemporaryDirectory() as folder:
        with sl.ShardWriter(folder, max_samples=10_000) as writer:
            for number in range(options.samples):
                writer.write({"__key__": f"{number:09d}", "txt": b"%d" % number})
        found = {"idle": _peaks(folder, IDLE, options)}
        for window in options.windows:
            found[f"window {window}"] = _peaks(folder, window, options)
    return found


def _peaks(folder: str, window: int, options: argparse.Namespace) -> list[float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", "--corpus", folder]
    command += ["--measure", str(window), "--workers", str(options.workers)]
    command += ["--samples", str(options.samples), "--epochs", str(options.epochs)]
    peaks: list[float] = []
    with subprocess.Popen(  # noqa: S603
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        watch = _Watch(process.pid)
        if process.stdin is None or process.stdout is None:
            raise AssertionError
        for _ in process.stdout:  # a line after each epoch, and it waits until it was looked at
            peaks.append(watch.peak())
            process.stdin.write("\n")
            process.stdin.flush()
        watch.end()
    if process.returncode:
        raise RuntimeError(f"reading with a window of {window} ended with {process.returncode}")
    return peaks


class _Watch:
    """Looks at the workers of a process, in a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def peak(self) -> float:
        """The largest worker's peak since the last call, in MB."""
        self._note()
        peak, self._peak = self._peak, 0.0
        return peak

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self._note()

    def _note(self) -> None:
        workers = descendants(self._pid)[1:]
        self._peak = max(self._peak, *map(held_mb, workers), 0.0)


def _read(options: argparse.Namespace) -> None:
    """What a measured process does: some epochs, and a line after each that is answered."""
    how: dict[str, Any] = {"num_workers": options.workers, "persistent_workers": True}
    loader: Any
    if options.measure == IDLE:
        from torch.utils.data import DataLoader

        numbers: Any = range(options.samples)
        loader = DataLoader(numbers, batch_size=BATCH, **how)
    else:
        shuffle = sl.Shuffle(window=options.measure)
        dataset = sl.ShardDataset(options.corpus, shuffle=shuffle, decode=None)
        loader = sl.ShardLoader(dataset, batch_size=BATCH, **how)
    for _ in range(options.epochs):
        for _ in loader:
            pass
        print("epoch", flush=True)
        sys.stdin.readline()


def _options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--windows", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
