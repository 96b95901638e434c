"""Loose files under a map-style dataset, in a random order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

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
from tools.corpora.forms.loose import stem_of

if TYPE_CHECKING:
    from benchmarks.feeding.work import Work


class Files:
    """Sample `number` of a corpus: the bytes of its files."""

    def __init__(self, work: Work) -> None:
        self._corpus = work.corpus
        self._folder = f"{work.folder}/"

    def __len__(self) -> int:
        return self._corpus.num_samples

    def __getitem__(self, number: int) -> dict[str, bytes]:
        stem = self._folder + stem_of(self._corpus, number)
        sample = {}
        for field in self._corpus.fields:
            with open(f"{stem}.{field}", "rb", buffering=0) as file:  # noqa: PTH123 - a third less
                sample[field] = file.read()
        return sample


def _raw(work: Work) -> Opened:
    files = Files(work)
    order = np.random.Generator(np.random.Philox(SEED)).permutation(len(files)).tolist()
    return Opened(items=map(files.__getitem__, order), item_samples=1, columns=one_sample)


def _batches(work: Work) -> Opened:
    import torch
    from torch.utils.data import DataLoader

    files: Any = Files(work)
    loader: Any = DataLoader(
        files,
        batch_size=work.corpus.batch,
        shuffle=True,
        num_workers=NUM_WORKERS,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(SEED),
    )
    return Opened(items=loader, item_samples=work.corpus.batch, columns=many_samples)


LOADERS = (
    Loader(
        name="loose files",
        form="loose",
        opens={RAW: _raw, BATCHES: _batches},
        packages=("torch",),
    ),
)
