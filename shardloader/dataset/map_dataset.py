"""The same samples by number, for code that wants `len` and `[i]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from shardloader.dataset.samples import SampleReader
from shardloader.order.integers import checked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardloader.dataset.recipe import Recipe


class MapDataset(Dataset[Any]):
    """All samples in the manifest's order: `dataset[i]` is the sample whose `__index__` is i."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        counts = recipe.catalog.manifest.counts
        self._starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        self._reader: SampleReader | None = None

    def __len__(self) -> int:
        """The number of samples."""
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """Sample `index`, decoded and transformed as in epoch 0; raises IndexError past an end."""
        number = checked("index", index, least=-(2**62), below=2**62)
        if not -len(self) <= number < len(self):
            raise IndexError(f"the dataset has {len(self)} samples, and {number} was asked for")
        number %= len(self)
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        if self._reader is None:
            self._reader = SampleReader(self._recipe)
        sample = number - int(self._starts[shard])
        return self._reader.read(shard=shard, sample=sample, index=number, number=0)[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}
