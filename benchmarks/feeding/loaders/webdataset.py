"""webdataset: shards shuffled, and a buffer of 1,000 samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.feeding.decoding import collate
from benchmarks.feeding.work import (
    BATCHES,
    BUFFER,
    NUM_WORKERS,
    RAW,
    SEED,
    Loader,
    Opened,
    many_samples,
    one_sample,
)
from tools.corpora.shards import paths

if TYPE_CHECKING:
    from benchmarks.feeding.work import Work


def _shuffled(work: Work) -> Any:
    import webdataset as wds

    urls = [str(path) for path in paths(work.folder)]
    dataset = wds.WebDataset(
        urls,
        shardshuffle=len(urls),
        seed=SEED,
        nodesplitter=wds.split_by_node,
        empty_check=False,
    )
    return dataset.shuffle(BUFFER)


def _raw(work: Work) -> Opened:
    return Opened(items=_shuffled(work), item_samples=1, columns=one_sample)


def _batches(work: Work) -> Opened:
    import webdataset as wds

    batched = _shuffled(work).batched(work.corpus.batch, collation_fn=collate)
    loader = wds.WebLoader(batched, batch_size=None, num_workers=NUM_WORKERS)
    return Opened(items=loader, item_samples=work.corpus.batch, columns=many_samples)


LOADERS = (
    Loader(
        name="webdataset",
        form="tar",
        opens={RAW: _raw, BATCHES: _batches},
        packages=("webdataset", "torch"),
    ),
)
