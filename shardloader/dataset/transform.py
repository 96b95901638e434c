"""How is a user's transform called, and where does its randomness come from?

A transform that takes a parameter `rng` gets a numpy generator keyed by (seed, pass, sample); a
pass over the data is an epoch, unless `steps_per_epoch` says otherwise.
With `reseed=True` the global generators of random, numpy and torch are seeded with the same key
before each sample instead, in worker processes only. Either way augmentations are the same after
a resume and in any topology. A transform that returns None refuses its sample.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from shardloader.dataset.skipping import RefusedSampleError
from shardloader.errors import UsageError
from shardloader.order.permutation import sample_bits

Transform = Callable[..., Mapping[str, Any] | None]


def takes_rng(transform: Transform | None) -> bool:
    """Whether a transform has a parameter named rng."""
    if transform is None:
        return False
    try:
        return "rng" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # builtins without a signature
        return False


class Transformer:
    """Applies one transform to samples of one run."""

    def __init__(self, transform: Transform | None, *, seed: int, reseed: bool) -> None:
        self._transform = transform
        self._with_rng = takes_rng(transform)
        self._seed = seed
        self._reseed = reseed

    @property
    def transforms(self) -> bool:
        """Whether there is a transform."""
        return self._transform is not None

    def __call__(self, sample: dict[str, Any], *, number: int, index: int) -> Mapping[str, Any]:
        """The transformed sample.

        Raises RefusedSampleError if the transform returns None, and UsageError for any other value
        that is no mapping.
        """
        if self._transform is None:
            return sample
        if self._reseed:
            self._seed_everything(number, index)
        if self._with_rng:
            rng = np.random.Generator(sample_bits(self._seed, number, index))
            result = self._transform(sample, rng=rng)
        else:
            result = self._transform(sample)
        if result is None:
            raise RefusedSampleError("transform= returned None, which refuses the sample")
        if not isinstance(result, Mapping):
            raise UsageError(
                "a transform returns the sample as a mapping, or None to refuse it, and this one "
                f"returned a {type(result).__name__}"
            )
        return result

    def _seed_everything(self, number: int, index: int) -> None:
        import torch

        if get_worker_info() is None:
            raise UsageError(
                "reseed=True seeds the global generators, which belong to the training loop in the "
                "main process: use num_workers >= 1, or a transform that takes rng"
            )
        words = sample_bits(self._seed, number, index).random_raw(2)
        random.seed(int(words[0]))
        np.random.seed(int(words[0]) & 0xFFFFFFFF)  # noqa: NPY002 - the global one is asked for
        torch.manual_seed(int(words[1]))
