"""The server at the far end of the link: nginx, 50 ms of latency a request, and a meter.

    python -m benchmarks.link.server ADDRESS FOLDER HOME LATENCY

serves FOLDER at http://ADDRESS:9000/, by path and range, which is all that a client of S3 asks for
when it reads (nginx does not look at signatures). Before each answer nginx asks the fault proxy of
the tests for leave, which that gives after LATENCY seconds: so each request waits, and bodies take
no way through Python. HOME/access has a line for every request, HOME/meter the bytes that have left
the host, twenty times a second. It says `ready`, and goes on until it is ended.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.servers.nginx import nginx_path
from tests.servers.plan import Plan
from tests.servers.proxy import FaultProxy

PORT: Final = 9000
GATE_PORT: Final = 9001
LEAVE_PORT: Final = 9002
METER_EVERY_S: Final = 0.05
START_LIMIT_S: Final = 20
CONFIG: Final = """
daemon off; master_process off; pid {home}/pid; error_log {home}/errors;
events {{ worker_connections 1024; }}
http {{
  log_format line '$msec $request_time $request_method $request_uri $status $body_bytes_sent';
  access_log {home}/access line;
  sendfile on; sendfile_max_chunk 512k; tcp_nopush on; keepalive_timeout 60;
  default_type application/octet-stream;
  client_body_temp_path {home}/body; proxy_temp_path {home}/proxy;
  fastcgi_temp_path {home}/fastcgi; uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
  server {{
    listen {address}:{port} backlog=1024;
    location / {{ root {folder}; auth_request /-wait; }}
    location = /-wait {{
      internal; proxy_pass http://127.0.0.1:{gate}/; proxy_method GET;
      proxy_pass_request_body off; proxy_pass_request_headers off;
    }}
  }}
  server {{ listen 127.0.0.1:{leave}; access_log off; location / {{ return 204; }} }}
}}
"""


def serve(address: str, folder: Path, home: Path, latency_s: float) -> None:
    """Serve and count until this process is ended."""
    config = home / "nginx.conf"
    config.write_text(
        CONFIG.format(
            home=home,
            folder=folder,
            address=address,
            port=PORT,
            gate=GATE_PORT,
            leave=LEAVE_PORT,
        )
    )
    nginx = nginx_path()
    if nginx is None:
        raise SystemExit("nginx is not installed: apt-get install nginx-light")
    plan = Plan(latency_s=latency_s)
    command = [nginx, "-c", str(config), "-p", str(home), "-e", "stderr"]
    with FaultProxy(f"127.0.0.1:{LEAVE_PORT}", plan, port=GATE_PORT) as gate:
        process = subprocess.Popen(command)  # noqa: S603 - it ends with the host
        _wait_for(address)
        print("ready", flush=True)
        with (home / "meter").open("w") as meter:
            while process.poll() is None:
                meter.write(f"{time.monotonic():.4f} {sent_bytes()}\n")
                meter.flush()
                gate.forget()  # nginx counts
                time.sleep(METER_EVERY_S)


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((address, PORT), timeout=1):
            return
        time.sleep(0.02)
    raise SystemExit("nginx does not start")


def sent_bytes() -> int:
    """What has left this host by its cable, with all headers."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    (line,) = (line for line in lines if line.strip().startswith("eth0:"))
    return int(line.partition(":")[2].split()[8])


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
