"""A server of Google's cloud storage: the gcp-storage-emulator, in a process of its own.

    python -m tests.servers.gcs

prints its URL and goes on until its input ends. It takes any credentials. What the emulator leaves
out of the JSON API is added here: writes on the condition that there is no such object, empty
objects, and the answer to a range that begins behind an object's end.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import HTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.servers.processes import serve, started
from tests.servers.putting import ask, put_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Gcs:
    """A server that runs. url: its endpoint."""

    def __init__(self, url: str) -> None:
        self.url = url

    def options(self, url: str | None = None) -> dict[str, Any]:
        """Options of a file system that reads it, there or behind another URL."""
        return {"endpoint_url": url or self.url, "token": "anon"}

    def put(self, bucket: str, name: str = "", data: bytes = b"") -> None:
        """Make a bucket, or put an object into one."""
        if name:
            target = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}"
            ask(self.url, "POST", target, data, {"Content-Type": "application/octet-stream"})
        else:
            target, named = "/storage/v1/b?project=testing", json.dumps({"name": bucket}).encode()
            ask(self.url, "POST", target, named, {"Content-Type": "application/json"})

    def put_folder(self, bucket: str, folder: Path, below: str = "corpus") -> str:
        """Put a folder's files into a bucket, which is made; give their URL."""
        self.put(bucket)
        put_files(partial(self.put, bucket), folder, below)
        return f"gs://{bucket}/{below}"


@contextmanager
def gcs_server() -> Iterator[Gcs]:
    """Run a server of this user's own on a free port."""
    with started(sys.executable, "-m", "tests.servers.gcs") as url:
        yield Gcs(url)


def _complete(objects: Any, not_found: type[Exception]) -> None:
    """Give the emulator's handlers what they lack; before its table of them is made."""
    insert, download = objects.insert, objects.download

    def has(storage: Any, bucket: str, name: str) -> bool:
        try:
            storage.get_file_obj(bucket, name)
        except not_found:
            return False
        return True

    def inserted(request: Any, response: Any, storage: Any, **more: Any) -> None:
        if request.data is None:
            request._data = b""  # an empty object
        is_new = request.query.get("ifGenerationMatch") == ["0"]
        name = (request.query.get("name") or [""])[0] or request.data["meta"]["name"]
        if is_new and has(storage, request.params["bucket_name"], name):
            response.status = HTTPStatus.PRECONDITION_FAILED
            return
        insert(request, response, storage, **more)

    def downloaded(request: Any, response: Any, storage: Any, **more: Any) -> None:
        place = request.params["bucket_name"], request.params["object_id"]
        start = (request.get_header("range", None) or "").removeprefix("bytes=").partition("-")[0]
        if start and has(storage, *place) and int(start) >= len(storage.get_file(*place)):
            response.status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
            return
        download(request, response, storage, **more)

    objects.insert, objects.download = inserted, downloaded


class _Server(HTTPServer):
    request_queue_size = 128  # one request is answered at a time


def main() -> None:
    """Run as a process."""
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import objects
    from gcp_storage_emulator.storage import Storage

    _complete(objects, NotFound)
    from gcp_storage_emulator.server import RequestHandler

    logging.disable()
    with _Server(("127.0.0.1", 0), partial(RequestHandler, Storage(use_memory_fs=True))) as server:
        serve(server)


if __name__ == "__main__":
    main()
