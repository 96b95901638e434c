"""shardloader, by its public API alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.feeding.decoding import SIDE, pillow_square, resized
from benchmarks.feeding.work import (
    BATCHES,
    NUM_WORKERS,
    OWN,
    RAW,
    SEED,
    Loader,
    Opened,
    Work,
    one_sample,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Array = np.ndarray[Any, np.dtype[Any]]


def _dataset(work: Work, decode: Any) -> Any:
    import shardloader as sl

    return sl.ShardDataset(
        work.folder,
        seed=SEED,
        shuffle=sl.Shuffle(window=work.corpus.window),
        decode=decode,
    )


def _pillow_decode(data: Any) -> Array:
    return pillow_square(data)


def _reduced_decode(data: bytes) -> Array:
    """The middle square of an image that was decoded at the smallest scale that has it."""
    from PIL import Image

    import shardloader as sl

    pixels = sl.Jpeg(min_size=(SIDE, SIDE))(memoryview(data))
    return resized(Image.fromarray(pixels))


def _valid(batch: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The columns of a batch without its pads."""
    valid = batch["__valid__"].tolist()
    return {
        name: [value for value, is_valid in zip(values, valid, strict=True) if is_valid]
        for name, values in batch.items()
        if not name.startswith("__")
    }


def _raw_batches(work: Work) -> Opened:
    import shardloader as sl

    size = work.corpus.raw_batch
    loader: Iterable[Any] = sl.ShardLoader(_dataset(work, None), batch_size=size)
    return Opened(items=loader, item_samples=size, columns=_valid)


def _raw_samples(work: Work) -> Opened:
    return Opened(items=_dataset(work, None), item_samples=1, columns=one_sample)


def _batches(work: Work, **options: Any) -> Opened:
    import shardloader as sl

    decode: Any = "default"
    if work.corpus.name == "I":
        decode = {"jpg": _reduced_decode if work.mode == OWN else _pillow_decode}
    dataset = _dataset(work, decode)
    size = work.corpus.batch
    loader: Iterable[Any] = sl.ShardLoader(dataset, size, device=work.device, **options)
    return Opened(items=loader, item_samples=size, columns=_valid)


PACKAGES = ("shardloader", "torch", "numpy", "torchdata", "simplejpeg", "pillow")
_two_workers = partial(_batches, num_workers=NUM_WORKERS)

LOADERS = (
    Loader(
        name="shardloader",
        form="tar",
        opens={RAW: _raw_batches, BATCHES: _batches, OWN: _batches},
        packages=PACKAGES,
    ),
    Loader(name="shardloader, for sample in dataset", form="tar", opens={RAW: _raw_samples}),
    Loader(
        name="shardloader, 2 workers",
        form="tar",
        opens={BATCHES: _two_workers, OWN: _two_workers},
    ),
)
