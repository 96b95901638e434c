"""LitData's form: chunks of 64 MB, as its `optimize` writes them with every field as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.corpora.shards import stored

if TYPE_CHECKING:
    from pathlib import Path

    from tools.corpora.corpus import Corpus


def make(corpus: Corpus, source: Path, folder: Path) -> None:
    """Write chunks of the samples, by the writer that `optimize` uses, in this process."""
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_bytes="64MB")
    for number, sample in enumerate(stored(corpus, source)):
        writer.add_item(number, sample)
    writer.done()
    writer.merge()
