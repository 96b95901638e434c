"""Hugging Face datasets, streaming from Arrow files, with a buffer of 1,000 samples."""

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

if TYPE_CHECKING:
    from benchmarks.feeding.work import Work


def _dataset(work: Work) -> Any:
    from datasets import load_dataset

    files = sorted(str(path) for path in work.folder.glob("*.arrow"))
    streamed = load_dataset("arrow", data_files=files, split="train", streaming=True)
    return streamed.shuffle(seed=SEED, buffer_size=BUFFER)


def _raw(work: Work) -> Opened:
    return Opened(items=_dataset(work), item_samples=1, columns=one_sample)


def _batches(work: Work) -> Opened:
    from torch.utils.data import DataLoader

    size = work.corpus.batch
    loader: Any = DataLoader(
        _dataset(work), batch_size=size, num_workers=NUM_WORKERS, collate_fn=collate
    )
    return Opened(items=loader, item_samples=size, columns=many_samples)


LOADERS = (
    Loader(
        name="HF datasets",
        form="arrow",
        opens={RAW: _raw, BATCHES: _batches},
        packages=("datasets", "pyarrow", "torch"),
        is_peer=True,
    ),
)
