"""What commands are tried on: files to pack, a corpus, states, and logs as ranks write them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet

from shardloader.planning.plan import plan
from shardloader.planning.sample_log import LOG_VERSION
from tests.shards import write_shard

if TYPE_CHECKING:
    from pathlib import Path

    from shardloader.format.manifest import Manifest

PYTHON = sys.executable
COMMAND = (PYTHON, "-W", "error", "-m", "shardloader")


def make_photos(folder: Path, num_samples: int = 12) -> None:
    (folder / "a").mkdir(parents=True)
    for number in range(num_samples):
        (folder / "a" / f"{number:03d}.jpg").write_bytes(b"j" * (700 + number))
        (folder / "a" / f"{number:03d}.cls").write_bytes(b"%d" % number)
    (folder / "README").write_text("no extension")
    (folder / ".cache").mkdir()


def make_corpus(folder: Path, shards: int = 4, samples: int = 50) -> None:
    for number in range(shards):
        write_shard(folder / f"shard-{number:03d}.tar", samples, first=number * samples)


def make_rows(folder: Path) -> None:
    """Write `rows.jsonl`, and images in a column under `data/`."""
    rows = [{"id": number, "text": f"text {number}", "meta": {"n": number}} for number in range(20)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "data").mkdir()
    images = [{"bytes": b"\xff\xd8\xff", "path": f"{number}.jpg"} for number in range(20)]
    table = pa.table({"image": images, "label": list(range(20))})
    pa.parquet.write_table(table, folder / "data" / "0.parquet")


def state_of(source: Any, consumed: int, **options: Any) -> dict[str, Any]:
    made = plan(source, **options)
    return {**made.checkpoint.to_state(), "consumed": consumed}


class Run:
    """Writes the logs of a training run on `world_size` ranks, as loader.log_samples does."""

    def __init__(
        self,
        folder: Path,
        *,
        samples: int = 64,
        world_size: int = 2,
        manifest: Manifest | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.source = [8] * (samples // 8) if manifest is None else manifest
        self.dataset = "d" * 32 if manifest is None else manifest.digest
        self.world_size = world_size
        self.batch_size = 4

    def attempt(
        self, launch: int, *, epoch: int = 0, start: int = 0, stop: int | None = None, **change: Any
    ) -> None:
        """Log the steps start..stop-1 of an epoch; `change` goes to the plan."""
        for rank in range(self.world_size):
            self.write(rank, launch, self.lines(rank, launch, epoch, start, stop, **change))

    def lines(
        self, rank: int, launch: int, epoch: int, start: int, stop: int | None, **change: Any
    ) -> list[dict[str, Any]]:
        options = {"seed": 0, "epoch": epoch} | change
        made = plan(
            self.source,
            batch_size=self.batch_size,
            world_size=self.world_size,
            **options,
        )
        step_size, order = made.dealing.step_size, made.schedule.order
        first = {
            "version": LOG_VERSION,
            "attempt": [launch, 0],
            "rank": rank,
            "world_size": self.world_size,
            "batch_size": self.batch_size,
            "even": made.dealing.even,
            "dataset": self.dataset,
            "num_samples": order.num_samples,
            "num_shards": int((order.counts > 0).sum()),
            "seed": order.seed,
            "window": order.window,
            "steps_per_epoch": None,
            "epoch": epoch,
            "consumed": start * step_size,
            "grid": order.grid.to_list(),
            "closed": None,
        }
        batches = [
            (step, made.batch(step, rank))
            for step in range(start, made.steps if stop is None else stop)
        ]
        return [
            first,
            *(
                {
                    "epoch": epoch,
                    "consumed": step * step_size,
                    "index": batch.index.tolist(),
                    "valid": int(batch.valid.sum()),
                }
                for step, batch in batches
            ),
        ]

    def path(self, rank: int, launch: int) -> Path:
        return self.folder / f"rank-{rank:05d}-of-{self.world_size:05d}.{launch}.jsonl"

    def write(self, rank: int, launch: int, lines: list[dict[str, Any]]) -> None:
        with self.path(rank, launch).open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def read(self, rank: int, launch: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path(rank, launch).read_text().splitlines()]

    def rewrite(self, rank: int, launch: int, lines: list[dict[str, Any]]) -> None:
        self.path(rank, launch).unlink()
        self.write(rank, launch, lines)
