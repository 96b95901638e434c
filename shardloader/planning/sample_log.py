"""How is a log of samples written and read?

`loader.log_samples` writes one file a rank and launch, `rank-00000-of-00002.<launch>.jsonl`, and
an audit reads them; this module alone knows what stands in them. A line is one JSON object:

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
from array import array
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from shardloader.errors import DataError
from shardloader.order.dealing import checked_even
from shardloader.order.epoch import MAX_POSITIONS
from shardloader.order.grid import Grid
from shardloader.order.integers import MAX_SEED, checked, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

LOG_VERSION: Final = 4
# What 3 adds is slots that were bad or refused, and 4 datasets that grew.
READABLE_VERSIONS: Final = (2, 3, LOG_VERSION)

MAX_SAMPLES = 1 << 32  # a count of four bytes for each sample must fit in memory
MAX_RANKS = 1 << 24

TELL_BYTES = 1 << 20  # progress is told about so often

_NO_RECORD = (ValueError, KeyError, TypeError, OverflowError, RecursionError)
_FILE = re.compile(r"rank-(\d+)-of-\d+\.(\d+)\.jsonl", re.ASCII)

Attempt = tuple[int, int]
Place = tuple[int, int]


def file_name(*, rank: int, world_size: int, launch: int) -> str:
    """The name of a rank's log."""
    return f"rank-{rank:05d}-of-{world_size:05d}.{launch}.jsonl"


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


class Skip(NamedTuple):
    """Positions that training left out: where they begin, also as virtual position, and how many.

    Every rank tells of it, and all alike.
    """

    attempt: Attempt
    place: Place
    virtual: int
    num_positions: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Logged:
    """What some logs hold, in columns.

    A row is a batch that one rank received. start: which of `starts` it follows; epoch, consumed:
    its place; valid: how many of its slots, the first ones, are valid: int64 [rows]. offsets: the
    slots of row i are offsets[i] .. offsets[i + 1] - 1, int64 [rows + 1]. index, number: a slot's
    sample, and the pass over the data that it belongs to, int64 [slots]. skips: what was left
    out. ranks: for each launch those that have a file, be it empty. bad, refused: the slots that
    hold another sample than the plan's, int64, ascending.
    """

    starts: tuple[Start, ...]
    start: NDArray[np.int64]
    epoch: NDArray[np.int64]
    consumed: NDArray[np.int64]
    valid: NDArray[np.int64]
    offsets: NDArray[np.int64]
    index: NDArray[np.int64]
    number: NDArray[np.int64]
    skips: frozenset[Skip]
    ranks: dict[int, frozenset[int]]
    bad: NDArray[np.int64]
    refused: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Slots of each row, int64 [rows]."""
        return np.diff(self.offsets)

    def of_start(self, name: str) -> NDArray[np.int64]:
        """An integer that each row's start says, int64 [rows]."""
        values = np.array([getattr(each, name) for each in self.starts], dtype=np.int64)
        return values[self.start]

    def virtual(self) -> NDArray[np.int64]:
        """The virtual position of each row, int64 [rows]."""
        return self.epoch * self.of_start("stride") + self.consumed


class LogReader:
    """Reads logs one after another; `logged` is what they hold together.

    Takes about eight bytes a slot and forty a row.
    """

    def __init__(self) -> None:
        self._starts: list[Start] = []
        self._skips: set[Skip] = set()
        self._ranks: defaultdict[int, set[int]] = defaultdict(set)
        self._start, self._epoch, self._consumed = array("q"), array("q"), array("q")
        self._valid, self._offsets, self._index = array("q"), array("q", [0]), array("q")
        self._rows_with_passes, self._passes = array("q"), array("q")
        self._faulty = {"bad": array("q"), "refused": array("q")}

    def read(self, path: Path, tell: Callable[[int], Any]) -> None:
        """Take in a file; `tell` is called with the bytes that were read since the last call.

        A last line without its end is what a kill leaves, and is left out. Raises DataError for a
        line that is no record, and for a log of another version.
        """
        named = _FILE.fullmatch(path.name)
        if named:
            self._ranks[int(named[2])].add(int(named[1]))
        starts_before, untold = len(self._starts), 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    try:
                        self._take(line, path, is_started=len(self._starts) > starts_before)
                    except _NO_RECORD as error:
                        raise DataError(
                            f"{path}, line {number}: a line is one record of loader.log_samples, "
                            f"and this one is not ({error}): {line[:80]!r}"
                        ) from error
                untold += len(line)
                if untold >= TELL_BYTES:
                    tell(untold)
                    untold = 0
        tell(untold)

    def _take(self, line: bytes, path: Path, *, is_started: bool) -> None:
        record = json.loads(line)
        if "attempt" in record:
            _check_version(record, path)
            start = Start.from_record(record)
            self._starts.append(start)
            self._ranks[start.attempt[0]].add(start.rank)
        elif not is_started:
            raise ValueError("it stands before its attempt's start")
        else:
            self._take_event(record)

    def _take_event(self, record: dict[str, Any]) -> None:
        start = self._starts[-1]
        place = record["epoch"], record["consumed"]
        if not (type(place[0]) is type(place[1]) is int and min(place) >= 0):
            raise ValueError(f"epoch {shown(place[0])}, position {shown(place[1])}")
        virtual = start.virtual(place)
        if virtual >= MAX_POSITIONS:
            raise ValueError(f"position {shown(place[1])} of epoch {shown(place[0])}")
        if "skipped" in record:
            count = checked("skipped", record["skipped"], least=0)
            self._skips.add(Skip(start.attempt, place, virtual, count))
        elif "grid" in record:
            self._starts.append(start.changed(record))
        else:
            self._take_row(record)

    def _take_row(self, record: dict[str, Any]) -> None:
        index, valid, passes = record["index"], record["valid"], record.get("pass")
        if not 0 <= valid <= len(index):
            raise ValueError(f"{valid} of {len(index)} slots are valid")
        if passes is not None:
            if len(passes) != len(index) or not 0 <= min(passes) <= max(passes) < MAX_POSITIONS:
                raise ValueError("each slot has its pass")
            self._passes.fromlist(passes)
            self._rows_with_passes.append(len(self._start))
        for name, slots in self._faulty.items():
            for slot in record.get(name, ()):
                slots.append(len(self._index) + checked(name, slot, least=0, below=valid))
        self._index.fromlist(index)
        self._offsets.append(len(self._index))
        self._epoch.append(record["epoch"])
        self._consumed.append(record["consumed"])
        self._valid.append(valid)
        self._start.append(len(self._starts) - 1)

    def logged(self) -> Logged:
        """All that was read so far."""
        epoch, offsets = _column(self._epoch), _column(self._offsets)
        number = np.repeat(epoch, np.diff(offsets))
        done, passes = 0, _column(self._passes)
        for row in self._rows_with_passes:
            start, stop = int(offsets[row]), int(offsets[row + 1])
            number[start:stop] = passes[done : done + stop - start]
            done += stop - start
        starts, skips = _on_one_line(self._starts, self._skips)
        return Logged(
            starts=tuple(starts),
            start=_column(self._start),
            epoch=epoch,
            consumed=_column(self._consumed),
            valid=_column(self._valid),
            offsets=offsets,
            index=_column(self._index),
            number=number,
            skips=frozenset(skips),
            ranks={launch: frozenset(ranks) for launch, ranks in self._ranks.items()},
            bad=np.unique(_column(self._faulty["bad"])),
            refused=np.unique(_column(self._faulty["refused"])),
        )


def _on_one_line(
    starts: Sequence[Start], skips: Collection[Skip]
) -> tuple[Sequence[Start], Collection[Skip]]:
    """Give them with one stride, where epochs have different lengths: that of the longest."""
    lengths = {start.num_samples for start in starts if start.steps_per_epoch is None}
    if len(lengths) < 2:
        return starts, skips
    longest = [replace(start, epoch_stride=max(lengths)) for start in starts]
    return longest, [skip._replace(virtual=longest[0].virtual(skip.place)) for skip in skips]


def _column(values: array[int]) -> NDArray[np.int64]:
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, dtype=np.int64)


def _check_version(record: dict[str, Any], path: Path) -> None:
    version = record["version"]
    if version not in READABLE_VERSIONS:
        raise DataError(
            f"{path}: this release reads logs of the format versions "
            f"{', '.join(map(str, READABLE_VERSIONS))}, and this one has version "
            f"{shown(version)}: audit it with the release that wrote it"
        )
