"""A store over HTTP, of the standard library, with ranges, etags, and faults where a test says so.

In a thread of the test (`HttpStore`), or as a process: `python -m tests.reading.http_store FOLDER`
serves the files of a folder and prints its URL.
"""

from __future__ import annotations

import hashlib
import re
import socket
import struct
import sys
import threading
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

from tests.servers.answering import answer

if TYPE_CHECKING:
    from collections.abc import Callable

HTML = b"<!DOCTYPE html><html><body>Please log in" + b" " * 600 + b"</body></html>"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HttpStore

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        store = self.server
        path = unquote(self.path.partition("?")[0]).lstrip("/")
        store.asked[self.command, path] += 1
        store.headers_seen.append(dict(self.headers))
        faults = store.faults[self.command, path]
        fault = faults.pop(0) if faults else ""
        content = store.content(path)
        status, _, seconds = fault.partition(" ")
        if status.isdigit():
            headers = {"Retry-After": seconds} if seconds else {}
            answer(self, int(status), headers)
        elif fault == "html":
            answer(self, 200, body=HTML)
        elif content is None:
            answer(self, 404, body=b"no such file")
        else:
            self._send_file(path, content, fault)

    def _send_file(self, path: str, content: bytes, fault: str) -> None:
        store = self.server
        etag = store.etags.get(path) or hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{etag}"'}
        match = _RANGE.match(self.headers.get("Range", "")) if store.has_ranges else None
        status = 200
        if match:
            start, stop = int(match[1]), min(int(match[2] or 1 << 60) + 1, len(content))
            if start >= len(content):
                answer(self, 416)
                return
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
            status, content = 206, content[start:stop]
        if fault == "short":
            content = content[: len(content) // 2]
        cut = len(content) // 2 if fault in {"reset", "stall"} else len(content)
        answer(self, status, headers, content, cut=cut)
        if fault == "stall":
            store.end_of_stall.wait(30)
        if fault in {"reset", "stall"}:
            self.wfile.flush()
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            self.connection.close()


class HttpStore(ThreadingHTTPServer):
    """A server of files on loopback.

    faults: by method and path, what the next requests meet: a status (and seconds for
    Retry-After, as "429 7"), "html" (a page with 200),
    "reset" and "stall" (in mid-body), "short" (a body shorter than asked for, ended well). asked:
    how often each method and path was asked for. etags: by path, in place of the content's hash.
    """

    daemon_threads = True

    def __init__(self, content: Callable[[str], bytes | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = content
        self.faults: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self.asked: Counter[tuple[str, str]] = Counter()
        self.headers_seen: list[dict[str, str]] = []
        self.etags: dict[str, str] = {}
        self.has_ranges = True
        self.end_of_stall = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Serve the files of a folder."""

        def content(path: str) -> bytes | None:
            file = folder / path
            return file.read_bytes() if file.is_file() else None

        return cls(content)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no trouble."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_of_stall.set()
        self.shutdown()
        self._thread.join(10)
        self.server_close()


if __name__ == "__main__":
    with HttpStore.of(Path(sys.argv[1])) as served:
        print(served.url, flush=True)
        sys.stdin.read()  # until whoever started it has ended
