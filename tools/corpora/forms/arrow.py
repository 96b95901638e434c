"""Hugging Face datasets' form: Arrow tables of binary columns, as `save_to_disk` writes them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from tools.corpora.shards import stored

if TYPE_CHECKING:
    from pathlib import Path

    from tools.corpora.corpus import Corpus

ROWS_A_PIECE: Final = 1000


def make(corpus: Corpus, source: Path, folder: Path) -> None:
    """Write as many Arrow files as there are shards."""
    import pyarrow as pa
    from datasets import Dataset

    schema = pa.schema([(field, pa.binary()) for field in corpus.fields])
    samples, pieces = stored(corpus, source), []
    while rows := list(islice(samples, ROWS_A_PIECE)):
        pieces.append(pa.RecordBatch.from_pylist(rows, schema=schema))
    table = pa.Table.from_batches(pieces)
    Dataset(table).save_to_disk(folder, num_shards=corpus.num_shards)
