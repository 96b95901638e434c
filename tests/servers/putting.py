"""How are files put into a server of any kind?"""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def put_files(put: Callable[[str, bytes], None], folder: Path, below: str) -> None:
    """Put a folder's files, each by its path, below another."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            put(f"{below}/{file.relative_to(folder)}", file.read_bytes())


def ask(
    url: str, method: str, target: str, data: bytes, headers: Mapping[str, str] | None = None
) -> None:
    """Make one request; RuntimeError, with what was answered, where it is refused."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request(method, target, data, headers or {})
    answer = connection.getresponse()
    words = answer.read()
    connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {target}: {answer.status} {words[:300]!r}")
