"""How is one measurement run? In a process group of its own, with an end, and nothing left behind.

The JSON that the process prints last is the result; where there is none, the end of what it said
is the reason. Memory is watched from outside: the proportional shares of anonymous and shared
pages, so that a page that main and workers share counts once, and the page cache not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
PEERS_PYTHON: Final = Path("benchmarks/.venv-peers/bin/python")
LOOK_EVERY_S: Final = 0.05
MAKER_LIMIT_S: Final = 1800
COUNTED: Final = ("Pss_Anon:", "Pss_Shmem:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a process gave: its result, or why there is none, and the peaks of its memory in MB."""

    result: dict[str, Any] | None
    reason: str
    total_mb: float = 0.0
    worker_mb: float = 0.0


def python(*, is_peer: bool) -> str:
    """The interpreter of a loader."""
    return str(PEERS_PYTHON) if is_peer else sys.executable


def shown(arguments: Sequence[str], *, is_peer: bool) -> str:
    """The command as a reader would type it, from the repository's root."""
    interpreter = str(PEERS_PYTHON) if is_peer else ".venv/bin/python"
    return shlex.join([interpreter, *arguments])


def run(arguments: Sequence[str], *, is_peer: bool, limit_s: float, watch: bool = False) -> Ran:
    """Run a Python module's command line; ends the whole group after it, or at its limit."""
    # files, not pipes: a worker that outlives its parent would hold a pipe's end open
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(  # noqa: S603
            [python(is_peer=is_peer), *arguments],
            cwd=ROOT,
            stdout=output,
            stderr=said,
            start_new_session=True,
        )
        memory = _Memory(process.pid) if watch else None
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return Ran(result=None, reason=f"no result within {limit_s:.0f} s")
        finally:
            if memory:
                memory.stop()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed, complaint = _text_of(output), _text_of(said)
    result = _last_object(printed)
    if result is None or process.returncode:
        return Ran(result=None, reason=complaint.strip().rpartition("\n")[2][-300:])
    peaks = {"total_mb": memory.total_mb, "worker_mb": memory.worker_mb} if memory else {}
    return Ran(result=result, reason="", **peaks)


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def run_to_end(arguments: Sequence[str], *, is_peer: bool) -> str:
    """Run a maker; why it failed, or nothing."""
    command = [python(is_peer=is_peer), *arguments]
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=ROOT, capture_output=True, text=True, timeout=MAKER_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip().rpartition("\n")[2][-300:] if done.returncode else ""


def _last_object(output: str) -> dict[str, Any] | None:
    last = output.strip().rpartition("\n")[2]
    try:
        found = json.loads(last)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class _Memory:
    """Peaks of the memory of a process and its descendants, looked up in a thread."""

    def __init__(self, pid: int) -> None:
        self.total_mb = self.worker_mb = 0.0
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            sizes = {pid: held_mb(pid) for pid in descendants(self._pid)}
            workers = [size for pid, size in sizes.items() if pid != self._pid]
            self.total_mb = max(self.total_mb, sum(sizes.values()))
            self.worker_mb = max(self.worker_mb, max(workers, default=0.0))


def descendants(pid: int) -> list[int]:
    """A process and all that it started; those that end meanwhile are left out."""
    found = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += descendants(int(child))
    return found


def held_mb(pid: int) -> float:
    """A process's share of anonymous and shared pages, in MB; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(COUNTED)) / 1000
