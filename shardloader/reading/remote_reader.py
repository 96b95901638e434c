"""How is a remote file read by whoever wants an open file, with `seek`?

Each read is a request of `remote`, with its retries and its words for what fails.
"""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from shardloader.reading.remote import RemoteFile

_BUFFER_BYTES: Final = 4 << 20  # asked for at least


def open_remote(file: RemoteFile) -> IO[bytes]:
    """Open a remote file; one whose size the store does not tell is read into memory."""
    size = file.status().size
    if size is None:
        return io.BytesIO(file.whole())
    return cast("IO[bytes]", io.BufferedReader(_Reader(file, size), _BUFFER_BYTES))


class _Reader(io.RawIOBase):
    def __init__(self, file: RemoteFile, size: int) -> None:
        self._file = file
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        stop = min(self._at + len(view), self._size)
        if stop <= self._at:
            return 0
        data = self._file.read(self._at, stop)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
