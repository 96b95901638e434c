"""Which bytes of a stream come next, and how many have been taken?

Both decompressors read through this. Nothing is gathered before it has arrived, whatever length a
header declares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardloader.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable

_EVERYTHING = 2**63


class Feed:
    """Bytes that arrive in pieces of any length; `offset` is the byte of the file that comes next.

    offset: where in the file they begin.
    """

    def __init__(
        self, pieces: Iterable[bytes | memoryview], *, shard: str, offset: int = 0
    ) -> None:
        self.shard = shard
        self.offset = offset
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def some(self, most: int = _EVERYTHING) -> memoryview:
        """Take what is at hand, `most` bytes of it; nothing at the end."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return self._rest
            self._rest = memoryview(piece).cast("B")
        taken, self._rest = self._rest[:most], self._rest[most:]
        self.offset += len(taken)
        return taken

    def take(self, count: int) -> bytes:
        """Take `count` bytes; fewer at the end."""
        taken = bytearray()
        while len(taken) < count and (piece := self.some(count - len(taken))):
            taken += piece
        return bytes(taken)

    def exactly(self, count: int, *, what: str) -> bytes:
        """Take `count` bytes, which are `what`; raises ShardError "truncated" where they end."""
        start = self.offset
        taken = self.take(count)
        if len(taken) < count:
            raise self.truncated(
                start,
                f"{what} should lie in the {count} bytes from byte {start} on, and the file ends "
                f"after {len(taken)} of them",
            )
        return taken

    def skip(self, count: int, *, what: str) -> None:
        """Pass over `count` bytes, as `exactly` does, and keep none of them."""
        start, left = self.offset, count
        while left and (piece := self.some(left)):
            left -= len(piece)
        if left:
            raise self.truncated(
                start,
                f"{what} should have {count} bytes from byte {start} on, and the file ends "
                f"after {count - left} of them",
            )

    def give_back(self, taken: bytes | memoryview) -> None:
        """Undo the taking of the last bytes, which are these."""
        self.offset -= len(taken)
        self._rest = (
            memoryview(bytes(taken) + bytes(self._rest)) if self._rest else (memoryview(taken))
        )

    def truncated(self, at: int, problem: str) -> ShardError:
        """Give the error for a stream that ends too early."""
        return ShardError(
            f"{self.shard}: truncated: the compressed file was cut: {problem}; fetch it anew",
            kind="truncated",
            offset=at,
        )

    def damaged(self, at: int, problem: str) -> ShardError:
        """Give the error for bytes that are no sound stream."""
        return ShardError(
            f"{self.shard}: damaged at byte {at} of the compressed file: {problem}; fetch or write "
            "it anew",
            kind="bad_compression",
            offset=at,
        )

    def mismatch(self, at: int, problem: str) -> ShardError:
        """Give the error for content that is not what its checksum was made of."""
        return ShardError(
            f"{self.shard}: checksum mismatch at byte {at} of the compressed file: {problem}: its "
            "content was changed; fetch or write it anew",
            kind="checksum_mismatch",
            offset=at,
        )

    def unsupported(self, at: int, problem: str) -> ShardError:
        """Give the error for a sound stream that is not read."""
        return ShardError(
            f"{self.shard}: not read: at byte {at} of the compressed file {problem}",
            kind="unsupported_compression",
            offset=at,
        )
