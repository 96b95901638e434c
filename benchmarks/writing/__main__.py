"""How fast is each writer? Makes the corpora, runs the rounds, writes the results.

    python -m benchmarks.writing [--small] [--rounds 5] [--only T --only webdataset,MDS]

Writes writing.json (every round, with versions, machine and commands) and writing.md to
benchmarks/results. `--only` takes corpora and parts of writers' names, any case; shardloader and
the template loop are measured always. `--out` says where is written, which decides what fsync
costs. `--small` has twenty times fewer samples, for a quick look.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.feeding import peers
from benchmarks.feeding.machine import machine
from benchmarks.feeding.processes import run_to_end
from benchmarks.writing.rounds import Options, measure, planned
from benchmarks.writing.tables import markdown, reached
from benchmarks.writing.writers import CORPORA, WRITERS

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALL: Final = 20


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="T, I or parts of names")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help=f"{SMALL} times fewer samples")
    parser.add_argument("--divide", type=int, help="so many times fewer samples")
    parser.add_argument("--no-peers", action="store_true", help="only what .venv has")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/.work"))
    parser.add_argument("--out", type=Path, help="where to write (default: in the work folder)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args(arguments)


def options_of(given: argparse.Namespace) -> Options:
    """What to measure."""
    words = [word for each in given.only for word in each.split(",") if word]
    return Options(
        corpora=tuple(word for word in words if word in CORPORA) or CORPORA,
        names=tuple(word.lower() for word in words if word not in CORPORA),
        rounds=given.rounds,
        divide=given.divide or (SMALL if given.small else 1),
        work=given.work,
        out=given.out or given.work,
    )


def make_corpora(options: Options) -> None:
    """Make the shards that the samples are taken from; does nothing where they are."""
    for each in (options, options.of_checks):
        for corpus in each.corpora:
            say(f"making {corpus}, {each.divide} times smaller")
            arguments = ["-m", "tools.corpora", corpus, "--divide", str(each.divide)]
            reason = run_to_end([*arguments, "--work", str(each.work)], is_peer=False)
            if reason:
                raise RuntimeError(f"the corpus {corpus} could not be made: {reason}")


def say(what: str) -> None:
    """Tell somebody who waits what is being done."""
    print(what, file=sys.stderr, flush=True)


def report(given: argparse.Namespace) -> dict[str, Any]:
    """Measure, write the two files, and return what the JSON holds."""
    options = options_of(given)
    about: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.writing", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "left_out": {} if given.no_peers else peers.ensure(),
        "rounds": options.rounds,
        "divide": options.divide,
    }
    make_corpora(options)
    chosen = [each for each in WRITERS if options.wants(each)]
    turns = planned([each for each in chosen if not (given.no_peers and each.is_peer)], options)
    about["versions"] = measure(turns, options, say)
    series = [turn.series for turn in turns]
    found = {**about, "targets": reached(series), "series": [asdict(each) for each in series]}
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "writing.json").write_text(json.dumps(found, indent=1) + "\n")
    (given.results / "writing.md").write_text(markdown(series, about))
    return found


if __name__ == "__main__":
    report(parsed())
