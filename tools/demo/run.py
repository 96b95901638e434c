"""The main job, end to end: pack, train, be killed, resume on another topology, audit.

    python -m tools.demo.run [--out .demo]

Packs Python sources into shards with the command line; trains on 2 ranks of 2 workers; kills a
rank with SIGKILL in mid-epoch; resumes from the last checkpoint on 3 ranks of 1 worker and
finishes two epochs; then audits what the ranks logged. Exits 1 if the audit finds a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import psutil
from tqdm import tqdm

from tools.progress import progress

HERE = Path(__file__).resolve().parent
EPOCHS = 2
BATCH_SIZE = 16
KILL_AT = 0.6  # of the first epoch


class Job:
    """A launch of torchrun; ends all of its processes whatever happens."""

    def __init__(self, out: Path, shards: Path, *, ranks: int, workers: int) -> None:
        for stale in out.glob("rank-*.pid"):
            stale.unlink()
        self._out = out
        self._log = (out / "torchrun.log").open("ab")
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), str(HERE.parent / "train.py"), str(shards), str(out)),
            *("--num-workers", str(workers), "--batch-size", str(BATCH_SIZE)),
            *("--epochs", str(EPOCHS)),
        ]
        self._launcher = subprocess.Popen(  # noqa: S603 - our own script
            command, stdout=self._log, stderr=self._log
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the launcher and its ranks, gently first."""
        if self._launcher.poll() is None:
            family = psutil.Process(self._launcher.pid).children(recursive=True)
            self._launcher.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._launcher.wait(timeout=20)
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._launcher.kill()
            self._launcher.wait()
        self._log.close()

    @property
    def ended(self) -> int | None:
        """The launcher's exit code, None while it runs."""
        return self._launcher.poll()

    def kill_rank(self, rank: int) -> None:
        """SIGKILL one rank, then wait until the launcher has given up."""
        pid = int((self._out / f"rank-{rank}.pid").read_text())
        psutil.Process(pid).kill()
        self._launcher.wait(timeout=120)


def follow(job: Job, out: Path, num_samples: int, bar: tqdm[Any], *, until: int) -> None:
    """Show progress until training has consumed `until` positions, or the job ends."""
    while job.ended is None:
        place = progress(out / "samples", num_samples).place
        bar.n = min(place, EPOCHS * num_samples)
        bar.refresh()
        if place >= until:
            return
        time.sleep(0.2)


def command_line(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run the installed command, its output shown."""
    print(f"$ shardloader {' '.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "shardloader", *arguments]
    return subprocess.run(command, check=False)  # noqa: S603 - our own command


def require(worked: bool, what: str, out: Path) -> None:
    """Stop the demo, and show where to look, if a part failed."""
    if not worked:
        tail = (out / "torchrun.log").read_text(errors="replace")[-3000:]
        sys.exit(f"{what}\n{tail}")


def pack(out: Path) -> tuple[Path, int]:
    """Make the corpus and its shards; their folder and number of samples."""
    corpus, shards = out / "corpus", out / "shards"
    subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(HERE.parent / "python_sources.py"), str(corpus)], check=True
    )
    num_files = sum(1 for path in corpus.rglob("*.py") if path.is_file())
    written = command_line(
        "write", str(corpus), str(shards), "--max-samples", str(max(1, num_files // 20))
    )
    num_shards = len(list(shards.glob("*.tar")))
    if written.returncode or num_shards < 16:
        sys.exit(f"packing failed: {num_shards} shards")
    return shards, num_files


def train_and_resume(out: Path, shards: Path, num_samples: int) -> None:
    """Two launches with a kill between them."""
    with tqdm(total=EPOCHS * num_samples, unit="sample", desc="2 ranks x 2 workers") as bar:
        with Job(out, shards, ranks=2, workers=2) as job:
            follow(job, out, num_samples, bar, until=int(KILL_AT * num_samples))
            require(job.ended is None, "the first launch ended before it was killed", out)
            job.kill_rank(1)
            bar.write(f"killed rank 1 with SIGKILL after {bar.n} samples of epoch 0")
        bar.set_description("3 ranks x 1 worker ")
        with Job(out, shards, ranks=3, workers=1) as job:
            follow(job, out, num_samples, bar, until=EPOCHS * num_samples + 1)
            require(job.ended == 0, "the resumed launch failed", out)
        bar.n = EPOCHS * num_samples


def show_results(out: Path) -> None:
    """The loss's course, times to the first batch, the state's size."""
    losses = [json.loads(line) for line in (out / "loss.jsonl").read_text().splitlines()]
    picked = losses[:: max(1, len(losses) // 12)] + losses[-1:]
    print("\nloss, bits a byte (epoch, ranks: loss)")
    for each in picked:
        print(f"  {each['epoch']}, {each['world_size']}: {each['loss'] / 0.6931:.2f}")
    firsts = [json.loads(line) for line in (out / "first_batch.jsonl").read_text().splitlines()]
    for name, first in zip(("cold start", "resume"), firsts, strict=True):
        print(
            f"process start to first batch, {name}: {first['seconds']:.1f} s "
            f"({first['world_size']} ranks x {first['num_workers']} workers)"
        )
    print(f"size of the loader's state: {firsts[-1]['state_bytes']} bytes of JSON\n")


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".demo"))
    out = parser.parse_args().out
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    started = time.monotonic()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "torchrun.log").touch()
    shards, num_samples = pack(out)
    train_and_resume(out, shards, num_samples)
    show_results(out)
    audited = command_line("audit", str(out / "samples"), str(shards))
    print(f"the whole took {time.monotonic() - started:.0f} s")
    sys.exit(audited.returncode)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted: every process was ended")
