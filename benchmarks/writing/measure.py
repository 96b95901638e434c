"""One measurement, in a process of its own: how long did a writer take, and what did it write?

    python -m benchmarks.writing.measure WHAT WRITER CORPUS [--divide N] [--work DIR]

WHAT is `time` (seconds by the clock, and CPU seconds of this process and its children, from the
first sample to the closed dataset; the samples are in memory before, 64 of them were written
once so that everything is imported, and a file as long as the corpus was written and removed, so
that nobody waits for memory that a host took back), `check` (the digest of what is read back from
what was written) or `access` (single samples read from the middle of the shards, which are
zstd's). The folder is removed afterwards. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.feeding.digest import Digest
from benchmarks.feeding.measure import versions_of
from benchmarks.feeding.work import RAW
from benchmarks.writing.access import accessed
from benchmarks.writing.writers import FLOOR, Task, find
from tools.corpora.corpus import corpus_of
from tools.corpora.shards import stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.writing.writers import Writer

WARM_UP: Final = 64


def timed(writer: Writer, task: Task) -> dict[str, Any]:
    """Seconds and CPU seconds of writing all samples."""
    warm_up(writer, task)
    fill_memory(task)
    gc.collect()
    gc.freeze()  # the samples are nobody's: no writer pays for looking through them
    os.sync()  # nor for what others have left to be written
    cpu, clock = cpu_seconds(), time.perf_counter()
    writer.write(task)
    seconds, cpu = time.perf_counter() - clock, cpu_seconds() - cpu
    files = [path for path in task.folder.rglob("*") if path.is_file()]
    return {
        "samples": len(task.samples) or task.corpus.num_samples,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "bytes": sum(path.stat().st_size for path in files),
    }


def warm_up(writer: Writer, task: Task) -> None:
    """Write a few samples, so that everything is imported and nothing left of it."""
    place = task.folder / "warm"
    folder, source = place / "written", place / "source"
    for each in (place, folder, source):
        each.mkdir()
    samples = task.samples[:WARM_UP]
    if writer.of_shards:
        few = in_memory(task, max(1, task.corpus.num_samples // WARM_UP))
        find(FLOOR).write(replace(task, samples=few, folder=source))
    writer.write(replace(task, samples=samples, source=source, folder=folder))
    shutil.rmtree(place)


def fill_memory(task: Task) -> None:
    """Have as many pages at hand as will be written: a virtual machine's host may keep them."""
    left = sum(path.stat().st_size for path in task.source.iterdir())
    piece = bytes(1 << 20)
    with tempfile.TemporaryFile(dir=task.folder) as file:
        while left > 0:
            left -= file.write(piece)


def cpu_seconds() -> float:
    """What this process and its children that have ended took of the processor, by now."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(each) for each in whose]
    return sum(each.ru_utime + each.ru_stime for each in used)


def checked(writer: Writer, task: Task) -> dict[str, Any]:
    """The digest of what lies in the folder when all is written."""
    writer.write(task)
    digest, names = Digest(), ("__key__", *task.corpus.fields)
    for key, fields in writer.read(task.folder):
        columns = {"__key__": [key.encode()], **{name: [fields[name]] for name in fields}}
        digest.add(columns, names, RAW)
    return {"samples": digest.samples, "total": digest.total}


def in_memory(task: Task, share: int) -> list[dict[str, Any]]:
    """The first samples of a corpus: one of `share` of them."""
    corpus = task.corpus
    wanted = max(1, corpus.num_samples // share)
    rows = zip(range(wanted), stored(corpus, task.source), strict=False)
    return [{"__key__": corpus.key(number), **fields} for number, fields in rows]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["time", "check", "access"])
    parser.add_argument("writer")
    parser.add_argument("corpus")
    parser.add_argument("--divide", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("benchmarks/.work"))
    parser.add_argument("--out", type=Path, help="where to write (default: in the work folder)")
    options = parser.parse_args()
    writer = find(options.writer)
    corpus = corpus_of(options.corpus, options.divide)
    folder = (options.out or options.work).resolve() / f"written-{os.getpid()}"
    source = corpus.folder(options.work, "tar").resolve()
    task = Task(corpus=corpus, samples=(), source=source, folder=folder)
    if not writer.of_shards:
        share = writer.share if options.what == "time" else 1
        task = replace(task, samples=in_memory(task, share))
    folder.mkdir(parents=True)
    measures: dict[str, Callable[[Writer, Task], dict[str, Any]]] = {
        "time": timed,
        "check": checked,
        "access": accessed,
    }
    try:
        found = measures[options.what](writer, task)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n" + json.dumps({**found, "versions": versions_of(writer.packages)}), flush=True)
    # libraries with threads of their own may hang when they are torn down; nothing is left to do
    os._exit(0)


if __name__ == "__main__":
    main()
