"""LitData, from chunks of 64 MB, shuffled as it does: chunks, and samples within them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.feeding.decoding import collate
from benchmarks.feeding.work import (
    BATCHES,
    NUM_WORKERS,
    RAW,
    SEED,
    Loader,
    Opened,
    many_samples,
    one_sample,
)

if TYPE_CHECKING:
    from benchmarks.feeding.work import Work


def _dataset(work: Work) -> Any:
    from litdata import StreamingDataset

    return StreamingDataset(str(work.folder), shuffle=True, seed=SEED, drop_last=False)


def _raw(work: Work) -> Opened:
    return Opened(items=_dataset(work), item_samples=1, columns=one_sample)


def _batches(work: Work) -> Opened:
    from litdata import StreamingDataLoader

    loader = StreamingDataLoader(
        _dataset(work),
        batch_size=work.corpus.batch,
        num_workers=NUM_WORKERS,
        collate_fn=collate,
    )
    return Opened(items=loader, item_samples=work.corpus.batch, columns=many_samples)


LOADERS = (
    Loader(
        name="LitData",
        form="litdata",
        opens={RAW: _raw, BATCHES: _batches},
        packages=("litdata", "torch"),
        is_peer=True,
    ),
)
