"""Stores for tests of the cache, giving what they are told when they are told; and looks at it."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shardloader.errors import WorldError
from shardloader.reading.cache import name_of
from tests.shards import tar_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE_BYTES = 64 << 10
FORK = multiprocessing.get_context("fork")
MB = 1 << 20


@dataclass
class FakeOrigin:
    """A shard in memory. `asked` counts how often its bytes were asked for.

    before: called before each piece with its number. tar_bytes: what is known of its size.
    """

    content: bytes
    identity: str = "fake://a/000.tar"
    versions: list[str] = field(default_factory=lambda: ["1"])  # the last one stays
    before: Callable[[int], None] | None = None
    asked: int = 0
    tar_bytes: int | None = None

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


def tar_of(number, size=MB):
    """A tar of about so many bytes that can't be taken for another."""
    return tar_bytes([(f"{number:03d}.bin", bytes((number % 256,)) * size)])


def origin_of(number, size=MB, **options):
    return FakeOrigin(tar_of(number, size), identity=f"fake://{number}.tar", **options)


def files(cache, suffix=".cached"):
    return sorted(path.name for path in Path(cache.folder).glob(f"*{suffix}"))


def total_bytes(cache):
    return sum(path.stat().st_size for path in Path(cache.folder).iterdir())


def is_tidy(cache):
    """Whether nothing but whole tars and the two folder's locks is left."""
    names = {path.name for path in Path(cache.folder).iterdir()}
    return {n for n in names if not n.endswith(".cached")} <= {"space.lock", "alone.lock"}


def is_cached(cache, number):
    return (Path(cache.folder) / f"{name_of(f'fake://{number}.tar', '1')}.cached").exists()


def in_child(function, *arguments, patience_s=60):
    """Run in a forked process; give what it returned, or its exception."""
    receiver, sender = FORK.Pipe(duplex=False)

    def run():
        try:
            sender.send(function(*arguments))
        except Exception as error:
            sender.send(error)

    process = FORK.Process(target=run)
    process.start()
    if not receiver.poll(patience_s):
        process.kill()
        raise AssertionError("the child does not answer")
    answer = receiver.recv()
    process.join(20)
    return answer
