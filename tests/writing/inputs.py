"""The same samples as every kind of source, and parts so small that there are many."""

from __future__ import annotations

import csv
import json
import os
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet
import zstandard

from shardloader.writing import chunks, job
from shardloader.writing.sources import arrow_files, folder_tree, jsonl_files, tar_files
from shardloader.writing.sources.arrow_files import ArrowRows
from shardloader.writing.sources.csv_files import CsvRows
from shardloader.writing.sources.folder_tree import FolderTree
from shardloader.writing.sources.jsonl_files import JsonLines
from shardloader.writing.sources.mapping import parse_choice
from shardloader.writing.sources.opening import open_source
from shardloader.writing.sources.tar_files import TarShards
from tests.shards import tar_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from shardloader.writing.sources.base import Source

NUM_SAMPLES = 60
CHOICE = parse_choice("id", ["txt=text", "cls=label"])


def key(number: int) -> str:
    return f"k{number:04d}"


def text(number: int) -> str:
    return f"text {number} é " * (number % 7 + 1)


EXPECTED = [
    (key(number), {"cls": b"%d" % (number % 5), "txt": text(number).encode()})
    for number in range(NUM_SAMPLES)
]


def rows(start: int = 0, stop: int = NUM_SAMPLES) -> list[dict[str, Any]]:
    return [
        {"id": key(number), "text": text(number), "label": number % 5}
        for number in range(start, stop)
    ]


def json_lines(start: int = 0, stop: int = NUM_SAMPLES) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows(start, stop)).encode()


def tar(start: int = 0, stop: int = NUM_SAMPLES) -> bytes:
    return tar_bytes(
        (f"{name}.{field}", data)
        for name, fields in EXPECTED[start:stop]
        for field, data in fields.items()
    )


def folder(place: Path) -> Source:
    for name, fields in EXPECTED:
        for field, data in fields.items():
            (place / f"{name}.{field}").write_bytes(data)
    return FolderTree(place)


def jsonl(place: Path) -> Source:
    (place / "a.jsonl").write_bytes(json_lines(0, 40))
    (place / "b.jsonl").write_bytes(json_lines(40))
    return JsonLines([str(place)], choice=CHOICE)


def packed_jsonl(place: Path) -> Source:
    packed = [zstandard.compress(json_lines(0, 25)), zstandard.compress(json_lines(25, 40))]
    (place / "a.jsonl.zst").write_bytes(b"".join(packed))
    (place / "b.jsonl").write_bytes(json_lines(40))
    return JsonLines([f"{place}/a.jsonl.zst", f"{place}/b.jsonl"], choice=CHOICE)


def remote_jsonl(place: Path) -> Source:
    url = f"memory://{place}/rows.jsonl"
    with fsspec.open(url, "wb") as file:
        file.write(json_lines())
    return JsonLines([url], choice=CHOICE)


def csv_rows(place: Path) -> Source:
    for name, start, stop in (("a.csv", 0, 30), ("b.csv", 30, NUM_SAMPLES)):
        with (place / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["id", "text", "label"])
            writer.writeheader()
            writer.writerows(rows(start, stop))
    return CsvRows([str(place)], choice=CHOICE)


def parquet(place: Path) -> Source:
    for name, start, stop in (("a.parquet", 0, 33), ("b.parquet", 33, NUM_SAMPLES)):
        table = pa.Table.from_pylist(rows(start, stop))
        pa.parquet.write_table(table, place / name, row_group_size=9)
    return ArrowRows([str(place)], choice=CHOICE)


def saved(place: Path) -> Source:
    """A folder as `datasets.Dataset.save_to_disk` leaves it, its files in an order of their own."""
    names = ["data-00001-of-00002.arrow", "data-00000-of-00002.arrow"]
    for name, (start, stop) in zip(names, [(0, 33), (33, NUM_SAMPLES)], strict=True):
        table = pa.Table.from_pylist(rows(start, stop))
        with (
            pa.OSFile(str(place / name), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as out,
        ):
            out.write_table(table, max_chunksize=8)
    state = {"_data_files": [{"filename": name} for name in names]}
    (place / "state.json").write_text(json.dumps(state))
    (place / "dataset_info.json").write_text("{}")
    return ArrowRows([str(place)], choice=CHOICE)


def arrow(place: Path) -> Source:
    table = pa.Table.from_pylist(rows())
    with (
        pa.OSFile(str(place / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as out,
    ):
        out.write_table(table, max_chunksize=8)
    return ArrowRows([str(place)], choice=CHOICE)


def shards(place: Path) -> Source:
    (place / "00000.tar").write_bytes(tar(0, 35))
    (place / "00000_stats.json").write_text("{}")
    (place / "00001.tar").write_bytes(tar(35))
    return TarShards([str(place)])


def packed_shards(place: Path) -> Source:
    (place / "0.tar.zst").write_bytes(zstandard.compress(tar(0, 35)))
    (place / "1.tar").write_bytes(tar(35))
    return TarShards([str(place)])


def remote_shards(place: Path) -> Source:
    url = f"memory://{place}/shards/0.tar"
    with fsspec.open(url, "wb") as file:
        file.write(tar())
    return TarShards([f"memory://{place}/shards"])


def stored(place: Path) -> str:
    """Copy what lies in a folder to a store, and give its URL there."""
    url = f"memory://{place}/copy"
    client = fsspec.filesystem("memory")
    for path in place.rglob("*"):
        if path.is_file():
            client.pipe_file(f"{url}/{path.relative_to(place)}", path.read_bytes())
    return url


def remote_folder(place: Path) -> Source:
    folder(place)
    return open_source([stored(place)])


def remote_saved(place: Path) -> Source:
    saved(place)
    return open_source([stored(place)], choice=CHOICE)


def remote_parquet(place: Path) -> Source:
    parquet(place)
    return open_source([stored(place)], choice=CHOICE)


MAKERS: dict[str, Callable[[Path], Source]] = {
    "folder": folder,
    "jsonl": jsonl,
    "packed jsonl": packed_jsonl,
    "remote jsonl": remote_jsonl,
    "csv": csv_rows,
    "parquet": parquet,
    "saved": saved,
    "arrow": arrow,
    "shards": shards,
    "packed shards": packed_shards,
    "remote shards": remote_shards,
    "remote folder": remote_folder,
    "remote saved": remote_saved,
    "remote parquet": remote_parquet,
}


def cut_small(patch: pytest.MonkeyPatch) -> None:
    """Make parts, chunks and workers as if a few kilobytes were very much."""
    for module in (arrow_files, folder_tree, jsonl_files, tar_files):
        patch.setattr(module, "PART_BYTES", 1000)
    for module in (folder_tree, tar_files):
        patch.setattr(module, "PART_SAMPLES", 7)
    patch.setattr(jsonl_files, "_BLOCK_BYTES", 300)
    patch.setattr(arrow_files, "_BATCH_BYTES", 300)
    patch.setattr(chunks.Recipe, "__init__", _small_recipe)
    patch.setattr(job, "SMALL_BYTES", 0)
    patch.setattr(os, "fsync", lambda handle: None)  # nobody pulls the plug meanwhile


_recipe = chunks.Recipe.__init__


def _small_recipe(recipe: chunks.Recipe, **options: Any) -> None:
    _recipe(recipe, **{**options, "chunk_bytes": 5000})
