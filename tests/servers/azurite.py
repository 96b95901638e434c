"""Azurite, Microsoft's own server of Azure's blobs for tests, which npm installs.

It lies in `.azurite` of the checkout, where `npm install` puts it as below and `.ci/run` does so by
itself, or on the path. `make test` of a machine without it skips what needs it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from base64 import b64encode
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.servers.processes import HANG_S, ROOT, kept
from tests.servers.putting import put_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ACCOUNT: Final = "testing"
KEY: Final = b64encode(b"t3stingSecret").decode()
INSTALL: Final = "npm install --prefix .azurite --no-save azurite@3.35.0"
_COMMAND: Final = "azurite-blob"
_LISTENS: Final = re.compile(r"listens on (http://\S+)")


def azurite_path() -> str | None:
    """Where the command is; None for nowhere, or without the Node.js that runs it."""
    if shutil.which("node") is None:
        return None
    return shutil.which(_COMMAND, path=str(ROOT / ".azurite/node_modules/.bin")) or shutil.which(
        _COMMAND
    )


class Azurite:
    """A server that runs. url: its endpoint."""

    def __init__(self, url: str) -> None:
        from azure.storage.blob import BlobServiceClient

        self.url = url
        self._client = BlobServiceClient.from_connection_string(self._connection(url))

    def _connection(self, url: str) -> str:
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint={url}/{ACCOUNT};"
        )

    def options(self, url: str | None = None) -> dict[str, Any]:
        """Options of a file system that reads it, there or behind another URL."""
        return {"connection_string": self._connection(url or self.url)}

    def put(
        self,
        container: str,
        name: str = "",
        data: bytes = b"",
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Make a container, or put a blob into one."""
        if name:
            blob = self._client.get_blob_client(container, name)
            blob.upload_blob(data, overwrite=True, metadata=metadata)
        else:
            self._client.create_container(container)

    def put_folder(self, container: str, folder: Path, below: str = "corpus") -> str:
        """Put a folder's files into a container, which is made; give their URL."""
        self.put(container)
        put_files(partial(self.put, container), folder, below)
        return f"az://{container}/{below}"

    def close(self) -> None:
        """Close the connections to it."""
        self._client.close()


@contextmanager
def azurite_server() -> Iterator[Azurite]:
    """Run a server on a free port, which keeps what it is given in memory."""
    command = [
        *(azurite_path() or _COMMAND, "--inMemoryPersistence", "--disableTelemetry", "--silent"),
        *("--blobHost", "127.0.0.1", "--blobPort", "0", "--skipApiVersionCheck"),
    ]
    with (
        tempfile.TemporaryDirectory(prefix="azurite-") as home,
        subprocess.Popen(
            kept("env", f"AZURITE_ACCOUNTS={ACCOUNT}:{KEY}", *command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=home,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            found = filter(None, map(_LISTENS.search, process.stdout))
            server = Azurite(next(found)[1])
            yield server
            server.close()
        finally:
            process.communicate(timeout=HANG_S)
