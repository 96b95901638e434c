"""MosaicML Streaming, from local MDS shards, shuffled over four of them."""

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
from tools.corpora.forms.mds import let_torchvision_import

if TYPE_CHECKING:
    from benchmarks.feeding.work import Work


def _dataset(work: Work, batch_size: int) -> Any:
    let_torchvision_import()
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    return StreamingDataset(
        local=str(work.folder),
        shuffle=True,
        shuffle_seed=SEED,
        shuffle_block_size=work.corpus.window,
        batch_size=batch_size,
    )


def _raw(work: Work) -> Opened:
    return Opened(items=_dataset(work, 1), item_samples=1, columns=one_sample)


def _batches(work: Work) -> Opened:
    from torch.utils.data import DataLoader

    size = work.corpus.batch
    loader: Any = DataLoader(
        _dataset(work, size), batch_size=size, num_workers=NUM_WORKERS, collate_fn=collate
    )
    return Opened(items=loader, item_samples=size, columns=many_samples)


LOADERS = (
    Loader(
        name="MDS",
        form="mds",
        opens={RAW: _raw, BATCHES: _batches},
        packages=("mosaicml-streaming", "torch"),
        is_peer=True,
    ),
)
