"""How does a store behave behind a bad network? A proxy that injects faults, and counts.

In a thread of a test (`FaultProxy`), or as a process:

    python -m tests.servers.proxy --to 127.0.0.1:9000 --latency 0.05 --plan plan.json

prints its URL, goes on until its input ends, and then prints what it counted, as JSON. Meanwhile
`GET /-/counts` tells the same, and `POST /-/plan` gives it another plan, as JSON (`Plan.to_json`).

It speaks HTTP/1.1 to one server, and changes nothing of a request. Requests that met a fault are
counted as all others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from tests.servers.messages import Head, read_body_of_unknown_length, read_head
from tests.servers.plan import Dealer, Fault, Plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PAGE: Final = b"<!DOCTYPE html><html><body>Please log in" + b" " * 600 + b"</body></html>"
EXPIRED: Final = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>ExpiredToken</Code>"
    b"<Message>The provided token has expired.</Message></Error>"
)
CHUNK: Final = 64 << 10
CONTROL: Final = "/-/"
_HARMLESS: Final = ("slow", "changed")
_GONE: Final = (ConnectionError, asyncio.IncompleteReadError, TimeoutError)


class Seen(NamedTuple):
    """One request with its headers, its answer, and the bytes of the body that were sent."""

    method: str
    path: str
    span: str
    status: int
    sent_bytes: int
    fault: str
    headers: Head

    @property
    def is_whole(self) -> bool:
        """Whether it was answered, and with all that the server has given."""
        return self.status in {200, 206} and self.fault in {"", *_HARMLESS}


class _BrokenOff(Exception):  # noqa: N818
    """The connection ends here, as a fault would have it."""


class FaultProxy:
    """A proxy in front of one server, in a thread of its own; a context manager.

    to: "host:port" or a URL of the server. most_at_once: requests that were open at one time.
    """

    def __init__(self, to: str, plan: Plan | None = None, *, port: int = 0) -> None:
        parts = urlsplit(to if "://" in to else f"http://{to}")
        self._server = parts.hostname or "127.0.0.1", parts.port or 80
        self._dealer = Dealer(plan or Plan())
        self._port = port
        self._exchanges: list[_Exchange] = []
        self.most_at_once = 0
        self._open: set[_Exchange] = set()
        self._line_free_at = 0.0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def seen(self) -> list[Seen]:
        """All requests, in the order in which they came; whoever has an answer finds it here."""
        return [exchange.seen() for exchange in list(self._exchanges)]

    @property
    def met(self) -> list[int]:
        """By fault of the plan, how many requests have met it."""
        return list(self._dealer.met)

    def follow(self, plan: Plan) -> None:
        """Go on by another plan."""
        self._dealer = Dealer(plan)

    def forget(self) -> None:
        """Count from here on."""
        self._exchanges, self._open, self.most_at_once = [], set(), 0

    def counts(self) -> dict[str, Any]:
        """What was asked for and what was sent: in all, and by method and path."""
        seen = self.seen
        return {
            "requests": len(seen),
            "bytes": sum(each.sent_bytes for each in seen),
            "most_at_once": self.most_at_once,
            "faults": Counter(each.fault for each in seen if each.fault),
            "faults_by_path": Counter(
                f"{each.fault} {each.method} {each.path}" for each in seen if each.fault
            ),
            "met": self.met,
            "whole": Counter(f"{each.method} {each.path}" for each in seen if each.is_whole),
            "by_path": Counter(f"{each.method} {each.path}" for each in seen),
        }

    def asked(self, method: str, path: str) -> int:
        """How often a path was asked for."""
        return sum(each.method == method and each.path == path for each in self.seen)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(30) or not self._port:
            raise RuntimeError("the proxy does not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(30)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._listen())
        finally:
            self._ready.set()
            self._loop.close()

    async def _listen(self) -> None:
        self._stopping = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._serve(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(
            connected, "127.0.0.1", self._port, limit=1 << 18, backlog=512
        )
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        writer.transport.set_write_buffer_limits(0)  # so that drain() means sent
        upstream = _Upstream(self._server)
        try:
            while head := await read_head(reader):
                if not await self._answer(head, reader, writer, upstream):
                    break
        except (*_GONE, _BrokenOff):
            pass
        finally:
            upstream.close()
            with suppress(*_GONE):
                writer.close()

    async def _answer(
        self,
        head: Head,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: _Upstream,
    ) -> bool:
        if head.get("Expect"):
            head.put("Expect", None)
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(head.length or 0)
        method, target, _ = head.first.split(" ", 2)
        if target.startswith(CONTROL):
            return await self._control(target, body, writer)
        exchange = _Exchange(self, head, method, target)
        self._exchanges.append(exchange)
        self._open.add(exchange)
        self.most_at_once = max(self.most_at_once, len(self._open))
        try:
            await asyncio.sleep(self._dealer.plan.latency_s)
            return await exchange.run(body, reader, writer, upstream)
        finally:
            self.ends(exchange)

    async def _control(self, target: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        if target == f"{CONTROL}plan":
            self.follow(Plan.from_json(body))
        data = json.dumps(self.counts()).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        await writer.drain()
        return True

    def deal(self, method: str, path: str, span: str) -> Fault | None:
        """The fault that a request meets."""
        return self._dealer.fault_of(method, path, span)

    def ends(self, exchange: _Exchange) -> None:
        """Called before the last bytes of an answer go out: then the client may ask anew."""
        self._open.discard(exchange)

    async def wait_for_line(self, num_bytes: int) -> None:
        """Wait until so many bytes more have gone over the line, which all connections share."""
        rate = self._dealer.plan.bytes_per_s
        if rate is None:
            return
        now = time.monotonic()
        self._line_free_at = max(now, self._line_free_at) + num_bytes / rate
        await asyncio.sleep(self._line_free_at - now)


class _Upstream:
    """One connection to the server, made when it is needed."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, head: Head, body: bytes) -> tuple[Head, asyncio.StreamReader]:
        """Send a request; give the head of its answer, and what its body comes from."""
        for _ in range(2):  # a connection that was kept may have been closed meanwhile
            is_new = self._streams is None
            try:
                reader, writer = self._streams = self._streams or await asyncio.open_connection(
                    *self._server, limit=1 << 18
                )
                writer.write(head.to_bytes() + body)
                await writer.drain()
                answer = await read_head(reader)
                if answer is not None:
                    return answer, reader
            except ConnectionError:
                if is_new:
                    raise
            self.close()
        raise ConnectionResetError

    def close(self) -> None:
        """Let go."""
        if self._streams is not None:
            with suppress(*_GONE):
                self._streams[1].close()
        self._streams = None


class _Exchange:
    """One request and its answer, which may meet a fault."""

    def __init__(self, proxy: FaultProxy, head: Head, method: str, target: str) -> None:
        self._proxy = proxy
        self._head = head
        self._method = method
        self._path = unquote(target.partition("?")[0]).lstrip("/")
        self._span = head.get("Range") or head.get("x-ms-range")  # as Azure's clients call it
        self._fault = proxy.deal(method, self._path, self._span)
        self._status = 0
        self._sent = 0

    @property
    def _kind(self) -> str:
        return self._fault.kind if self._fault else ""

    def seen(self) -> Seen:
        """What came of it."""
        return Seen(
            self._method, self._path, self._span, self._status, self._sent, self._kind, self._head
        )

    async def run(
        self,
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: _Upstream,
    ) -> bool:
        """Answer; whether the connection goes on."""
        kind = self._kind
        if self._fault and kind in {"status", "page", "expired"}:
            await self._send_own(self._fault, writer)
            return self._head.keeps_alive
        if self._fault and kind == "slow":
            await asyncio.sleep(self._fault.seconds)
        answer, source = await upstream.ask(self._head, body)
        goes_on = answer.keeps_alive
        self._status = int(answer.first.split(" ", 2)[1])
        if kind == "changed":
            answer.put("ETag", f'"changed-{self._proxy.met}"')
        if self._method == "HEAD" or self._status in {204, 304}:
            self._proxy.ends(self)
            writer.write(answer.to_bytes())
            await writer.drain()
        else:
            await self._send(answer, await _body(answer, source), reader, writer)
        if kind == "short" or not goes_on:
            upstream.close()  # what is left of the body is still to come on it
        return goes_on and self._head.keeps_alive

    async def _send_own(self, fault: Fault, writer: asyncio.StreamWriter) -> None:
        self._status = {"page": 200, "expired": 400}.get(fault.kind, fault.status)
        data = {"page": PAGE, "expired": EXPIRED}.get(fault.kind, b"")
        kind = "application/xml" if fault.kind == "expired" else "text/html"
        head = Head(f"HTTP/1.1 {self._status} Fault", [("Content-Type", kind)])
        head.put("Content-Length", str(len(data)))
        if fault.kind == "status" and fault.retry_after is not None:
            head.put("Retry-After", str(fault.retry_after))
        body = b"" if self._method == "HEAD" else data
        self._sent = len(body)
        self._proxy.ends(self)
        writer.write(head.to_bytes() + body)
        await writer.drain()

    async def _send(
        self,
        answer: Head,
        pieces: AsyncIterator[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        kind, length = self._kind, answer.length or 0
        cut = int(length * self._fault.at) if self._fault else length
        if kind == "short":
            answer.put("Content-Length", str(cut))
        stop = cut if kind in {"reset", "cut", "short", "stall"} else length
        if not stop:
            self._proxy.ends(self)
        writer.write(answer.to_bytes())
        async for piece in pieces:
            at = self._sent
            sent = piece[: stop - at]
            if kind == "damage" and at <= cut < at + len(sent):
                sent = sent[: cut - at] + bytes([sent[cut - at] ^ 1]) + sent[cut - at + 1 :]
            await self._proxy.wait_for_line(len(sent))
            self._sent += len(sent)
            if self._sent >= stop:
                self._proxy.ends(self)
            writer.write(sent)
            await writer.drain()
            if self._sent >= stop:
                break
        await writer.drain()
        if kind == "stall":
            await reader.read()  # until the other side gives up
        if kind == "reset":
            linger = struct.pack("ii", 1, 0)
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        if kind in {"reset", "cut", "stall"}:
            raise _BrokenOff


async def _body(answer: Head, source: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The pieces of an answer's body, whose length its head says then."""
    if answer.length is not None:
        return _from(source, answer.length)
    data = await read_body_of_unknown_length(answer, source)
    answer.put("Transfer-Encoding", None)
    answer.put("Content-Length", str(len(data)))
    return _split(data)


async def _from(reader: asyncio.StreamReader, length: int) -> AsyncIterator[bytes]:
    while length > 0:
        piece = await reader.read(min(length, CHUNK))
        if not piece:
            raise _BrokenOff  # as the server did
        length -= len(piece)
        yield piece


async def _split(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]


def main() -> None:
    """Run as a process."""
    parser = argparse.ArgumentParser(description="A proxy that injects faults, and counts.")
    parser.add_argument("--to", required=True, help="host:port of the server")
    parser.add_argument("--port", type=int, default=0, help="where to listen; 0: a free port")
    parser.add_argument("--plan", type=Path, help="a file with a plan, as JSON")
    parser.add_argument("--latency", type=float, help="seconds before each answer")
    parser.add_argument("--bytes-per-s", type=float, help="of all connections together")
    parser.add_argument("--seed", type=int, help="which requests meet what has a chance")
    options = parser.parse_args()
    read = json.loads(options.plan.read_text()) if options.plan else {}
    given = {
        "latency_s": options.latency,
        "bytes_per_s": options.bytes_per_s,
        "seed": options.seed,
    }
    read |= {name: value for name, value in given.items() if value is not None}
    with FaultProxy(options.to, Plan.from_json(json.dumps(read)), port=options.port) as proxy:
        print(proxy.url, flush=True)
        sys.stdin.read()  # until whoever started it has ended
        print(json.dumps(proxy.counts()), flush=True)


if __name__ == "__main__":
    main()
