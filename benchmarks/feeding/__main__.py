"""How fast does each loader feed? Makes the corpora, runs the rounds, writes the results.

    python -m benchmarks.feeding [--small] [--rounds 5] [--only T --only webdataset,litdata]

Writes feeding.json (every round, with versions, machine and commands), feeding.md and feeding.png
to benchmarks/results. `--only` takes corpora and parts of loaders' names, any case; the limits and
shardloader are measured always. `--small` has twenty times fewer samples, for a quick look.
"""

from __future__ import annotations

import argparse
import compileall
import json
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.feeding import peers
from benchmarks.feeding.machine import machine
from benchmarks.feeding.picture import draw
from benchmarks.feeding.processes import run_to_end
from benchmarks.feeding.registry import loaders
from benchmarks.feeding.rounds import Options, Turn, measure, planned
from benchmarks.feeding.tables import CORPORA, OWN_NAME, markdown, reached

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALL: Final = 20
MAKERS: Final = 2  # processes that make corpora at once


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="T, I, K or parts of names")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="the limit of a measurement")
    parser.add_argument("--small", action="store_true", help=f"{SMALL} times fewer samples")
    parser.add_argument("--divide", type=int, help="so many times fewer samples")
    parser.add_argument("--no-peers", action="store_true", help="only what .venv has")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/.work"))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args(arguments)


def options_of(given: argparse.Namespace) -> Options:
    """What to measure."""
    words = [word for each in given.only for word in each.split(",") if word]
    parts = tuple(word.lower() for word in words if word not in CORPORA)
    return Options(
        corpora=tuple(word for word in words if word in CORPORA) or CORPORA,
        loaders=(*parts, OWN_NAME) if parts else (),
        rounds=given.rounds,
        seconds=given.seconds,
        divide=given.divide or (SMALL if given.small else 1),
        work=given.work,
    )


class Form(NamedTuple):
    """A form of a corpus that has to be there, and whether a peer's library makes it."""

    corpus: str
    form: str
    is_peer: bool


def make_forms(turns: Sequence[Turn], options: Options) -> None:
    """Make every form that is read, the tars first; what can't be made fails its loader."""
    read = {Form(turn.corpus.name, turn.loader.form, turn.loader.is_peer) for turn in turns}
    tars = [Form(name, "tar", is_peer=False) for name in options.corpora]
    others = sorted(each for each in read if each.form != "tar")
    with ThreadPoolExecutor(MAKERS) as pool:
        for stage in (tars, others):
            reasons = pool.map(partial(_make, options=options), stage)
            for made, reason in zip(stage, reasons, strict=True):
                for turn in turns:
                    if reason and (turn.corpus.name, turn.loader.form) == made[:2]:
                        turn.series.failed = f"its form could not be made: {reason}"


def _make(made: Form, options: Options) -> str:
    """Why the form could not be made; empty if it was, or is there."""
    say(f"making {made.form} of {made.corpus}, {options.divide} times smaller")
    arguments = ["-m", "tools.corpora", made.corpus, "--form", made.form]
    arguments += ["--divide", str(options.divide), "--work", str(options.work)]
    return run_to_end(arguments, is_peer=made.is_peer)


def say(what: str) -> None:
    """Tell somebody who waits what is being done."""
    print(what, file=sys.stderr, flush=True)


def report(given: argparse.Namespace) -> dict[str, Any]:
    """Measure, write the three files, and return what the JSON holds."""
    options = options_of(given)
    about: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.feeding", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "left_out": {} if given.no_peers else peers.ensure(),
    }
    chosen = [each for each in loaders() if options.wants(each)]
    if given.no_peers:
        chosen = [each for each in chosen if not each.is_peer]
    turns = planned(chosen, options)
    make_forms(turns, options)
    make_forms(turns, options.of_checks)
    for folder in ("shardloader", "benchmarks/feeding", "tools"):  # as pip did with all others
        compileall.compile_dir(folder, quiet=1)
    about["versions"] = measure(turns, options, say)
    series = [turn.series for turn in turns]
    found = {
        **about,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "divide": options.divide,
        "corpora": {turn.corpus.name: asdict(turn.corpus) for turn in turns},
        "targets": reached(series),
        "series": [asdict(each) for each in series],
    }
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "feeding.json").write_text(json.dumps(found, indent=1) + "\n")
    (given.results / "feeding.md").write_text(markdown(series, about))
    draw(series, given.results / "feeding.png")
    return found


if __name__ == "__main__":
    report(parsed())
