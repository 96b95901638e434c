"""Fuzz every target: executions and findings of each.

    python -m tests.fuzz [--seconds 60] [--jobs 2] [--json] [TARGET ...]

`--seconds` is for each target, which then begins with another random seed each time. Without it
each makes the runs of RUNS from one seed, some 15 seconds: the same inputs for the same code. An
input that breaks a rule is kept in `seeds/<target>/`, where the tests try it again; mend the fault,
and commit it. Exit 1 if there was one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.fuzz.kept import SEEDS

RUNS = {
    "tar": 40_000,
    "gnu_tar": 6_000,
    "columns": 45_000,
    "seek_table": 180_000,
    "index": 300_000,
    "manifest": 500_000,
    "checkpoint": 50_000,
    "decode": 200_000,
}
SEED = 1
MOST_S = 240  # for the runs, on a busy machine
_EXECUTED = re.compile(r"^stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)
_COVERED = re.compile(r"cov: (\d+)")
START_S = 120  # what a process may take besides: imports on a busy machine


def fuzzed(name: str, seconds: int | None) -> dict[str, Any]:
    """Run one target in a process of its own; keep what it finds."""
    with tempfile.TemporaryDirectory(prefix="shardloader-fuzz-") as folder:
        command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.one", name, f"{folder}/corpus"]
        how = [f"-runs={RUNS[name]}", f"-seed={SEED}"]
        if seconds is not None:
            how = [f"-max_total_time={seconds}"]
        done = subprocess.run(
            [*command, *how, f"-artifact_prefix={folder}/found-"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=(MOST_S if seconds is None else seconds) + START_S,
            check=False,
        )
        found = sorted(Path(folder).glob("found-*"))
        for path in found:
            (SEEDS / name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, SEEDS / name / path.name.rpartition("-")[2][:16])
    # atheris writes what was raised to stdout, libFuzzer the rest to stderr
    told = f"{done.stdout[-3000:]}\n{done.stderr[-600:]}\nexit {done.returncode}\n"
    executed, covered = _EXECUTED.search(done.stderr), _COVERED.findall(done.stderr)
    return {
        "target": name,
        "executions": int(executed[1]) if executed else 0,
        "lines_and_branches": int(covered[-1]) if covered else 0,
        "findings": len(found),
        "is_sound": done.returncode == 0 and executed is not None,
        "told": "" if done.returncode == 0 else told,
    }


def main() -> int:
    """Run the targets, some at a time."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(RUNS))
    parser.add_argument("--seconds", type=int, help="for each target")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="at a time")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    names = options.targets or list(RUNS)
    if unknown := set(names) - set(RUNS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(RUNS)}")
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(fuzzed, names, [options.seconds] * len(names)))
    if options.json:
        print(json.dumps(results))
    else:
        print(f"{'target':<12}{'executions':>12}{'covered':>9}{'findings':>10}")
        for result in results:
            print(
                f"{result['target']:<12}{result['executions']:>12,}"
                f"{result['lines_and_branches']:>9}{result['findings']:>10}"
            )
            print(result["told"], end="", file=sys.stderr)
    return 0 if all(result["is_sound"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
