"""What would 128 to 16,384 ranks on a petabyte ask of store, network and disk?

    python benchmarks/scale.py [--json] [--ranks 128,1024] [--measure]

A simulation: nothing is read. The plan is the real one, of a manifest of a million shards: which
shards each rank opens in an epoch, how many a worker needs at a time, and how many for its first
batch, comes from the code that deals them out. How fast a rank trains, and how many ranks and
workers stand on a node, are assumptions, given at the top. Requests are those that the reader
makes: pieces of a shard, and what an S3 server was seen to get besides. `--measure` adds what
planning costs here: seconds and MB to set a plan up, and the share of a worker's time that goes
into positions.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import planning
from shardloader.order.window import Shuffle
from shardloader.planning.opened import Look, opened
from shardloader.planning.plan import plan
from shardloader.reading.remote import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardloader.planning.planned import Plan

NUM_SHARDS: Final = 1_000_000
SHARD_BYTES: Final = 10**9
RANKS_A_NODE: Final = 8
WORKERS: Final = 8  # of a rank
BATCH: Final = 32
RANKS: Final = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
WINDOW: Final = 10_000  # the default
WATCHED_SHARDS: Final = 6  # so long is a worker watched, in the middle of an epoch
HOUR_S: Final = 3_600
# Besides its pieces, by the log of the S3 server of `make multinode` (25 shards): GET and HEAD of
# the index, and three times HEAD of the shard.
MORE_REQUESTS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained on: bytes of a sample, and samples a second that a rank takes."""

    name: str
    sample_bytes: int
    rate: float

    @property
    def samples_a_shard(self) -> int:
        """Samples of each shard."""
        return SHARD_BYTES // self.sample_bytes


WORKLOADS: Final = (
    Workload(name="images", sample_bytes=100_000, rate=1_000),
    Workload(name="tokens", sample_bytes=4_000, rate=50),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one workload asks, on so many ranks.

    fetched: how often the whole dataset is fetched in an epoch, all nodes together, at most: as if
    the ranks of a node had no shard in common; alive: shards that a worker needs at a time, at
    most; at_first: those of its first batch.
    """

    workload: str
    ranks: int
    nodes: int
    epoch_hours: float
    shards_a_rank: int
    fetched: float
    alive: int
    at_first: int
    store_gb_per_s: float
    store_requests_per_s: float
    node_gbit_per_s: float
    node_disk_mb_per_s: float
    node_cache_gb: float
    node_first_gb: float


def asked(workload: Workload, ranks: int) -> Asked:
    """Carry out the plan for so many ranks."""
    counts = np.full(NUM_SHARDS, workload.samples_a_shard, dtype=np.int64)
    made = plan(
        counts,
        batch_size=BATCH,
        world_size=ranks,
        num_workers=WORKERS,
        shuffle=Shuffle(window=WINDOW),
    )
    look = Look.at(made)
    if look is None:
        raise ValueError(f"{ranks} ranks: a window of {WINDOW} samples is too wide to look at")
    shards = opened(made, look).a_rank.shards
    nodes = -(-ranks // RANKS_A_NODE)
    fetched = float(shards.mean()) * ranks / NUM_SHARDS
    alive, at_first = needed_at_once(made, workload)
    # an epoch fetches each shard `fetched` times, in the time that its samples take
    bytes_per_s = ranks * workload.rate * workload.sample_bytes * fetched
    requests_a_shard = MORE_REQUESTS + -(-SHARD_BYTES // PIECE_BYTES)
    workers_a_node = min(ranks, RANKS_A_NODE) * WORKERS
    return Asked(
        workload=workload.name,
        ranks=ranks,
        nodes=nodes,
        epoch_hours=NUM_SHARDS * workload.samples_a_shard / (ranks * workload.rate) / HOUR_S,
        shards_a_rank=int(shards.max()),
        fetched=fetched,
        alive=alive,
        at_first=at_first,
        store_gb_per_s=bytes_per_s / 1e9,
        store_requests_per_s=bytes_per_s / SHARD_BYTES * requests_a_shard,
        node_gbit_per_s=bytes_per_s / nodes * 8 / 1e9,
        node_disk_mb_per_s=bytes_per_s / nodes / 1e6,
        node_cache_gb=workers_a_node * alive * SHARD_BYTES / 1e9,
        node_first_gb=workers_a_node * at_first * SHARD_BYTES / 1e9,
    )


def needed_at_once(made: Plan, workload: Workload) -> tuple[int, int]:
    """Shards that a worker needs at a time, at most, and those of its first batch.

    One worker of a rank in the middle is watched over some shards in the middle of the epoch: a
    shard is needed from its first sample to its last.
    """
    reader = made.schedule.reader(made.dealing.world_size // 2)
    first = reader.steps(np.zeros(1, dtype=np.int64)).shard
    mine = np.arange(0, made.steps, WORKERS, dtype=np.int64)
    length = min(len(mine), WATCHED_SHARDS * workload.samples_a_shard // BATCH)
    start = (len(mine) - length) // 2
    at_once = made.schedule.steps_at_once(WORKERS)
    parts = [
        reader.steps(mine[begin : min(begin + at_once, start + length)]).shard.reshape(-1)
        for begin in range(start, start + length, at_once)
    ]
    return most_alive(np.concatenate(parts)), len(np.unique(first))


def most_alive(shards: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    """The most shards between their first and last sample at one time.

    >>> most_alive(np.array([4, 4, 7, 4, 7, 9]))
    2
    """
    _, begins = np.unique(shards, return_index=True)
    _, from_end = np.unique(shards[::-1], return_index=True)
    change = np.zeros(len(shards) + 1, dtype=np.int64)
    change[begins] += 1
    np.subtract.at(change, len(shards) - from_end, 1)
    return int(np.cumsum(change).max())


def measured() -> dict[str, float]:
    """What planning costs on this machine."""
    setup = planning.measure_setup(NUM_SHARDS)
    costs = planning.measure_evaluation(NUM_SHARDS, WINDOW)
    microseconds = max(costs.values())
    return {
        "setup_seconds": setup["seconds"],
        "setup_mb": setup["mb"],
        "microseconds_a_sample": microseconds,
        **{
            f"share_of_a_worker_{each.name}": each.rate / WORKERS * microseconds / 1e6
            for each in WORKLOADS
        },
    }


COLUMNS: Final = (
    "",
    "ranks",
    "nodes",
    "hours an epoch",
    "shards a rank",
    "fetched, times",
    "store GB/s",
    "requests/s",
    "node Gbit/s",
    "node disk MB/s",
    "node cache GB",
    "node, to the first batch GB",
)
HEAD: Final = (f"| {' | '.join(COLUMNS)} |", "|---|" + "---:|" * (len(COLUMNS) - 1))


def row(found: Asked) -> str:
    """One line of the table."""
    return (
        f"| {found.workload} | {found.ranks:,} | {found.nodes:,} | {found.epoch_hours:,.1f} | "
        f"{found.shards_a_rank:,} | {found.fetched:.3f} | {found.store_gb_per_s:,.2f} | "
        f"{found.store_requests_per_s:,.1f} | {found.node_gbit_per_s:.2f} | "
        f"{found.node_disk_mb_per_s:,.1f} | {found.node_cache_gb:,.0f} | "
        f"{found.node_first_gb:,.0f} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    options = parser.parse_args(arguments)
    ranks = [int(word) for word in options.ranks.split(",")]
    found = [asked(workload, number) for workload in WORKLOADS for number in ranks]
    costs = measured() if options.measure else {}
    if options.json:
        rows = [asdict(each) for each in found]
        print(json.dumps({"asked": rows, "measured": costs}, indent=1))
        return
    for line in (*HEAD, *map(row, found)):
        print(line)
    for name, value in costs.items():
        print(f"{name}: {value:.4g}")


if __name__ == "__main__":
    main()
