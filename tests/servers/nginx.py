"""nginx as a server of a folder: once with ranges, once without, in folders of its own.

`make test` of a machine without nginx skips what needs it; `.ci/run` installs it where it may.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from tests.servers.processes import HANG_S, kept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.certificates import Certificate

# One process, that can read what its user can; nothing outside the folder is written.
CONFIG: Final = """
daemon off; master_process off; pid {home}/pid; error_log {home}/errors;
events {{ worker_connections 1024; }}
http {{
  access_log off; default_type application/octet-stream; keepalive_timeout 60;
  client_body_temp_path {home}/body; proxy_temp_path {home}/proxy;
  fastcgi_temp_path {home}/fastcgi; uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
  server {{
    listen 127.0.0.1:{port} backlog=1024{tls};
    location /ranges/ {{ alias {folder}/; }}
    location /whole/ {{ alias {folder}/; max_ranges 0; }}
    location / {{ root {folder}; }}
  }}
}}
"""
_ATTEMPTS: Final = 5


def nginx_path() -> str | None:
    """Where nginx is; None for nowhere."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def nginx_server(folder: Path, certificate: Certificate | None = None) -> Iterator[str]:
    """Serve a folder's files below `ranges/` and, without ranges, below `whole/`; give the URL.

    With a certificate it speaks https, and nothing else.
    """
    with TemporaryDirectory(prefix="nginx-") as home:
        process, port = _started(folder, Path(home), certificate)
        try:
            yield f"http{'s' if certificate else ''}://127.0.0.1:{port}"
        finally:
            process.communicate(timeout=HANG_S)


def _started(
    folder: Path, home: Path, certificate: Certificate | None
) -> tuple[subprocess.Popen[bytes], int]:
    tls = ""
    if certificate is not None:
        _, server, key = certificate
        tls = f" ssl; ssl_certificate {server}; ssl_certificate_key {key}"
    for _ in range(_ATTEMPTS):  # another process may take the port that was free
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config = home / "nginx.conf"
        config.write_text(CONFIG.format(home=home, port=port, folder=folder, tls=tls))
        command = [nginx_path() or "nginx", "-c", str(config), "-p", str(home), "-e", "stderr"]
        process = subprocess.Popen(
            kept(*command),
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if _listens(home / "pid", port):
            return process, port
        process.communicate(timeout=HANG_S)
    raise RuntimeError(f"nginx does not start: {(home / 'errors').read_text()}")


def _listens(pid: Path, port: int) -> bool:
    """Wait until it has written its id, which it does once it has the port, or has ended."""
    deadline = time.monotonic() + HANG_S / _ATTEMPTS
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return pid.exists()
        time.sleep(0.01)
    return False
