"""How fast does a loop get the batches of a dataset, and what does that take?

Measures this process, through the public loader, so it is given a fresh one each time: `shardloader
bench` forks it from one that has made the imports. The first batches are not counted: threads and
workers begin several at once, which then come together. An epoch without an end is read, so that
small datasets are measured like large ones; a sample comes more than once then, and what was read
before comes from the page cache.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardloader.dataset.shard_dataset import ShardDataset
from shardloader.loader.engine import MOST_THREADS
from shardloader.loader.loader import ShardLoader
from shardloader.loader.read_ahead import TASKS_MORE
from shardloader.order.topology import Topology
from shardloader.order.window import Shuffle
from shardloader.planning.recommend import Measurement, Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardloader.dataset.recipe import Source
    from shardloader.reading.cache import Cache

STEPS: Final = 10**9  # of the epoch: more than are read
LOOK_AT_MEMORY_S: Final = 0.05
PREFETCHED: Final = 2  # batches of a worker, DataLoader's default

_KILOBYTES = re.compile(r"^(RssAnon|Pss_Anon|Pss_Shmem):\s+([0-9]+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is measured.

    source, index_dir, cache, storage_options, fields, decode, transform: as ShardDataset takes
    them; window: of the shuffle; seconds: how long batches are counted; start_method: of worker
    processes.
    """

    source: Source
    index_dir: str | None
    cache: Cache | None
    storage_options: Mapping[str, Any] | None
    fields: tuple[str, ...] | None
    decode: str | Mapping[str, Any] | None
    transform: Callable[..., Mapping[str, Any]] | None
    window: int
    seconds: float
    start_method: str
    setting: Setting


def measure(asked: Asked, *, forked_from: int | None = None) -> Measurement:
    """Read batches for a while and say how it went.

    forked_from: the process whose memory this one shares, so that it is not counted as taken.
    Raises what the dataset raises.
    """
    around = () if forked_from is None else (forked_from,)
    before = _taken((*around, os.getpid()))
    begun = time.perf_counter()
    batches = iter(_loader(asked))
    held = next(batches)
    first_batch_s = time.perf_counter() - begun
    held = _after_the_first(batches, asked, held)
    workers = [process.pid for process in multiprocessing.active_children() if process.pid]
    memory = _Memory((os.getpid(), *workers))
    spent = -_cpu_s(workers)
    loop, begun = -time.thread_time(), time.perf_counter()
    now, num_batches = begun, 0
    while now < begun + asked.seconds or num_batches == 0:
        held = next(batches)  # as a loop does, which has the last one still
        num_batches += 1
        now = time.perf_counter()
        memory.look(now)
    samples = num_batches * asked.setting.batch_size
    spent, loop = spent + _cpu_s(workers), loop + time.thread_time()
    after = _taken((*around, os.getpid(), *workers))
    return Measurement(
        samples_per_s=samples / (now - begun),
        first_batch_s=first_batch_s,
        cpu_s=spent / samples,
        loop_cpu_s=loop / samples,
        memory_bytes=None
        if before is None or after is None
        else max(0, after - before + memory.above_now()),
    )


def _loader(asked: Asked) -> ShardLoader:
    setting = asked.setting
    dataset = ShardDataset(
        asked.source,
        index_dir=asked.index_dir,
        cache=asked.cache,
        storage_options=asked.storage_options,
        fields=asked.fields,
        decode=None if setting.is_raw else asked.decode,
        transform=None if setting.is_raw else asked.transform,
        shuffle=Shuffle(window=asked.window),
        topology=Topology(rank=0, world_size=1),
        steps_per_epoch=STEPS,
    )
    return ShardLoader(
        dataset,
        setting.batch_size,
        num_workers=setting.num_workers,
        multiprocessing_context=asked.start_method if setting.num_workers else None,
    )


def _after_the_first(batches: Iterator[Any], asked: Asked, held: Any) -> Any:
    """Let those batches pass that were begun together with the first, or as many as time allows."""
    num_workers = asked.setting.num_workers
    threads = min(len(os.sched_getaffinity(0)), MOST_THREADS)
    stop = time.perf_counter() + asked.seconds
    for _ in range(num_workers * PREFETCHED if num_workers else threads + TASKS_MORE):
        if time.perf_counter() >= stop:
            break
        held = next(batches)
    return held


def _cpu_s(workers: Sequence[int]) -> float:
    """Seconds of CPU that this process and its workers have used."""
    return time.process_time() + sum(map(_cpu_s_of, workers))


def _cpu_s_of(process: int) -> float:
    # The name, in brackets, may hold blanks; utime and stime are the 14th and 15th entry.
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Memory:
    """How far the processes' own memory was above what it is now; cheap to look at."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._processes = processes
        self._next = 0.0
        self._most = 0

    def look(self, now: float) -> None:
        if now >= self._next:
            self._next = now + LOOK_AT_MEMORY_S
            self._most = max(self._most, self._own())

    def above_now(self) -> int:
        return max(0, self._most - self._own())

    def _own(self) -> int:
        return sum(_kilobytes(process, "status") or 0 for process in self._processes) * 1024


def _taken(processes: Sequence[int]) -> int | None:
    """Bytes that processes take together, without the page cache; None if it is not told.

    What several of them share counts once. Takes some 40 ms a process.
    """
    each = [_kilobytes(process, "smaps_rollup") for process in processes]
    known = [kilobytes for kilobytes in each if kilobytes is not None]
    return sum(known) * 1024 if len(known) == len(each) else None


def _kilobytes(process: int, file: str) -> int | None:
    """The sum of what a file of /proc says of a process's memory."""
    try:
        text = Path(f"/proc/{process}/{file}").read_text()
    except OSError:
        return None
    found = _KILOBYTES.findall(text)
    return sum(int(kilobytes) for _, kilobytes in found) if found else None
