"""How does a server run in a process that ends with whoever started it?"""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

HANG_S: Final = 60
ROOT: Final = Path(__file__).parents[2]


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
