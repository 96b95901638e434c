"""How are logs of samples read, and what do many of them hold together?

`planning.sample_log` says what stands in a line; here the lines of all files become columns.
"""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shardloader.errors import DataError
from shardloader.order.epoch import MAX_POSITIONS
from shardloader.order.integers import checked, shown
from shardloader.planning.sample_log import LOG_VERSION, Attempt, Place, Start, rank_and_launch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

# What 3 adds is slots that were bad or refused, and 4 datasets that grew.
READABLE_VERSIONS: Final = (2, 3, LOG_VERSION)
TELL_BYTES = 1 << 20  # progress is told about so often

_NO_RECORD = (ValueError, KeyError, TypeError, OverflowError, RecursionError)


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
        named = rank_and_launch(path.name)
        if named is not None:
            rank, launch = named
            self._ranks[launch].add(rank)
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
