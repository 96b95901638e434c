"""One measurement, in a process of its own: what did it give, and how long did it take?

    python -m benchmarks.feeding.measure WHAT LOADER CORPUS MODE [--divide N] [--seconds S]

WHAT is `time` (the whole corpus, or what arrives in S seconds, read once; the clock starts after
imports and opening, and before workers are started), `check` (the whole corpus, with the digest of
what arrived), `first` (from this process's start to the first item) or `hold` (as `time`, and its
memory is watched from outside). Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.feeding.digest import Digest
from benchmarks.feeding.registry import find
from benchmarks.feeding.work import Opened, Work
from tools.corpora.corpus import Corpus, corpus_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SAMPLES_A_LOOK: Final = 256  # between looks at the clock


def held(opened: Opened) -> Opened:
    """The same with one iterator, which is held, and not yet made.

    Grain's waits up to a minute for the queues of its workers when it goes: whoever has its result
    ends the process before.
    """
    return replace(opened, items=chain(opened.items))


def timed(opened: Opened, corpus: Corpus, seconds: float) -> dict[str, Any]:
    """Samples and seconds of one pass, or of its start where it takes longer than `seconds`."""
    at_once = max(1, SAMPLES_A_LOOK // opened.item_samples)
    items, is_whole, started = 0, False, time.perf_counter()
    iterator = chain(opened.items)  # islice asks for iter() again, which starts some loaders anew
    while (passed := time.perf_counter() - started) < seconds or not items:
        got = sum(1 for _ in islice(iterator, at_once))
        items += got
        if got < at_once:
            is_whole = True
            passed = time.perf_counter() - started
            break
    samples = corpus.num_samples if is_whole else items * opened.item_samples
    return {"samples": samples, "seconds": passed, "whole": is_whole}


def checked(opened: Opened, corpus: Corpus, mode: str) -> dict[str, Any]:
    """The digest of everything that arrives in one pass."""
    digest = Digest()
    for item in opened.items:
        digest.add(opened.columns(item), corpus.fields, mode)
    return {"samples": digest.samples, "total": digest.total, "brightness": digest.brightness}


def first(opened: Opened) -> dict[str, Any]:
    """Seconds from this process's start to its first item."""
    next(iter(opened.items))
    return {"seconds": time.clock_gettime(time.CLOCK_BOOTTIME) - _started()}


def _started() -> float:
    """When this process started, in seconds since boot; its resolution is 10 ms."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """The versions of what a loader is made of; a package that is missing has none."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["time", "check", "first", "hold"])
    parser.add_argument("loader")
    parser.add_argument("corpus")
    parser.add_argument("mode")
    parser.add_argument("--divide", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--work", type=Path, default=Path("benchmarks/.work"))
    options = parser.parse_args()
    loader = find(options.loader)
    corpus = corpus_of(options.corpus, options.divide)
    folder = corpus.folder(options.work, loader.form).resolve()
    work = Work(corpus=corpus, mode=options.mode, folder=folder)
    opened = held(loader.opens[options.mode](work))
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "time": lambda: timed(opened, corpus, options.seconds),
        "hold": lambda: timed(opened, corpus, options.seconds),
        "check": lambda: checked(opened, corpus, options.mode),
        "first": lambda: first(opened),
    }
    found = measures[options.what]()
    print("\n" + json.dumps({**found, "versions": versions_of(loader.packages)}), flush=True)
    # libraries with threads of their own may hang when they are torn down; nothing is left to do
    os._exit(0)


if __name__ == "__main__":
    main()
