"""How many members a second does a core index, by columns and member by member?

    python benchmarks/indexing.py [--members 200000] [--rounds 5] [--json]

Shards of small members in a temporary folder: one with plain headers, one as webdataset's writer
makes it (a PAX header before each member). They are warm in the page cache, put there once by a
reader and once by the writer, which makes a difference: what was written in small pieces lies in
small pages, and mapping those costs more. Counted is CPU time of the whole way from opening the
map to the bytes of the index file; medians of the rounds, all ways in turn. "the headers alone"
is the limit: numpy copies every member's headers out of the map, told where they are, and looks at
none. Machines and their load differ more than releases: compare the parts of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardloader.format.index import SampleIndex
from shardloader.format.ordinary import index_columns
from shardloader.format.tar import scan
from shardloader.format.tar_header import BLOCK_BYTES, END_OF_ARCHIVE, member_header, padding
from shardloader.reading.store import map_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

TEXT, LABEL = b"x" * 100, b"7"
FIELDS = 2
GATHERED = 1024  # headers at a time, which a core's cache holds


def write_plain(path: Path, num_members: int) -> None:
    with path.open("wb") as file:
        for number in range(num_members // FIELDS):
            for field, data in (("txt", TEXT), ("cls", LABEL)):
                file.write(member_header(f"{number:08d}.{field}", len(data)))
                file.write(data + bytes(padding(len(data))))
        file.write(END_OF_ARCHIVE)


def write_by_webdataset(path: Path, num_members: int) -> None:
    import webdataset

    with webdataset.TarWriter(str(path)) as writer:
        for number in range(num_members // FIELDS):
            writer.write({"__key__": f"{number:08d}", "txt": TEXT, "cls": LABEL})


SHARDS: dict[str, Callable[[Path, int], None]] = {
    "plain": write_plain,
    "webdataset": write_by_webdataset,
}


def read_anew(path: Path) -> None:
    """Let the page cache hold the file as a reader puts it there."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.read(1 << 22):
            pass


def _by_columns(path: Path) -> bytes:
    return SampleIndex.build(map_file(path), shard=path.name)[0].to_bytes()


def _carefully(path: Path) -> bytes:
    return SampleIndex.build_carefully(map_file(path), shard=path.name)[0].to_bytes()


def _bare_gather(path: Path, places: NDArray[np.int64]) -> None:
    blocks = np.frombuffer(map_file(path), dtype="<u8").reshape(-1, BLOCK_BYTES // 8)
    space = np.empty((GATHERED, blocks.shape[1]), dtype=np.uint64)
    for start in range(0, len(places), GATHERED):
        chunk = places[start : start + GATHERED]
        np.take(blocks, chunk, axis=0, out=space[: len(chunk)], mode="clip")


def _header_blocks(path: Path) -> NDArray[np.int64]:
    """Where the blocks of headers are, those of PAX headers too, but not their records."""
    members = list(scan(map_file(path), shard=path.name))
    files = {member.data_offset // BLOCK_BYTES - 1 for member in members}
    extensions = {member.header_offset // BLOCK_BYTES for member in members}
    return np.array(sorted(files | extensions), dtype=np.int64)


def _cpu_seconds(way: Callable[[Path], object], path: Path) -> float:
    start = time.process_time()
    way(path)
    return time.process_time() - start


def measure(path: Path, num_members: int, rounds: int) -> dict[str, float]:
    """Members a CPU second each way, in turn, and ratios; the fastest round, too."""
    assert index_columns(map_file(path)) is not None
    assert _by_columns(path) == _carefully(path)
    ways: dict[str, Callable[[Path], object]] = {
        "by columns": _by_columns,
        "carefully": _carefully,
        "the headers alone": partial(_bare_gather, places=_header_blocks(path)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            seconds[name].append(_cpu_seconds(way, path))
    figures = {name: num_members / statistics.median(taken) for name, taken in seconds.items()}
    figures["by columns / carefully"] = figures["by columns"] / figures["carefully"]
    figures["by columns / the headers alone"] = figures["by columns"] / figures["the headers alone"]
    figures["by columns, best"] = num_members / min(seconds["by columns"])
    return figures


def report(*, num_members: int = 200_000, rounds: int = 5) -> dict[str, Any]:
    """Members a CPU second of every kind of shard."""
    num_members -= num_members % FIELDS
    figures: dict[str, Any] = {"members": num_members, "rounds": rounds}
    with tempfile.TemporaryDirectory() as folder:
        for kind, write in SHARDS.items():
            path = Path(folder) / f"{kind}.tar"
            write(path, num_members)
            figures[f"{kind}, as written"] = measure(path, num_members, rounds)
            read_anew(path)
            figures[f"{kind}, as read"] = measure(path, num_members, rounds)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = report(num_members=arguments.members, rounds=arguments.rounds)
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for kind, values in figures.items():
        if isinstance(values, dict):
            shown = ", ".join(
                f"{name} {value:,.2f}" if "/" in name else f"{name} {value:,.0f}"
                for name, value in values.items()
            )
            print(f"{kind}, members a CPU second: {shown}")


if __name__ == "__main__":
    main()
