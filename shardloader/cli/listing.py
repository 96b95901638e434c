"""Which samples do some steps of a plan hold, one by one?

Steps count from the epoch's start here. A sample's key is told where its shard's index is there.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shardloader.cli import report
from shardloader.errors import UsageError
from shardloader.order.integers import checked
from shardloader.reading.indexing import index_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardloader.format.index import SampleIndex
    from shardloader.order.schedule import StepSamples
    from shardloader.planning.planned import Plan
    from shardloader.reading.catalog import Catalog

MOST_ROWS = 5_000_000
_STEPS = re.compile(r"([0-9]{1,18}):([0-9]{1,18})", re.ASCII)
_INDEXES_KEPT = 256  # memory maps


class Keys:
    """Keys of samples, from the indexes of a dataset; None where there are none."""

    def __init__(self, catalog: Catalog | None) -> None:
        self._catalog = catalog
        self._index = lru_cache(maxsize=_INDEXES_KEPT)(self._read)

    def key(self, shard: int, sample: int) -> str | None:
        """Give the key of a sample, by numbers of the shard and within it."""
        index = self._index(shard)
        return index.key(sample) if index and sample < index.num_samples else None

    def name(self, shard: int) -> str | None:
        """Give a shard's name; None for a dataset that is made up."""
        return None if self._catalog is None else self._catalog.manifest.names[shard]

    def _read(self, shard: int) -> SampleIndex | None:
        if self._catalog is None:
            return None
        return index_at(self._catalog.source, self._catalog.manifest.names[shard])


def steps_to_list(plan: Plan, text: str, rank: int | None) -> tuple[Plan, range]:
    """Parse "A:B", steps counted from the epoch's start; give a plan, and its own count of them.

    Steps before the plan's position are told as the present topology read them. Raises UsageError
    if it can't have, for steps after the end, and for more samples than anyone would read.
    """
    match = _STEPS.fullmatch(text)
    start, stop = (int(match[1]), int(match[2])) if match else (0, 0)
    if start >= stop:
        raise UsageError(f"--steps is A:B, the steps from A to B-1, such as 1200:1210, not {text}")
    if start < plan.first_step:
        plan = plan.from_epoch_start()
    first = plan.first_step
    if stop > first + plan.steps:
        raise UsageError(
            f"in this topology the epoch has the steps 0 to {first + plan.steps - 1}, and --steps "
            f"{text} asks for more"
        )
    if rank is not None:
        checked("--rank", rank, least=0, below=plan.dealing.world_size)
    ranks = plan.dealing.world_size if rank is None else 1
    num_rows = (stop - start) * ranks * plan.dealing.batch_size
    if num_rows > MOST_ROWS:
        raise UsageError(
            f"a listing has at most {MOST_ROWS:,} lines, and --steps {text} has {num_rows:,}: "
            "list fewer steps, or one rank's with --rank"
        )
    return plan, range(start - first, stop - first)


def listed(plan: Plan, steps: range, rank: int | None, keys: Keys) -> Iterator[dict[str, Any]]:
    """Yield what each slot of the steps holds, rank after rank within a step."""
    numbers = np.arange(steps.start, steps.stop, dtype=np.int64)
    ranks = range(plan.dealing.world_size) if rank is None else [rank]
    # A reader sets its pass up, which takes longer than some steps: one a rank, for all steps.
    read = {each: plan.schedule.reader(each).steps(numbers) for each in ranks}
    for at, step in enumerate(steps):
        for each in ranks:
            for row in _slots(read[each], at, keys):
                yield {"step": plan.first_step + step, "rank": each, **row}


def _slots(read: StepSamples, at: int, keys: Keys) -> Iterator[dict[str, Any]]:
    """Yield the slots of one rank's batch; `at` is the step's place in what was read."""
    columns = (read.index, read.shard, read.sample, read.valid)
    slots = zip(*(column[at, : read.size[at]].tolist() for column in columns), strict=True)
    for slot, (index, shard, sample, valid) in enumerate(slots):
        yield {
            "slot": slot,
            "index": index,
            "shard": shard,
            "name": keys.name(shard),
            "sample": sample,
            "valid": valid,
            "key": keys.key(shard, sample),
        }


def print_listing(rows: Iterator[dict[str, Any]]) -> None:
    """Print rows as they come, one a line, in columns of a fixed width."""
    widths = (9, 6, 6, 12, 7, 5)
    names = ("step", "rank", "slot", "index", "sample", "")
    header = " ".join(name.rjust(width) for name, width in zip(names, widths, strict=True))
    report.print_line(f"{header}  shard  key")
    for row in rows:
        cells = [*(str(row[name]) for name in names[:-1]), "valid" if row["valid"] else "pad"]
        left = " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        shard = str(row["shard"]) if row["name"] is None else report.printable(row["name"])
        key = "" if row["key"] is None else report.printable(row["key"])
        report.print_line(f"{left}  {shard}  {key}".rstrip())
