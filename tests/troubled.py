"""Corpora in which some samples are bad, and what skipping is to make of them.

A sample is told apart by its number, as in tests.corpora: key f"{i:06d}", text f"text {i} ...",
class i % 10; a bad one has a class that is no number.
"""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.corpora import _index, _kept_folder, content
from tests.shards import tar_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def shard_of(numbers: Iterable[int], bad: Iterable[int]) -> bytes:
    spoilt = set(bad)
    members = []
    for number in numbers:
        members.append((f"{number:06d}.txt", f"text {number} ".encode().ljust(20, b".")))
        members.append((f"{number:06d}.cls", b"bad" if number in spoilt else b"%d" % (number % 10)))
    return tar_bytes(members)


def write_troubled(folder: Path, counts: Sequence[int], bad: Iterable[int]) -> Path:
    first, spoilt = 0, set(bad)
    for shard, count in enumerate(counts):
        data = shard_of(range(first, first + count), spoilt)
        (folder / f"shard-{shard:04d}.tar").write_bytes(data)
        first += count
    _index(folder)
    return folder


@lru_cache(maxsize=4096)
def troubled_corpus(counts: tuple[int, ...], bad: frozenset[int]) -> Path:
    """The corpus of these counts and bad samples, which nobody may change."""
    return write_troubled(Path(tempfile.mkdtemp(dir=_kept_folder())), counts, bad)


class RefuseSome:
    """A transform that refuses the samples of some numbers; pickles."""

    def __init__(self, refused: Iterable[int]) -> None:
        self.refused = frozenset(refused)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any] | None:
        return None if int(sample["__key__"]) in self.refused else sample


class FailAtSome(RefuseSome):
    """A transform that raises for the samples of some numbers; pickles."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["__key__"]) in self.refused:
            raise ZeroDivisionError("it divides by the refused")
        return sample


def plan_of(loader: Any) -> list[tuple[list[int], list[bool]]]:
    """What a loader's rank should receive next: index and planned validity of each batch."""
    progress = loader._progress
    schedule = progress.schedule()
    from shardloader.dataset.batches import rows

    return [
        (row.index.tolist(), row.valid.tolist()) for row in rows(schedule, loader.topology.rank)
    ]


def check_filled(batch: Any, plan: tuple[list[int], list[bool]], faulty: frozenset[int]) -> None:
    """Whether a batch is its plan with the faulty samples' slots filled and invalid."""
    index, valid, _ = content(batch)
    planned, planned_valid = plan
    good = [number for number in planned if number not in faulty]
    assert len(index) == len(planned)
    turn = 0
    for at, number in enumerate(planned):
        if number in faulty:
            assert not valid[at]
            if good:
                assert index[at] == good[turn % len(good)]
            assert index[at] not in faulty
            turn += 1
        else:
            assert (index[at], valid[at]) == (number, planned_valid[at])
