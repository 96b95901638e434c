"""What becomes of input that is no sample?

An error, or a line in a list that lies beside the manifest in the end. The list grows in the
input's order, and its size is in the journal, so that an interrupted write takes it up again where
its shards end.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Literal, TypeAlias

from shardloader.errors import SampleError, UsageError
from shardloader.writing.shard_file import naming

if TYPE_CHECKING:
    from pathlib import Path

    from shardloader.writing.sources.base import Refused

OnError: TypeAlias = Literal["raise", "skip"]


class Refusals:
    """The list, in a file that is open for appending."""

    def __init__(
        self, path: Path, on_error: OnError, *, size_bytes: int = 0, count: int = 0
    ) -> None:
        self.path = path
        self._on_error = on_error
        self.count = count
        self.first = ""  # of those that were added here: what is said of it
        with naming(path):
            path.touch()
            if path.stat().st_size < size_bytes:
                raise UsageError(
                    f"{path}: the list of what an interrupted write had refused is gone or cut: "
                    "overwrite=True begins anew"
                )
            os.truncate(path, size_bytes)
            self._file = path.open("ab")

    @property
    def size_bytes(self) -> int:
        """How long the list is."""
        return self._file.tell()

    def add(self, refused: Refused) -> None:
        """Append to the list; raises SampleError instead where that was asked for."""
        if self._on_error == "raise":
            raise SampleError(f"{refused.reason} ({refused.where})")
        with naming(self.path):
            self._file.write((json.dumps(refused._asdict()) + "\n").encode("ascii"))
        self.first = self.first or f"{refused.reason} ({refused.where})"
        self.count += 1

    def sync(self) -> None:
        """Bring it to disk."""
        with naming(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def contents(self) -> bytes:
        """Give all of it."""
        self.sync()
        with naming(self.path):
            return self.path.read_bytes()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
