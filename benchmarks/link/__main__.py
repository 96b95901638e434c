"""How much of a link does each loader use, and how soon is its first batch there?

    python -m benchmarks.link [--rounds 3] [--only shardloader --only litdata] [--small]

Makes a server and a client of namespaces (root), with a link of 1 Gbit/s between them and 50 ms
before each answer; the corpus in every form, once; then takes rounds. Writes link.json (every turn)
and link.md to benchmarks/results. The peers' virtual environment is the one that `make bench`
makes; `--peers` names another's python. `--small` has a small corpus and no peers. The exit code is
3 where namespaces are not permitted.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from benchmarks.feeding.machine import machine
from benchmarks.feeding.peers import ensure
from benchmarks.feeding.processes import PEERS_PYTHON, ROOT
from benchmarks.link.corpus import Corpus
from benchmarks.link.loaders import BUCKET, LIMIT, LOADERS, Loader
from benchmarks.link.rounds import Link, LinkError, Setting
from benchmarks.link.tables import markdown
from tools.multinode.hosts import NoHostsError

if TYPE_CHECKING:
    from collections.abc import Sequence

NOT_PERMITTED: Final = 3
FULL: Final = Corpus(num_samples=10_240, shard_samples=1_024, sample_bytes=100_000)
SMALL: Final = Corpus(num_samples=128, shard_samples=32, sample_bytes=50_000)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], help="a part of a loader's name")
    parser.add_argument("--mbit", type=float, default=1000.0)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument("--shard-samples", type=int, default=FULL.shard_samples)
    parser.add_argument("--small", action="store_true", help="a quick look, without peers")
    parser.add_argument("--peers", type=Path, default=PEERS_PYTHON, help="the peers' python")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/.work/link"))
    parser.add_argument("--caches", type=Path, default=Path("/dev/shm"), help="where caches lie")  # noqa: S108
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args(arguments)


def chosen(options: argparse.Namespace) -> list[Loader]:
    """Which loaders take part; the limit always does."""
    parts = [part.lower() for part in options.only]
    wanted = [
        each
        for each in LOADERS
        if not parts or any(part in each.name.lower() for part in parts) or each.name == LIMIT
    ]
    return [each for each in wanted if not (options.small and each.is_peer)]


def made(corpus: Corpus, loaders: Sequence[Loader], work: Path, peers: Path) -> Path:
    """The folder to serve, with every form that is read, made where it is missing."""
    served = work / "-".join(map(str, corpus))
    for form, is_peer in sorted({(each.form, each.is_peer) for each in loaders}):
        folder = served / BUCKET / form
        stamp = folder.with_name(f"{form}.made")
        if not stamp.exists():
            say(f"making the corpus as {form}")
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            python = str(peers) if is_peer else sys.executable
            command = [python, "-m", "benchmarks.link.corpus", form, str(folder)]
            subprocess.run([*command, *map(str, corpus)], check=True, cwd=ROOT)  # noqa: S603
            stamp.touch()
        for path in folder.rglob("*"):  # into the page cache
            if path.is_file():
                path.read_bytes()
    return served


def say(what: str) -> None:
    """Tell somebody who waits what is being done."""
    print(what, file=sys.stderr, flush=True)


def rounds(link: Link, loaders: Sequence[Loader], number: int, total: int) -> list[dict[str, Any]]:
    """All turns: a pass of everybody and, where it can, a resumed start, in a turning order."""
    found = []
    for at in range(number):
        shift = at % len(loaders)
        turns: dict[str, Any] = {}
        for loader in [*loaders[shift:], *loaders[:shift]]:
            say(f"round {at + 1}: {loader.name}")
            read = link.turn(loader, "pass")
            if loader.gives and read.get("total", total) != total:
                read = {"failed": f"what arrived differs: {read['samples']} samples"}
            turns[loader.name] = {"pass": read}
            if loader.resumes and "failed" not in read:
                turns[loader.name]["resumed"] = link.turn(loader, "resumed")
        found.append(turns)
    return found


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, write both files, and return what the JSON holds."""
    corpus = SMALL if options.small else FULL._replace(shard_samples=options.shard_samples)
    loaders, peers = chosen(options), ROOT / options.peers
    if peers == ROOT / PEERS_PYTHON and any(each.is_peer for each in loaders):
        ensure()
    about = {
        "command": shlex.join(["python", "-m", "benchmarks.link", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
    }
    served = made(corpus, loaders, options.work.resolve(), peers)
    with (
        TemporaryDirectory(prefix="link-") as home,
        TemporaryDirectory(prefix="link-", dir=options.caches) as caches,
    ):
        setting = Setting(
            corpus=corpus,
            served=served,
            home=Path(home),
            caches=Path(caches),
            peers=peers,
            mbit=options.mbit,
            latency_s=options.latency,
            batch=8 if options.small else 32,
            num_workers=2,
            window=corpus.shard_samples // 2,
        )
        with Link(setting) as link:
            read = rounds(link, loaders, options.rounds, corpus.total)
    turns = [(name, turn["pass"]) for each in read for name, turn in each.items()]
    found = {
        **about,
        "corpus": corpus._asdict(),
        "link": {"mbit": options.mbit, "latency_ms": options.latency * 1000},
        "batch": setting.batch,
        "rounds": options.rounds,
        "versions": {name: turn["versions"] for name, turn in turns if "versions" in turn},
        "rounds_read": read,
    }
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "link.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.results / "link.md").write_text(markdown(found))
    return found


def main() -> None:
    """Run the command line."""
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    try:
        report(options)
    except NoHostsError as error:
        say(str(error))
        sys.exit(NOT_PERMITTED)
    except LinkError as error:
        sys.exit(str(error))
    print((options.results / "link.md").read_text())


if __name__ == "__main__":
    main()
