"""How well do windows shuffle, beside a perfect shuffle? The tables of docs/shuffle.md.

    python benchmarks/shuffle_quality.py [--json]

40 shards of 10,000 samples, read by 4 ranks of 2 workers with batches of 32, shuffled within
windows of 1, 1,000 and 10,000 samples, and whole: a window of 50,000 is as long as a worker's
lane, and shuffles it whole. One more plan has one lane of all samples, shuffled whole, which is a
perfect shuffle. Then the same samples in more and smaller shards, with a window of 10,000. Nothing
is read and nothing depends on the machine: it is arithmetic.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from shardloader.order.grid import Grid
from shardloader.order.window import Shuffle
from shardloader.planning.plan import plan
from shardloader.planning.quality import quality

NUM_SAMPLES, NUM_SHARDS = 400_000, 40
RANKS, WORKERS, BATCH = 4, 2, 32


class Case(NamedTuple):
    """A plan: its name in the table, its window, the grid if it is not the topology's, shards."""

    name: str
    window: int
    grid: Grid | None = None
    num_shards: int = NUM_SHARDS


CASES = (
    Case("window 1", 1),
    Case("window 1,000", 1_000),
    Case("window 10,000", 10_000),
    Case("full lanes", 50_000),
    Case("full, one lane", 400_000, Grid(ranks=1, workers=1, batch=RANKS * BATCH)),
)


SIZES = tuple(
    Case(f"{number:,} of {NUM_SAMPLES // number:,}", 10_000, num_shards=number)
    for number in (40, 400, 4_000)
)


def measure(case: Case) -> dict[str, Any]:
    """The quality of one case."""
    made = plan(
        np.full(case.num_shards, NUM_SAMPLES // case.num_shards, dtype=np.int64),
        batch_size=BATCH,
        world_size=RANKS,
        num_workers=WORKERS,
        shuffle=Shuffle(window=case.window),
        grid=case.grid,
    )
    return asdict(quality(made))


_COLUMNS = (
    ("shards_a_rank_batch", "shards in a rank's batch", "{:.1f}"),
    ("shards_a_global_batch", "shards in a global batch", "{:.1f}"),
    ("shards_a_run", "shards in 100 steps", "{:.1f}"),
    ("mean_distance", "mean distance", "{:.3%}"),
    ("median_distance", "median distance", "{:.3%}"),
    ("same_batch", "in one global batch", "{:.3%}"),
)


def row(name: str, measured: dict[str, Any], which: str = "plan") -> str:
    """A line of the first table; which: "plan" or "perfect"."""
    return _line([name, *(told.format(measured[key][which]) for key, _, told in _COLUMNS)])


def row_of_size(name: str, measured: dict[str, Any]) -> str:
    """A line of the second table: each figure, and that of a perfect shuffle."""
    return _line(
        [
            name,
            *(
                told.format(measured[key][which])
                for key, _, told in _COLUMNS[:2]
                for which in ("plan", "perfect")
            ),
        ]
    )


def tables(windows: dict[str, dict[str, Any]], sizes: dict[str, dict[str, Any]]) -> list[str]:
    """Both tables, as markdown."""
    perfect = next(iter(windows.values()))
    by_size = ["shards of samples"]
    for _, words, _ in _COLUMNS[:2]:
        by_size += [words, "perfect"]
    return [
        *_header(["shuffle", *(words for _, words, _ in _COLUMNS)]),
        *(row(name, measured) for name, measured in windows.items()),
        row("a perfect shuffle", perfect, "perfect"),
        "",
        *_header(by_size),
        *(row_of_size(name, measured) for name, measured in sizes.items()),
    ]


def _header(words: list[str]) -> list[str]:
    return [_line(words), _line(["---", *["---:"] * (len(words) - 1)])]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    windows = {case.name: measure(case) for case in CASES}
    sizes = {case.name: measure(case) for case in SIZES}
    if options.json:
        print(json.dumps({"windows": windows, "sizes": sizes}, indent=1))
    else:
        print("\n".join(tables(windows, sizes)))


if __name__ == "__main__":
    main()
