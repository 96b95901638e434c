"""An S3 server: moto's, in a process of its own, which ends with whoever started it.

    python -m tests.servers.s3

prints its URL and goes on until its input ends. It takes any credentials.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.servers.processes import started
from tests.servers.putting import ask, put_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# By whom, which moto asks for where an object is overwritten; it does not look at the signature.
_SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
}


class S3:
    """A server that runs. url: its endpoint."""

    def __init__(self, url: str) -> None:
        self.url = url

    def options(self, url: str | None = None) -> dict[str, Any]:
        """Options of a file system that reads it, there or behind another URL."""
        return {"endpoint_url": url or self.url, "key": "testing", "secret": "t3stingSecret"}

    def put(self, bucket: str, name: str = "", data: bytes = b"") -> None:
        """Make a bucket, or put an object into one."""
        target = f"/{bucket}/{quote(name)}" if name else f"/{bucket}"
        ask(self.url, "PUT", target, data, _SIGNED)

    def delete(self, bucket: str, name: str) -> None:
        """Remove an object."""
        ask(self.url, "DELETE", f"/{bucket}/{quote(name)}", b"", _SIGNED)

    def put_folder(self, bucket: str, folder: Path, below: str = "corpus") -> str:
        """Put a folder's files into a bucket, which is made; give their URL."""
        self.put(bucket)
        put_files(partial(self.put, bucket), folder, below)
        return f"s3://{bucket}/{below}"


@contextmanager
def s3_server() -> Iterator[S3]:
    """Run a server of this user's own on a free port."""
    with started(sys.executable, "-m", "tests.servers.s3") as url:
        yield S3(url)


def main() -> None:
    """Run as a process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
