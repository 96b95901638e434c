"""How far has a training run come? Read from the sample logs that its ranks write."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The newest launch: its number, its ranks, and positions consumed over all epochs."""

    launch: int
    ranks: int
    place: int


def progress(logs: Path, num_samples: int) -> Progress:
    """What rank 0 of the newest launch wrote last; of no ranks where nothing was written."""
    found = {path: _launch(path.name) for path in logs.glob("rank-00000-of-*.jsonl")}
    if not found:
        return Progress(launch=0, ranks=0, place=0)
    newest = max(found, key=found.__getitem__)
    launch, ranks = found[newest]
    place = 0
    lines = newest.read_bytes().rstrip(b"\n").split(b"\n")
    with contextlib.suppress(ValueError, KeyError):  # an empty file, or half a line
        last = json.loads(lines[-1])
        place = int(last["epoch"]) * num_samples + int(last["consumed"])
    return Progress(launch=launch, ranks=ranks, place=place)


def _launch(name: str) -> tuple[int, int]:
    """Launch and ranks, from rank-00000-of-00002.LAUNCH.jsonl."""
    ranks, launch, _ = name.removeprefix("rank-00000-of-").split(".")
    return int(launch), int(ranks)
