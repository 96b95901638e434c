"""Megatron-Energon, from the same tars behind its index, with a buffer of 1,000 samples."""

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


def _opened(work: Work, *, num_workers: int, batch_size: int | None) -> Any:
    from megatron.energon import (
        Cooker,
        DefaultTaskEncoder,
        WorkerConfig,
        get_loader,
        get_train_dataset,
        stateless,
    )

    @stateless  # type: ignore[untyped-decorator]
    def cook(sample: Any) -> Any:
        return sample

    class Encoder(DefaultTaskEncoder):  # type: ignore[misc]
        """Leaves samples as they are; makes a batch as all others do."""

        decoder = None
        cookers = (Cooker(cook),)

        @stateless  # type: ignore[untyped-decorator]
        def encode_sample(self, sample: Any) -> Any:
            return sample

        def batch(self, samples: Any) -> Any:
            return collate(samples)

        def encode_batch(self, batch: Any) -> Any:
            return batch

    dataset = get_train_dataset(
        str(work.folder),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers, seed_offset=SEED),
        batch_size=batch_size,
        batch_drop_last=False,
        shuffle_buffer_size=BUFFER,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
        repeat=False,
    )
    return get_loader(dataset)


def _raw(work: Work) -> Opened:
    loader = _opened(work, num_workers=0, batch_size=None)
    return Opened(items=loader, item_samples=1, columns=one_sample)


def _batches(work: Work) -> Opened:
    size = work.corpus.batch
    loader = _opened(work, num_workers=NUM_WORKERS, batch_size=size)
    return Opened(items=loader, item_samples=size, columns=many_samples)


LOADERS = (
    Loader(
        name="Energon",
        form="energon",
        opens={RAW: _raw, BATCHES: _batches},
        packages=("megatron-energon", "torch"),
        is_peer=True,
    ),
)
