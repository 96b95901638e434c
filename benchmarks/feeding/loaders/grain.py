"""Grain, from ArrayRecord files, shuffled as a whole; without threads when raw."""

from __future__ import annotations

from functools import partial
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
from tools.corpora.forms.array_record import unpacked

if TYPE_CHECKING:
    from benchmarks.feeding.work import Work


def _shuffled(work: Work) -> Any:
    import grain

    files = sorted(str(path) for path in work.folder.glob("*.array_record"))
    source: Any = grain.sources.ArrayRecordDataSource(files)
    dataset: Any = grain.MapDataset.source(source).shuffle(seed=SEED)
    return dataset.map(partial(unpacked, work.corpus.fields))


def _raw(work: Work) -> Opened:
    import grain

    items = _shuffled(work).to_iter_dataset(grain.ReadOptions(num_threads=0))
    return Opened(items=items, item_samples=1, columns=one_sample)


def _batches(work: Work) -> Opened:
    import grain

    size = work.corpus.batch
    batched = _shuffled(work).batch(size, batch_fn=collate).to_iter_dataset()
    items = batched.mp_prefetch(grain.MultiprocessingOptions(num_workers=NUM_WORKERS))
    return Opened(items=items, item_samples=size, columns=many_samples)


LOADERS = (
    Loader(
        name="Grain",
        form="array_record",
        opens={RAW: _raw, BATCHES: _batches},
        packages=("grain", "array-record"),
        is_peer=True,
    ),
)
