"""How does a server of the standard library give an answer that has a length?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from http.server import BaseHTTPRequestHandler


def answer(
    handler: BaseHTTPRequestHandler,
    status: int,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    cut: int | None = None,
) -> None:
    """Send it, to HEAD without its body; cut: so much of the body, and no more."""
    handler.send_response(status)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body[:cut])
