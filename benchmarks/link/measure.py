"""One loader, once, in a process of its own at the near end of the link.

    python -m benchmarks.link.measure LOADER PLACE

PLACE is a file of JSON: the names of `Place`, `what` and `state`. `pass` reads the whole corpus and
leaves the loader's state in the middle in the file `state`; `resumed` loads that, and ends with the
first batch. Prints one JSON object: seconds of the clock that all processes have, samples, digest.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.feeding.measure import versions_of
from benchmarks.feeding.processes import descendants
from benchmarks.link.loaders import Opened, Place, find


def read(opened: Opened, *, middle: int, state: Path) -> dict[str, Any]:
    """Read everything; what came, and when."""
    first_at, samples, total, is_saved = 0.0, 0, 0, False
    for batch in opened.batches:
        first_at = first_at or time.monotonic()
        samples += len(batch["digests"])
        total += sum(batch["digests"])
        if samples >= middle and not is_saved:
            is_saved = True
            state.write_text(json.dumps(opened.save()))
    return {
        "first_at": first_at,
        "done_at": time.monotonic(),
        "samples": samples,
        "total": total % 2**64,
    }


def cpu_seconds() -> float:
    """What this process and all that it started have used, those that have ended as well."""
    ticks = 0
    for pid in descendants(os.getpid()):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run the command line."""
    loader, told = find(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    what, middle, state = told.pop("what"), told.pop("middle"), Path(told.pop("state"))
    told["cache"], told["names"] = Path(told["cache"]), tuple(told["names"])
    if loader.packages:
        import torch  # noqa: F401 - it takes seconds, and all loaders but the limit need it
    if what == "resumed":
        told["resume"] = json.loads(state.read_text())
    opened_at = time.monotonic()
    opened = loader.opens(Place(**told))
    if what == "resumed":
        next(iter(opened.batches))
        found: dict[str, Any] = {"first_at": time.monotonic()}
    else:
        found = read(opened, middle=middle, state=state)
    found |= {"opened_at": opened_at, "cpu_s": cpu_seconds()}
    print("\n" + json.dumps({**found, "versions": versions_of(loader.packages)}), flush=True)
    # libraries with threads of their own may hang when they are torn down; the host ends the rest
    os._exit(0)


if __name__ == "__main__":
    main()
