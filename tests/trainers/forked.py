"""Ranks of one script, forked from a process that has imported it: launch after launch.

A trainer takes seconds to import, and a chain of launches would spend most of its time on that. A
rank is a process of its own all the same, with the environment that torchrun gives. Launches come
on stdin and their ends go to stdout, a JSON object a line.

python forked.py
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any


def rank_process(launch: dict[str, Any], rank: int, main: Any) -> int:
    """Start a rank; its process."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.environ |= {  # noqa: TID251 - a rank's own
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(launch["ranks"]),
            "LOCAL_WORLD_SIZE": str(launch["ranks"]),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(launch["port"]),
            "TORCHELASTIC_RUN_ID": "forked",
        }
        sys.argv[1:] = launch["arguments"]
        printed = os.open(launch["printed"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(processes: list[int]) -> list[int]:
    """How the ranks ended; when one fails the others are killed, as by the loss of a host."""
    codes: dict[int, int] = {}
    while len(codes) < len(processes):
        process, status = os.wait()
        if process not in processes:
            continue
        codes[process] = os.waitstatus_to_exitcode(status)
        if codes[process] and len(codes) < len(processes):
            for other in set(processes) - set(codes):
                os.kill(other, signal.SIGKILL)
    return [codes[process] for process in processes]


def main() -> None:
    """One launch a line."""
    for line in sys.stdin:
        launch = json.loads(line)
        module = importlib.import_module(f"tests.trainers.{launch['script']}")
        processes = [rank_process(launch, rank, module.main) for rank in range(launch["ranks"])]
        print(json.dumps(ended(processes)), flush=True)


if __name__ == "__main__":
    main()
