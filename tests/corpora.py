"""Tiny corpora for tests of what stands above the formats: made once, and told apart by number.

Sample number i of a corpus, in the manifest's order, has the key f"{i:06d}", the text
f"text {i} ..." and the class i % 10: what arrives says by itself which sample it is.
"""

from __future__ import annotations

import atexit
import logging
import re
import shutil
import tempfile
import traceback
from collections import Counter
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shardloader as sl
from shardloader.reading.catalog import open_catalog
from tests.shards import tar_bytes, write_shard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def _index(folder: Path) -> None:
    """Index a corpus before it is used: what indexing logs is no affair of the test that asks."""
    logger = logging.getLogger("shardloader")
    before, logger.disabled = logger.disabled, True
    try:
        open_catalog(folder)
    finally:
        logger.disabled = before


def make_corpus(folder: Path, counts: Sequence[int]) -> Path:
    """Write and index a corpus with so many samples a shard."""
    first = 0
    for shard, count in enumerate(counts):
        write_shard(folder / f"shard-{shard:04d}.tar", count, first=first)
        first += count
    _index(folder)
    return folder


def make_corpus_with(
    folder: Path, samples: Iterable[Iterable[tuple[str, bytes]]], *, indexed: bool = True
) -> Path:
    """Write a corpus of one shard whose samples have the given fields."""
    members = [
        (f"{number:06d}.{field}", data)
        for number, fields in enumerate(samples)
        for field, data in fields
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shard-0000.tar").write_bytes(tar_bytes(members))
    if indexed:
        _index(folder)
    return folder


@lru_cache(maxsize=1)
def _kept_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="shardloader-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@lru_cache(maxsize=4096)
def kept_corpus(counts: tuple[int, ...]) -> Path:
    """The corpus of these counts, which nobody may change: made once a test process."""
    return make_corpus(Path(tempfile.mkdtemp(dir=_kept_folder())), counts)


def dataset_of(source: Any, *, rank: int = 0, world_size: int = 1, **options: Any) -> Any:
    """A ShardDataset for one rank, whatever launched the tests."""
    return sl.ShardDataset(
        source, topology=sl.Topology(rank=rank, world_size=world_size), **options
    )


LOADER_OPTIONS = (
    "accumulate",
    "batch_size",
    "decode_threads",
    "device",
    "device_prefetch",
    "quarantine",
    "stall_s",
    "global_batch",
    "num_workers",
    "collate_fn",
    "meta",
    "persistent_workers",
    "multiprocessing_context",
    "pin_memory",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
)


def loader_of(source: Any, **options: Any) -> Any:
    """A ShardLoader; options are those of ShardLoader and of dataset_of."""
    own = {name: options.pop(name) for name in LOADER_OPTIONS if name in options}
    return sl.ShardLoader(dataset_of(source, **options), **own)


def loaders_of(source: Any, world_size: int, **options: Any) -> list[Any]:
    """One ShardLoader a rank."""
    return [
        loader_of(source, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]


@contextmanager
def raises_in_worker(kind: type[BaseException], match: str) -> Iterator[list[str]]:
    """pytest.raises for an error that a worker hands over; gives a list that gets its message.

    torch raises it from a frame that it refers to itself, which keeps the iterator and its
    workers until a garbage collection, and then their shutdown waits its whole timeout of 5 s.
    """
    messages: list[str] = []
    try:
        yield messages
    except kind as error:
        messages.append(str(error))
        traceback.clear_frames(error.__traceback__)
    assert messages, f"no {kind.__name__} was raised"
    assert re.search(match, messages[0])


def content(batch: Any) -> tuple[tuple[int, ...], tuple[bool, ...], int]:
    """Index, validity and global_valid of a batch, having looked that keys and texts belong."""
    index = batch["__index__"].tolist()
    assert batch["__key__"] == [f"{number:06d}" for number in index]
    assert [text.split()[1] for text in batch["txt"]] == [str(number) for number in index]
    assert batch["cls"].tolist() == [number % 10 for number in index]
    return tuple(index), tuple(batch["__valid__"].tolist()), batch["__global_valid__"]


def contents(batches: Iterable[Any]) -> list[tuple[tuple[int, ...], tuple[bool, ...], int]]:
    return [content(batch) for batch in batches]


def valid_of(batches: Iterable[Any]) -> list[int]:
    """The samples that batches train on, in order."""
    return [
        number
        for index, valid, _ in contents(batches)
        for number, is_valid in zip(index, valid, strict=True)
        if is_valid
    ]


def each_once(numbers: Iterable[int], num_samples: int) -> bool:
    """Whether these are the numbers 0 .. num_samples - 1, each once."""
    return Counter(numbers) == Counter(range(num_samples))
