"""Stores for tests of the cache: they give what they are told, when they are told."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardloader.errors import WorldError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PIECE_BYTES = 64 << 10


@dataclass
class FakeOrigin:
    """A shard in memory. `asked` counts how often its bytes were asked for.

    before: called before each piece with its number.
    """

    content: bytes
    identity: str = "fake://a/000.tar"
    versions: list[str] = field(default_factory=lambda: ["1"])  # the last one stays
    before: Callable[[int], None] | None = None
    asked: int = 0

    @property
    def name(self) -> str:
        return self.identity

    def version(self) -> str:
        return self.versions.pop(0) if len(self.versions) > 1 else self.versions[0]

    def pieces(self) -> Iterator[bytes]:
        self.asked += 1
        for number, start in enumerate(range(0, len(self.content), PIECE_BYTES)):
            if self.before is not None:
                self.before(number)
            yield self.content[start : start + PIECE_BYTES]


def fails_at(number: int) -> Callable[[int], None]:
    """A store that is lost before a piece."""

    def fail(piece: int) -> None:
        if piece == number:
            raise WorldError("the connection was lost")

    return fail


def tells_and_waits(folder: Path, at: int) -> Callable[[int], None]:
    """Say by a file who writes, and wait before a piece until the file `go` is there."""

    def wait(piece: int) -> None:
        if piece == at:
            (folder / f"writing-{os.getpid()}").touch()
            wait_for(folder / "go")

    return wait


def wait_for(path: Path, patience_s: float = 30.0) -> None:
    """Wait until a file is there."""
    deadline = time.monotonic() + patience_s
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.002)
