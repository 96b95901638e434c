"""Feed distributed PyTorch training from tar shards, and resume exactly, on any topology.

    import shardloader as sl

    dataset = sl.ShardDataset("corpus/", seed=0, shuffle=sl.Shuffle(window=10_000))
    loader = sl.ShardLoader(dataset, batch_size=32, num_workers=8)
    for epoch in range(loader.epoch, epochs):
        for batch in loader:
            ...
    state = loader.state_dict()

Names are imported when first used: `import shardloader` costs no torch.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardloader.dataset.shard_dataset import ShardDataset
    from shardloader.dataset.skipping import Skip
    from shardloader.errors import (
        AgreementError,
        CacheError,
        CheckpointError,
        DataError,
        DecodeError,
        IndexFileError,
        ManifestError,
        MissingExtraError,
        SampleError,
        ShardError,
        ShardLoaderError,
        StaleIteratorError,
        StoreError,
        TopologyError,
        UnsupportedError,
        UsageError,
        WorldError,
    )
    from shardloader.format.manifest import Manifest
    from shardloader.loader.loader import ShardLoader
    from shardloader.loader.loss import loss_scale
    from shardloader.order.grid import Grid
    from shardloader.order.topology import Topology
    from shardloader.order.window import Shuffle
    from shardloader.planning.plan import plan
    from shardloader.planning.planned import Plan
    from shardloader.reading.cache import Cache
    from shardloader.reading.decode import RawArray
    from shardloader.reading.images import Jpeg, Png
    from shardloader.writing.writer import ShardWriter

__all__ = [
    "AgreementError",
    "Cache",
    "CacheError",
    "CheckpointError",
    "DataError",
    "DecodeError",
    "Grid",
    "IndexFileError",
    "Jpeg",
    "Manifest",
    "ManifestError",
    "MissingExtraError",
    "Plan",
    "Png",
    "RawArray",
    "SampleError",
    "ShardDataset",
    "ShardError",
    "ShardLoader",
    "ShardLoaderError",
    "ShardWriter",
    "Shuffle",
    "Skip",
    "StaleIteratorError",
    "StoreError",
    "Topology",
    "TopologyError",
    "UnsupportedError",
    "UsageError",
    "WorldError",
    "__version__",
    "loss_scale",
    "plan",
]

_ERRORS = "shardloader.errors"
_HOMES = {
    "AgreementError": _ERRORS,
    "Cache": "shardloader.reading.cache",
    "CacheError": _ERRORS,
    "CheckpointError": _ERRORS,
    "DataError": _ERRORS,
    "DecodeError": _ERRORS,
    "Grid": "shardloader.order.grid",
    "IndexFileError": _ERRORS,
    "Jpeg": "shardloader.reading.images",
    "Manifest": "shardloader.format.manifest",
    "ManifestError": _ERRORS,
    "MissingExtraError": _ERRORS,
    "Plan": "shardloader.planning.planned",
    "Png": "shardloader.reading.images",
    "RawArray": "shardloader.reading.decode",
    "SampleError": _ERRORS,
    "ShardDataset": "shardloader.dataset.shard_dataset",
    "ShardError": _ERRORS,
    "ShardLoader": "shardloader.loader.loader",
    "ShardLoaderError": _ERRORS,
    "ShardWriter": "shardloader.writing.writer",
    "Shuffle": "shardloader.order.window",
    "Skip": "shardloader.dataset.skipping",
    "StaleIteratorError": _ERRORS,
    "StoreError": _ERRORS,
    "Topology": "shardloader.order.topology",
    "TopologyError": _ERRORS,
    "UnsupportedError": _ERRORS,
    "UsageError": _ERRORS,
    "WorldError": _ERRORS,
    "loss_scale": "shardloader.loader.loss",
    "plan": "shardloader.planning.plan",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("shardloader")
    if name not in _HOMES:
        raise AttributeError(f"module 'shardloader' has no attribute {name!r}")
    with _uncollected():
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


@contextmanager
def _uncollected() -> Iterator[None]:
    """Hold the garbage collector back: what imports make stays, and is looked through in vain.

    With torch among it that takes a seventh of the time to the first name.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def __dir__() -> list[str]:
    return sorted(__all__)
