"""How well are training steps fed? Under torchrun one loader is measured, alone all of them.

    torchrun --standalone --nproc-per-node 2 benchmarks/feed.py [--loader shardloader]
    python benchmarks/feed.py [--small] [--rounds 1] [--only K-10ms,MDS]

Each rank reads a corpus, copies each batch to its device (shardloader by its own `device=`),
computes (on a GPU by multiplying, without one by sleeping, as `training/profiles.py` has it) and
all-reduces gradients; NCCL on GPUs, gloo without. Under torchrun, on one host or many, rank 0
prints a JSON object; the corpora have to be there (`python -m tools.corpora T`), at the same path
on all hosts. Alone, the corpora and the peers' virtual environment are made, torchrun is started
for each loader in turn, and feed.json, feed.md and feed.png are written to benchmarks/results.
`--only` takes profiles and parts of loaders' names.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if __name__ == "__main__":  # by path, as torchrun is mostly given it
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.feeding import peers
from benchmarks.feeding.machine import machine
from benchmarks.feeding.processes import run, run_to_end
from benchmarks.feeding.registry import find
from benchmarks.training.profiles import PROFILES, profile_of

if TYPE_CHECKING:
    from collections.abc import Sequence

LOADERS: Final = ("shardloader", "webdataset", "LitData", "MDS")
SMALL: Final = 20
START_S: Final = 240.0  # imports, workers and slow loaders' first batches, on top of what is timed


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loader", default="shardloader", choices=LOADERS, help="under torchrun")
    parser.add_argument("--only", default="", help="profiles, and parts of loaders' names")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2, help="where torchrun is started here")
    parser.add_argument("--small", action="store_true", help=f"{SMALL} times fewer samples, 1 s")
    parser.add_argument("--divide", type=int, help="so many times fewer samples")
    parser.add_argument("--no-peers", action="store_true", help="only what .venv has")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/.work"))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args(arguments)
    options.divide = options.divide or (SMALL if options.small else 1)
    options.seconds = min(1.0, options.seconds) if options.small else options.seconds
    words = [word for word in options.only.split(",") if word]
    known = {profile.name for profile in PROFILES}
    options.profiles = [word for word in words if word in known] or [p.name for p in PROFILES]
    options.parts = [word.lower() for word in words if word not in known]
    return options


def chosen(options: argparse.Namespace) -> list[str]:
    """The loaders that are measured; shardloader always is."""
    return [
        name
        for name in LOADERS
        if name == LOADERS[0]
        or (
            not (options.no_peers and find(name).is_peer)
            and (not options.parts or any(part in name.lower() for part in options.parts))
        )
    ]


def made(options: argparse.Namespace, names: Sequence[str]) -> dict[str, str]:
    """Make the corpora in all forms; loader -> why its form could not be made."""
    failed: dict[str, str] = {}
    corpora = dict.fromkeys(profile_of(name).corpus for name in options.profiles)
    for name in names:  # the first has the tars that the others are made of
        loader = find(name)
        for corpus in corpora:
            say(f"making {loader.form} of {corpus}")
            arguments = ["-m", "tools.corpora", corpus, "--form", loader.form]
            arguments += ["--divide", str(options.divide), "--work", str(options.work)]
            if reason := run_to_end(arguments, is_peer=loader.is_peer):
                failed[name] = f"its form could not be made: {reason}"
    return failed


def say(what: str) -> None:
    """Tell somebody who waits what is being done."""
    print(what, file=sys.stderr, flush=True)


def command(name: str, options: argparse.Namespace) -> list[str]:
    """The arguments of Python that measure one loader."""
    return [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)),
        *("benchmarks/feed.py", "--loader", name, "--only", ",".join(options.profiles)),
        *("--seconds", f"{options.seconds:g}", "--divide", str(options.divide)),
        *("--work", str(options.work.resolve())),
    ]


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all loaders, write the three files, and return what the JSON holds."""
    from benchmarks.training.tables import draw, markdown, rows

    about: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/feed.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "left_out": {} if options.no_peers else peers.ensure(),
        "ranks": options.ranks,
        "rounds": options.rounds,
    }
    names = chosen(options)
    failed = made(options, names)
    limit_s = START_S + len(options.profiles) * (2 * options.seconds + 10)
    runs = []
    for number in range(options.rounds):
        for name in names:
            if name in failed:
                continue
            say(f"round {number + 1}: {name}")
            ran = run(command(name, options), is_peer=find(name).is_peer, limit_s=limit_s)
            if ran.result is None:
                failed[name] = ran.reason
            else:
                runs.append(ran.result)
    about["failed"] = failed
    found = {**about, "rows": list(rows(runs)), "runs": runs}
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "feed.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.results / "feed.md").write_text(markdown(runs, about))
    if runs:
        draw(runs, options.results / "feed.png")
    return found


def main() -> None:
    """Run the command line."""
    options = parsed()
    from torch.distributed import is_torchelastic_launched

    if not is_torchelastic_launched():
        report(options)
        return
    from benchmarks.training.measure import measured

    found = measured(
        options.loader,
        [profile_of(name) for name in options.profiles],
        seconds=options.seconds,
        divide=options.divide,
        work=options.work,
    )
    from torch import distributed

    if distributed.get_rank() == 0:
        print("\n" + json.dumps(found), flush=True)
    distributed.barrier()
    # libraries with threads of their own may hang when they are torn down; nothing is left to do
    os._exit(0)


if __name__ == "__main__":
    main()
