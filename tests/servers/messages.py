"""What does an HTTP/1.1 message look like on the wire?

Just as much as a proxy needs: a head, and how long the body is.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

END_OF_HEAD: Final = b"\r\n\r\n"


@dataclass(slots=True)
class Head:
    """A message's first line and its headers, as they came."""

    first: str
    headers: list[tuple[str, str]]

    def get(self, name: str, default: str = "") -> str:
        """The first value of a header."""
        return next((v for n, v in self.headers if n.lower() == name.lower()), default)

    def put(self, name: str, value: str | None) -> None:
        """Give a header another value, or none."""
        self.headers = [each for each in self.headers if each[0].lower() != name.lower()]
        if value is not None:
            self.headers.append((name, value))

    @property
    def length(self) -> int | None:
        """What Content-Length says."""
        told = self.get("Content-Length")
        return int(told) if told else None

    @property
    def keeps_alive(self) -> bool:
        """Whether another message may follow on the connection."""
        told = self.get("Connection").lower()
        return told != "close" and ("HTTP/1.0" not in self.first or told == "keep-alive")

    def to_bytes(self) -> bytes:
        """As it goes over the wire."""
        lines = [self.first, *(f"{name}: {value}" for name, value in self.headers)]
        return "\r\n".join(lines).encode("latin-1") + END_OF_HEAD


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next message's head; None where the other side has closed."""
    try:
        data = await reader.readuntil(END_OF_HEAD)
    except asyncio.IncompleteReadError:
        return None
    first, *lines = data.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Head(first, [(name, value.strip()) for name, _, value in pairs])


async def read_body_of_unknown_length(head: Head, reader: asyncio.StreamReader) -> bytes:
    """A body in chunks, or up to where the connection ends."""
    if head.get("Transfer-Encoding").lower() != "chunked":
        return await reader.read()
    body = bytearray()
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while (await reader.readline()).strip():
        pass  # trailers
    return bytes(body)
