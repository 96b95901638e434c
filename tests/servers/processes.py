"""How does a server run in a process that ends with whoever started it?"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.server import HTTPServer

HANG_S: Final = 60
ROOT: Final = Path(__file__).parents[2]
# It ends when its input does: with whoever started it, also one that was killed.
_KEPT: Final = 'exec 3<&0; "$@" </dev/null & server=$!; cat <&3 >/dev/null; kill $server; wait'


def kept(*command: str) -> list[str]:
    """The command line of a server that knows nothing of its input, so that it ends with that."""
    return ["sh", "-c", _KEPT, "sh", *command]


@contextmanager
def started(*command: str) -> Iterator[str]:
    """Run a command that prints its URL first and ends with its input; give the URL."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"{' '.join(command)} ended at once")
            yield url
        finally:
            try:
                process.communicate(timeout=HANG_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def serve(server: HTTPServer) -> None:
    """Be the process that `started` runs: print a server's URL, and answer until the input ends."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()
    server.shutdown()
