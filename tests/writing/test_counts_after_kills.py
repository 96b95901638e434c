"""What a write tells of itself is true also where an earlier one was killed before it."""

from __future__ import annotations

import json
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from shardloader.errors import UsageError, WorldError
from shardloader.reading.source import UNFINISHED_NAME
from shardloader.writing.destination import Destination
from shardloader.writing.place import WORK_NAME
from shardloader.writing.selection import Selection
from shardloader.writing.sources.jsonl_files import JsonLines
from shardloader.writing.write import write_shards
from tests.writing.inputs import CHOICE, cut_small
from tests.writing.reading_back import visible
from tests.writing.test_kills import OPTIONS, ended, in_a_child, killed_write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_what_was_not_selected_is_counted_once_wherever_the_write_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    cut_small(monkeypatch)
    rows = [{"id": f"{'ab'[n % 2]}{n:03d}", "text": "x" * 90, "label": n} for n in range(60)]
    lines = [json.dumps(row) if n % 7 else "not json" for n, row in enumerate(rows)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    source = JsonLines([str(tmp_path / "a.jsonl")], choice=CHOICE)
    options = {**options, "max_samples": 6, "on_error": "skip"}
    options["selection"] = Selection(patterns=("a*",))

    def told() -> tuple[int, int, int]:
        written = write_shards(source, folder, **options)
        return written.num_left_out, written.num_refused, written.manifest.num_samples

    folder = tmp_path / "out"
    whole = told()
    assert whole == (26, 9, 25)
    bytes_of_whole = visible(folder)
    shutil.rmtree(folder)
    for step in range(2, 1000, 3):
        ended(in_a_child(partial(killed_write, step, source, folder, **options)))
        if (folder / "manifest.json").exists() and not (folder / UNFINISHED_NAME).exists():
            break
        assert told() == whole, step
        assert visible(folder) == bytes_of_whole
        shutil.rmtree(folder)
    assert step > 10


def test_a_list_of_refused_samples_that_went_away_is_not_filled_with_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(monkeypatch)
    rows = [json.dumps({"id": f"k{n}", "text": "x", "label": n}) for n in range(9)]
    (tmp_path / "a.jsonl").write_text("\n".join(["not json", *rows]))
    source = JsonLines([str(tmp_path / "a.jsonl")], choice=CHOICE)
    manifests = Destination.publish_manifest
    monkeypatch.setattr(Destination, "publish_manifest", _disk_is_full)
    with pytest.raises(WorldError):
        write_shards(source, tmp_path / "out", max_samples=2, on_error="skip")
    monkeypatch.setattr(Destination, "publish_manifest", manifests)
    shutil.rmtree(tmp_path / "out" / WORK_NAME)
    with pytest.raises(UsageError, match="these are gone"):
        write_shards(source, tmp_path / "out", max_samples=2, on_error="skip")


def _disk_is_full(destination: Destination, manifest: object) -> None:
    raise WorldError("the disk is full")
