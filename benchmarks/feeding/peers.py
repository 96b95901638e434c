"""Is the peers' virtual environment there? Installs it from `peers.txt`, once.

The file names every package with its version, and says why they are installed without looking at
what each asks for. What can't be installed here is left out, with its reason; the loader that needs
it then fails its check.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.feeding.processes import PEERS_PYTHON, ROOT

PINNED: Final = Path(__file__).with_name("peers.txt")
INSTALL_LIMIT_S: Final = 1800


def ensure() -> dict[str, str]:
    """Install what is missing; returns why each package that is left out is left out."""
    folder = ROOT / PEERS_PYTHON.parent.parent
    stamp = folder / "installed.json"
    pinned = PINNED.read_text()
    if stamp.is_file():
        known = json.loads(stamp.read_text())
        if known["pinned"] == pinned:
            return dict(known["left_out"])
    _run([sys.executable, "-m", "venv", str(folder)])
    left_out = {}
    if _install("--requirement", str(PINNED)):  # one that fails must not keep out the others
        left_out = {line: reason for line in asked_for(pinned) if (reason := _install(line))}
    stamp.write_text(json.dumps({"pinned": pinned, "left_out": left_out}, indent=1))
    return left_out


def asked_for(pinned: str) -> list[str]:
    """The packages of a requirements file, in its order."""
    lines = [line.strip() for line in pinned.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _install(*what: str) -> str:
    """Why pip could not install it; empty if it could."""
    pip = [str(ROOT / PEERS_PYTHON), "-m", "pip", "install", "--quiet", "--no-deps"]
    return _run([*pip, "--disable-pip-version-check", *what])


def _run(command: list[str]) -> str:
    """Why a command failed; empty if it did not."""
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not installed within {INSTALL_LIMIT_S} s"
    if done.returncode == 0:
        return ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (errors or done.stderr.splitlines() or ["no reason given"])[-1]
