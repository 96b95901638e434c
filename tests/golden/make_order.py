"""Makes `order_v1.json`, once: `python -m tests.golden.make_order`.

The file pins the order for ever, because a checkpoint that one release wrote must resume in the
next. It is never made again: an order that differs needs a new format version and a new file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Philox

from shardloader.order.checkpoint import Checkpoint
from shardloader.order.epoch import Order
from shardloader.order.grid import Grid
from shardloader.order.schedule import Schedule

FILE = Path(__file__).with_name("order_v1.json")

SMALL = [9, 0, 14, 3, 21, 1, 8, 0, 17, 5]  # 78 samples, empty shards among them
HUGE = [10**10, 3 * 10**9, 0, 7 * 10**9 + 11]
FEW = [[0, 0], [1, 0], [3, 0], [7, 0]]  # [step, rank]


def an_order(name: str, reads: list[list[int]], **changed: Any) -> dict[str, Any]:
    """One entry: what defines an order and a topology, and which [step, rank] are pinned."""
    entry: dict[str, Any] = {
        "name": name,
        "counts": SMALL,
        "seed": 0,
        "window": 10_000,
        "grid": [2, 2, 3],
        "steps_per_epoch": None,
        "epoch": 0,
        "consumed": 0,
        "world_size": 2,
        "batch_size": 3,
        "even": "pad",
        "reads": reads,
    }
    return {**entry, **changed}


ORDERS = [
    an_order("unshuffled", FEW, window=None, grid=[1, 1, 3], world_size=1),
    an_order("unshuffled on a grid", [*FEW, [12, 0], [12, 1]], window=None),
    an_order("window 1", [*FEW, [12, 0], [12, 1]], window=1),
    an_order("window 2", [*FEW, [12, 0], [12, 1]], window=2),
    an_order("window 7", [*FEW, [0, 1], [1, 1], [12, 0], [12, 1]], window=7),
    an_order("window 7, the next epoch", FEW, window=7, epoch=1),
    an_order("window 7, the next seed", FEW, window=7, seed=1),
    an_order("window 1000, more than a lane", [*FEW, [0, 1], [12, 0], [12, 1]], window=1000),
    an_order(
        "window 1000, less than a lane",
        [[0, 0], [0, 1], [250, 0], [499, 1], [520, 1]],
        counts=[1700, 900, 0, 2100, 1600, 1],
        window=1000,
        grid=[2, 1, 6],
        batch_size=6,
    ),
    an_order("only a tail", [[0, 0], [0, 1], [0, 2], [0, 3]], counts=[2, 3], world_size=4),
    an_order("one sample for three ranks", [[0, 0], [0, 1], [0, 2]], counts=[0, 1], world_size=3),
    an_order("join", [[12, 1], [13, 0], [13, 1]], even="join", counts=[*SMALL, 1]),
    an_order("drop", [[12, 1], [13, 0], [13, 1]], even="drop", counts=[*SMALL, 1]),
    an_order(
        "steps_per_epoch, several passes an epoch",
        [[0, 0], [12, 1], [13, 0], [25, 1], [26, 0], [29, 1]],
        steps_per_epoch=30,
        epoch=4,
        window=5,
    ),
    an_order(
        "steps_per_epoch in another topology",
        [[0, 0], [1, 2], [2, 1], [8, 2]],
        steps_per_epoch=30,
        epoch=1,
        consumed=48,
        window=5,
        world_size=3,
        batch_size=5,
    ),
    an_order(
        "a changed topology",
        [[0, 0], [0, 1], [0, 2], [3, 2], [4, 0], [4, 1], [4, 2]],
        window=7,
        grid=[4, 2, 2],
        consumed=16,
        world_size=3,
        batch_size=5,
    ),
    an_order("the largest seed", [*FEW, [12, 1]], window=7, seed=2**63 - 1, epoch=3),
    an_order("a seed beyond 32 bits", FEW, window=7, seed=2**32 + 7, epoch=2**33),
    an_order(
        "a thousand ranks near position 10**10",
        [[0, 0], [0, 999], [1, 511], [305_000, 17], [309_999, 998]],
        counts=HUGE,
        seed=20_240_229,
        epoch=2,
        grid=[1024, 8, 32],
        consumed=10**10 // 32_768 * 32_768,
        world_size=1000,
        batch_size=32,
    ),
    an_order(
        "a thousand ranks, a narrow window",
        [[0, 0], [0, 1023], [300_001, 512], [610_351, 5], [610_352, 1023]],
        counts=HUGE,
        seed=3,
        window=257,
        grid=[1024, 8, 32],
        world_size=1024,
        batch_size=32,
    ),
    an_order(
        "300 shards",
        [[0, 0], [5, 3], [13, 1]],
        counts=[number * 7919 % 11 for number in range(300)],
        seed=99,
        window=64,
        grid=[4, 3, 8],
        world_size=4,
        batch_size=8,
    ),
]

STATES = [
    Checkpoint(
        dataset="xxh3-128:00112233445566778899aabbccddeeff",
        seed=7,
        epoch=3,
        consumed=36,
        grid=Grid(ranks=2, workers=2, batch=3),
        window=7,
        steps_per_epoch=None,
    ),
    Checkpoint(
        dataset="xxh3-128:00112233445566778899aabbccddeeff",
        seed=2**63 - 1,
        epoch=0,
        consumed=0,
        grid=Grid(ranks=1, workers=1, batch=4),
        window=None,
        steps_per_epoch=None,
    ),
    Checkpoint(
        dataset="xxh3-128:00112233445566778899aabbccddeeff",
        seed=0,
        epoch=12,
        consumed=60,
        grid=Grid(ranks=3, workers=4, batch=4),
        window=10_000,
        steps_per_epoch=20,
    ),
]
# (key, stream, first word): streams as `permutation` names them; the law of words is Philox's.
WORDS: list[tuple[tuple[int, int], int, int]] = [
    ((0, 0), 0, 0),
    ((0, 0), 1, 0),
    ((0, 1), 1, 0),
    ((1, 0), 2, 0),
    ((2**63 - 1, 2**40), 1, 4 * 10**10),
    ((2**64 - 1, 0), 0, 0),
]


def schedule_of(entry: dict[str, Any]) -> Schedule:
    """The schedule that an entry describes."""
    ranks, workers, batch = entry["grid"]
    order = Order(
        counts=np.array(entry["counts"], dtype=np.int64),
        seed=entry["seed"],
        window=entry["window"],
        grid=Grid(ranks=ranks, workers=workers, batch=batch),
        steps_per_epoch=entry["steps_per_epoch"],
    )
    return Schedule.of(
        order, **{k: entry[k] for k in ("epoch", "consumed", "world_size", "batch_size", "even")}
    )


def read(schedule: Schedule, step: int, rank: int) -> dict[str, Any]:
    """What a rank reads at a step, as the file holds it; None for a step that there isn't."""
    if step >= schedule.dealing.num_steps:
        return {"step": step, "rank": rank, "index": None, "valid": None}
    batch = schedule.reader(rank).steps(np.array([step]))
    size = int(batch.size[0])
    return {
        "step": step,
        "rank": rank,
        "index": batch.index[0, :size].tolist(),
        "valid": batch.valid[0, :size].astype(int).tolist(),
    }


def pinned(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry with what is read."""
    schedule = schedule_of(entry)
    reads = [read(schedule, step, rank) for step, rank in entry["reads"]]
    return {**entry, "num_steps": schedule.dealing.num_steps, "reads": reads}


def raw_words(key: tuple[int, int], stream: int, first: int, num: int = 6) -> list[int]:
    """Philox's own words, from numpy alone; `first` is a multiple of 4."""
    counter = np.array([first // 4, 0, 0, stream], dtype=np.uint64)
    philox = Philox(key=np.array(key, dtype=np.uint64), counter=counter)
    return [int(word) for word in philox.random_raw(num)]


def resumed(checkpoint: Checkpoint) -> dict[str, Any]:
    """What three ranks of batch 2 read at once after loading a state over SMALL."""
    entry = an_order(
        "resumed",
        [[0, 0], [0, 1], [0, 2]],
        seed=checkpoint.seed,
        window=checkpoint.window,
        grid=checkpoint.grid.to_list(),
        steps_per_epoch=checkpoint.steps_per_epoch,
        epoch=checkpoint.epoch,
        consumed=checkpoint.consumed,
        world_size=3,
        batch_size=2,
    )
    return {"state": checkpoint.to_state(), "reads": pinned(entry)["reads"]}


def main() -> None:
    """Write the file, unless it exists."""
    content = {
        "words": [
            {"key": key, "stream": stream, "first": first, "words": raw_words(key, stream, first)}
            for key, stream, first in WORDS
        ],
        "orders": [pinned(entry) for entry in ORDERS],
        "states": [resumed(checkpoint) for checkpoint in STATES],
    }
    # "x": a golden file is made once, and nobody rewrites it.
    with FILE.open("x", encoding="utf-8") as file:
        file.write("{\n")
        for last, (section, entries) in enumerate(content.items(), start=1 - len(content)):
            lines = ",\n".join(json.dumps(entry) for entry in entries)
            file.write(f'"{section}": [\n{lines}\n]{"," if last else ""}\n')
        file.write("}\n")


if __name__ == "__main__":
    main()
