"""Grain's form: ArrayRecord files of one record a sample, its fields packed one behind another."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from tools.corpora.shards import stored

if TYPE_CHECKING:
    from pathlib import Path

    from tools.corpora.corpus import Corpus


def make(corpus: Corpus, source: Path, folder: Path) -> None:
    """Write as many files as there are shards, for random access."""
    from array_record.python.array_record_module import ArrayRecordWriter

    samples = stored(corpus, source)
    for shard in range(corpus.num_shards):
        path = folder / f"shard-{shard:06d}.array_record"
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for sample in islice(samples, corpus.shard_samples):
            writer.write(packed(sample))
        writer.close()


def packed(sample: dict[str, bytes]) -> bytes:
    """The fields' bytes, each behind its length."""
    return b"".join(len(data).to_bytes(4, "little") + data for data in sample.values())


def unpacked(fields: tuple[str, ...], record: bytes) -> dict[str, bytes]:
    """What `packed` packed."""
    sample, at = {}, 0
    for field in fields:
        stop = at + 4 + int.from_bytes(record[at : at + 4], "little")
        sample[field] = record[at + 4 : stop]
        at = stop
    return sample
