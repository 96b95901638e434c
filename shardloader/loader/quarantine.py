"""Which samples were bad, written down: one file a rank and life of a process.

A line is one JSON object and one unbuffered write. A process begins a file of its own, at its first
bad sample, so nothing is ever written behind a line that a kill has torn; `read` leaves such a
line out.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardloader.dataset.skipping import REFUSED
from shardloader.errors import DataError, WorldError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardloader.dataset.skipping import Fault


class Quarantine:
    """Appends one rank's bad samples to a file of its own in a folder; each once an epoch.

    Raises WorldError where the folder or the file can't be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._file = -1
        self._owner = 0
        self._epoch = -1
        self._written: set[int] = set()  # samples of the epoch

    def take(
        self,
        faults: Sequence[Fault],
        *,
        epoch: int,
        rank: int,
        world_size: int,
        names: Sequence[str],
    ) -> None:
        """Write down the bad ones of some faults; names: those of the shards."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._written.clear()
        for fault in faults:
            if fault.kind != REFUSED and fault.index not in self._written:
                self._append(_record(fault, epoch, names), rank, world_size)
                self._written.add(fault.index)

    def _append(self, record: dict[str, Any], rank: int, world_size: int) -> None:
        data = (json.dumps(record, separators=(",", ":")) + "\n").encode()
        try:
            if self._file < 0 or self._owner != os.getpid():
                self._file, self._owner = self._begun(rank, world_size), os.getpid()
            written = os.write(self._file, data)
        except OSError as error:
            raise WorldError(f"can't write the quarantine in {self._folder}: {error}") from error
        if written < len(data):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)  # no half a line
            raise WorldError(f"the disk of the quarantine {self._folder} is full")

    def _begun(self, rank: int, world_size: int) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        # Replicas of a rank, and processes of two nodes with one clock, have files of their own.
        life = f"{time.time_ns()}-{secrets.token_hex(4)}"
        path = self._folder / f"bad-rank-{rank:05d}-of-{world_size:05d}.{life}.jsonl"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(path, flags, 0o644)

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0 and self._owner == os.getpid():
            os.close(self._file)


def _record(fault: Fault, epoch: int, names: Sequence[str]) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "pass": fault.number,
        "shard": names[fault.shard],
        "key": fault.key,
        "index": fault.index,
        "field": fault.field,
        "offset": fault.offset,
        "kind": fault.kind,
        "message": fault.message,
    }


def read(folder: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The records of all quarantine files in a folder, file by file.

    A last line without its end is what a kill leaves, and is left out. Raises DataError for any
    other line that is no record.
    """
    for path in sorted(Path(folder).glob("bad-rank-*.jsonl")):
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    continue
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise DataError(
                        f"{path}, line {number}: a line is one record of a quarantine, and this "
                        f"one is not ({error}): {line[:80]!r}"
                    ) from error
                yield record
