"""The object store of the scenario: moto's S3 server on a host, filled with a folder.

    python -m tools.multinode.store ADDRESS PORT SHARDS

Serves s3://corpus/ until it is ended, and says `ready` once the folder's files are there. Its log
names the client and the object of every request.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Final

PORT: Final = 9000
BUCKET: Final = "corpus"
KEYS: Final = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
# werkzeug colours some lines, so that codes may stand before GET
FETCHED: Final = re.compile(rf"^(\S+) .*GET /{BUCKET}/(\S+\.tar)[? ].* (\d+) -$", re.MULTILINE)


def serve(address: str, port: int, shards: Path) -> None:
    """Serve the folder's files."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address=address, port=port)
    server.start()
    client = boto3.client("s3", endpoint_url=f"http://{address}:{port}", region_name="us-east-1")
    client.create_bucket(Bucket=BUCKET)
    for path in sorted(shards.iterdir()):
        client.upload_file(str(path), BUCKET, path.name)
    print("ready", flush=True)
    threading.Event().wait()


def fetched(log: str) -> dict[str, Counter[str]]:
    """Client address -> object -> successful requests for it, as the server's log has them."""
    found: dict[str, Counter[str]] = {}
    for address, name, status in FETCHED.findall(log):
        if status.startswith("2"):
            found.setdefault(address, Counter())[name] += 1
    return found


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
