"""How is a log of samples written and read?

`loader.log_samples` writes one file a rank and launch, `rank-00000-of-00002.<launch>.jsonl`, and
an audit reads them with `planning.log_reader`; here stands what is in them. A line is one JSON
object:

    {"version": 4, "attempt": [1732900000000000000, 0], "rank": 0, "world_size": 2,
     "batch_size": 32, "even": "pad", "dataset": "...", "num_samples": 1000, "num_shards": 10,
     "seed": 0, "window": 10000, "steps_per_epoch": null, "epoch": 0, "consumed": 0,
     "grid": [2, 1, 32], "closed": null}
    {"epoch": 0, "consumed": 0, "index": [17, 4, ...], "valid": 32}
    {"epoch": 0, "consumed": 64, "skipped": 128}
    {"epoch": 1, "consumed": 0, "grid": [3, 1, 32]}
    {"epoch": 2, "consumed": 0, "grid": [3, 1, 32], "dataset": "...", "num_samples": 1200,
     "num_shards": 12}

The first kind says where an attempt starts, and all that its plan is computed from but the
dataset: an attempt is the launch and how often it went back to a loaded state. The second says
what a step held: `consumed`, the positions consumed before it, and the samples of its slots, the
first `valid` of which are valid; with steps_per_epoch also "pass", for each slot the pass over the
data that it belongs to, where that is not the epoch. The third says how many positions training
left out on purpose, the last two on which grid the order lies from there on, and of which dataset
it is, where that had grown; a start that loaded a state of the dataset as it was before says of
which, as "grown_from". A step in which samples
could not be given has "bad" or "refused" too, the slots that were filled otherwise: they count as
valid in "valid", which is the plan's, and "index" says what they should have held.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from shardloader.order.dealing import checked_even
from shardloader.order.epoch import MAX_POSITIONS
from shardloader.order.grid import Grid
from shardloader.order.integers import MAX_SEED, checked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LOG_VERSION: Final = 4

MAX_SAMPLES = 1 << 32  # a count of four bytes for each sample must fit in memory
MAX_RANKS = 1 << 24

_FILE = re.compile(r"rank-(\d+)-of-\d+\.(\d+)\.jsonl", re.ASCII)

Attempt = tuple[int, int]
Place = tuple[int, int]


def file_name(*, rank: int, world_size: int, launch: int) -> str:
    """The name of a rank's log."""
    return f"rank-{rank:05d}-of-{world_size:05d}.{launch}.jsonl"


def rank_and_launch(name: str) -> tuple[int, int] | None:
    """The rank and the launch whose log is called so; None for a file that is no log.

    >>> rank_and_launch(file_name(rank=3, world_size=8, launch=17))
    (3, 17)
    """
    found = _FILE.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One rank's start of an attempt, with all that its plan follows from but the dataset.

    dataset: the manifest's digest; num_shards: shards that hold a sample; window: samples of the
    shuffle's window, None without a shuffle; grid: that of what is left of the epoch; closed: the
    epoch and position that a loaded state left, having no step there; is_first: False where the
    same attempt goes on on another grid or a grown dataset; grown_from: the dataset of the loaded
    state, if shards were appended since; epoch_stride: from the virtual position of an epoch's
    start to that of the next, where that is not an epoch's length, since the dataset grew. Raises
    UsageError for values that can't be.
    """

    rank: int
    world_size: int
    batch_size: int
    even: str
    dataset: str
    num_samples: int
    num_shards: int
    seed: int
    window: int | None
    steps_per_epoch: int | None
    epoch: int
    consumed: int
    grid: Grid
    closed: Place | None = None
    attempt: Attempt = (0, 0)
    is_first: bool = True
    grown_from: str | None = None
    epoch_stride: int | None = None

    def __post_init__(self) -> None:
        checked("world_size", self.world_size, least=1, below=MAX_RANKS)
        checked("rank", self.rank, least=0, below=self.world_size)
        checked("batch_size", self.batch_size, least=1, below=2**31)
        checked_even(self.even)
        checked("num_samples", self.num_samples, least=0)
        checked("num_shards", self.num_shards, least=0)
        checked("seed", self.seed, least=0, below=MAX_SEED)
        for name in ("window", "steps_per_epoch"):
            if getattr(self, name) is not None:
                checked(name, getattr(self, name), least=1)
        checked("the position", self.virtual(self.place), least=0, below=MAX_POSITIONS)
        checked("epoch", min(self.place), least=0)

    @property
    def place(self) -> Place:
        """Epoch, and positions consumed in it."""
        return self.epoch, self.consumed

    @property
    def step_size(self) -> int:
        """Samples of a full step over all ranks."""
        return self.world_size * self.batch_size

    @property
    def epoch_length(self) -> int:
        """Positions of an epoch."""
        if self.steps_per_epoch is None:
            return self.num_samples
        return self.steps_per_epoch * self.grid.step

    @property
    def stride(self) -> int:
        """From the virtual position of an epoch's start to that of the next."""
        return self.epoch_length if self.epoch_stride is None else self.epoch_stride

    def virtual(self, place: Place) -> int:
        """The virtual position of a place: positions of all epochs, counted through."""
        return place[0] * self.stride + place[1]

    def to_record(self) -> dict[str, Any]:
        """What the log holds of it."""
        return {
            "version": LOG_VERSION,
            "attempt": list(self.attempt),
            **{name: getattr(self, name) for name in _PLAIN},
            "grid": self.grid.to_list(),
            "closed": self.closed and list(self.closed),
            **({} if self.grown_from is None else {"grown_from": self.grown_from}),
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """The start of a record; raises KeyError, TypeError or ValueError for what is none."""
        launch, loads = record["attempt"]
        checked("num_samples", record["num_samples"], least=0, below=MAX_SAMPLES + 1)
        grown_from = record.get("grown_from")
        if not isinstance(record["dataset"], str) or not isinstance(grown_from, str | None):
            raise TypeError("a dataset is named by its digest")
        closed = record["closed"]
        if closed is not None:
            epoch, consumed = closed
            closed = checked("epoch", epoch, least=0), checked("consumed", consumed, least=0)
        return cls(
            attempt=(checked("attempt", launch, least=0), checked("attempt", loads, least=0)),
            grid=Grid.from_list(record["grid"]),
            closed=closed,
            grown_from=grown_from,
            **{name: record[name] for name in _PLAIN},
        )

    def changed(self, record: dict[str, Any]) -> Self:
        """The start that goes on on another grid, or a grown dataset; raises as `from_record`."""
        changes = {name: record[name] for name in _OF_DATASET if "dataset" in record}
        checked("num_samples", changes.get("num_samples", 0), least=0, below=MAX_SAMPLES + 1)
        if not isinstance(changes.get("dataset", ""), str):
            raise TypeError("a dataset is named by its digest")
        return replace(
            self,
            grid=Grid.from_list(record["grid"]),
            epoch=record["epoch"],
            consumed=record["consumed"],
            grown_from=self.dataset if changes else None,
            is_first=False,
            **changes,
        )


_APART = {"grid", "closed", "attempt", "is_first", "grown_from", "epoch_stride"}
_OF_DATASET: Final = ("dataset", "num_samples", "num_shards")
_PLAIN: Final = tuple(each.name for each in fields(Start) if each.name not in _APART)


def step_record(
    *,
    epoch: int,
    consumed: int,
    index: NDArray[np.int64],
    valid: NDArray[np.bool_],
    passes: NDArray[np.int64],
    bad: Sequence[int] = (),
    refused: Sequence[int] = (),
) -> dict[str, Any]:
    """The record of one received batch; the arrays are of its slots, valid ones first.

    bad, refused: valid slots by the plan that hold another sample, ascending.
    """
    record: dict[str, Any] = {
        "epoch": epoch,
        "consumed": consumed,
        "index": index.tolist(),
        "valid": int(np.count_nonzero(valid)),
    }
    if (passes != epoch).any():
        record["pass"] = passes.tolist()
    for name, slots in (("bad", bad), ("refused", refused)):
        if slots:
            record[name] = list(slots)
    return record


def skip_record(*, epoch: int, consumed: int, count: int) -> dict[str, Any]:
    """The record of positions that training leaves out on purpose."""
    return {"epoch": epoch, "consumed": consumed, "skipped": count}


def change_record(start: Start, *, dataset: str) -> dict[str, Any]:
    """The record of another grid or, after `dataset`, of a grown one, in force from there on."""
    record = {"epoch": start.epoch, "consumed": start.consumed, "grid": start.grid.to_list()}
    if start.dataset != dataset:
        record |= {name: getattr(start, name) for name in _OF_DATASET}
    return record


def encoded(record: dict[str, Any]) -> bytes:
    """The line of a record."""
    return (json.dumps(record, separators=(",", ":")) + "\n").encode()
