"""What workers of the stall tests run: importable, so that spawn finds it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0


@dataclass(frozen=True)
class HangsAt:
    """A transform that hangs at one sample until a file is there."""

    key: str
    go: str

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while sample["__key__"] == self.key and not Path(self.go).exists():
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.go} did not come")
            time.sleep(0.005)
        return sample
