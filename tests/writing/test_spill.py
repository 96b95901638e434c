from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from shardloader.writing.spill import Spill
from shardloader.writing.write import write_shards
from tests.writing.inputs import cut_small, jsonl

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_runs_are_on_the_disk_before_they_count_as_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(monkeypatch)
    (tmp_path / "in").mkdir()
    synced: set[int] = set()
    complete = Spill.complete
    seen: list[set[int]] = []

    def looking(spill: Spill, facts: Any) -> None:
        seen.append({path.stat().st_ino for path in spill.folder.glob("*.run")})
        assert seen[0] <= synced
        complete(spill, facts)

    monkeypatch.setattr(os, "fsync", lambda handle: synced.add(os.fstat(handle).st_ino))
    monkeypatch.setattr(Spill, "complete", looking)
    write_shards(jsonl(tmp_path / "in"), tmp_path / "out", shuffle=1)
    assert seen
    assert len(seen[0]) > 2
