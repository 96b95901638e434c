"""The public loader: this rank's batches, in an order that a checkpoint of one integer resumes.

It is a StatefulDataLoader to those who ask. What moves the position is in `progress`, what runs
workers in `engine`; here are the options, and the face that trainers see.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torchdata.stateful_dataloader import StatefulDataLoader

from shardloader.dataset.recipe import checked_meta
from shardloader.dataset.shard_dataset import ShardDataset
from shardloader.distributed.rendezvous import MEETING_TIMEOUT_S
from shardloader.errors import UsageError
from shardloader.loader.device import DEPTH, checked_device
from shardloader.loader.engine import Engine
from shardloader.loader.iterator import LoaderIterator
from shardloader.loader.log import SampleLog, launch_number
from shardloader.loader.progress import Progress
from shardloader.loader.quarantine import Quarantine
from shardloader.loader.stall import STALL_S, checked_stall
from shardloader.loader.stats import Account
from shardloader.loader.stream import LoaderDataset
from shardloader.order.batching import Batching
from shardloader.order.checkpoint import Checkpoint
from shardloader.order.integers import checked

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import torch

    from shardloader.dataset.recipe import Collate
    from shardloader.loader.stats import Stats
    from shardloader.order.topology import Topology

# Options of DataLoader that would decide what is read, with the values that decide nothing and
# what to use instead.
REFUSED: Final = {
    "sampler": ((None,), "the dataset's order is the sampler: use ShardDataset(shuffle=, seed=)"),
    "batch_sampler": ((None,), "use batch_size= and ShardDataset(shuffle=, seed=)"),
    "shuffle": ((None, False), "use ShardDataset(shuffle=Shuffle(window=...))"),
    "drop_last": ((None, False), 'use ShardDataset(even="drop")'),
    "in_order": ((None, True), "the order is what a checkpoint resumes: leave it out"),
    "snapshot_every_n_steps": ((None, 1), "the state counts every batch, at no cost: leave it out"),
}
# Options that are DataLoader's own affair.
PASSED_ON: Final = (
    "pin_memory",
    "pin_memory_device",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


class ShardLoader(StatefulDataLoader):  # type: ignore[misc]  # torchdata has no types
    """Batches of a ShardDataset for this rank.

    dataset; batch_size: samples a rank and step, 1 by default; num_workers: worker processes, 0
    for none; collate_fn: list of samples -> batch, by default arrays stacked and all else in
    lists; meta: which `__...__` entries a batch carries, "all", "mask" or "none". accumulate: steps
    whose gradients make one optimiser step. global_batch: samples of an optimiser step over all
    ranks; batch_size, then the most that a rank takes at once, and accumulate follow from it and
    from the number of ranks. agreement_timeout: seconds that ranks wait for each other before an
    epoch, to compare what they are about to read, where torch.distributed is initialised.
    decode_threads: threads that decode images, and fields with functions of your own, some batches
    ahead where num_workers is 0; by default one a core that this rank may use, none for 0.
    quarantine: a folder in which each rank lists its bad samples, one JSON object a line; with
    on_error="skip".
    device: where batches are given, "cuda" for the device that is current at the first iter,
    "cuda:1", or "cpu" for the host; they are copied there ahead, from pinned memory, on a stream of
    their own. device_prefetch: batches that lie there besides the one that the loop has. stall_s:
    seconds that a step may wait before the log says what for, None for never.
    pin_memory, timeout, worker_init_fn, multiprocessing_context, generator, prefetch_factor and
    persistent_workers are those of DataLoader. Raises UsageError for sampler, batch_sampler,
    shuffle, drop_last and in_order=False, naming what to use instead; at the first iter, len or
    state_dict for a global_batch that the ranks can't share evenly.

    A batch is a mapping: the fields, and `__valid__` (bool tensor [batch_size]), `__index__`
    (int64 tensor [batch_size], the sample's number in the manifest), `__key__` (list of str),
    `__global_valid__` (int, valid samples over all ranks) and `__world_size__` (int). With
    accumulate or global_batch it has `__group_valid__` (int) too: valid samples over all ranks in
    the steps of its group. Groups count from the epoch's start, and its last one may be short: a
    group is complete, and the optimiser's turn, when `loader.step % loader.accumulate == 0`.
    """

    # What Accelerate (1.15) asks a loader: its prepare() would build another around the dataset,
    # which divides itself already. So it leaves this one as it is, and saves and loads its state.
    _is_accelerate_prepared: Final = True
    use_stateful_dataloader: Final = True

    def __init__(
        self,
        dataset: ShardDataset | LoaderDataset,
        batch_size: int | None = None,
        num_workers: int = 0,
        collate_fn: Collate | None = None,
        *,
        meta: str = "all",
        accumulate: int | None = None,
        global_batch: int | None = None,
        agreement_timeout: float = MEETING_TIMEOUT_S,
        decode_threads: int | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        device: str | torch.device | None = None,
        device_prefetch: int = DEPTH,
        stall_s: float | None = STALL_S,
        **options: Any,
    ) -> None:
        source = _checked_source(dataset)
        batching = Batching(batch_size=batch_size, accumulate=accumulate, global_batch=global_batch)
        num_workers = checked("num_workers", num_workers, least=0, below=2**16)
        if decode_threads is not None:
            decode_threads = checked("decode_threads", decode_threads, least=0, below=2**10)
        passed_on = _checked_options(options)
        named = checked_device(device)
        _check_pins(named, passed_on)
        device_prefetch = checked("device_prefetch", device_prefetch, least=1, below=2**10)
        _check_quarantine(source, quarantine)
        _check_reseeds(source, num_workers)
        with warnings.catch_warnings():
            # torchdata's own affair, that every user would see at every start
            warnings.filterwarnings("ignore", "'set_vital' is deprecated", UserWarning)
            super().__init__(
                LoaderDataset(source),
                batch_size=batching.batch_size or 1,
                num_workers=num_workers,
                **passed_on,
            )
        self.collate_fn = collate_fn
        self.meta = checked_meta(meta)
        self._progress = Progress(
            source,
            batching=batching,
            num_workers=num_workers,
            patience_s=float(agreement_timeout),
        )
        self._account = Account(
            source.options.skip, None if quarantine is None else Quarantine(quarantine)
        )
        self._engine = Engine(
            source,
            num_workers=num_workers,
            is_grouped=batching.is_grouped,
            decode_threads=decode_threads,
            collate_fn=collate_fn,
            meta=self.meta,
            device=named,
            device_prefetch=device_prefetch,
            options=passed_on,
        )
        self._stall_s = checked_stall(stall_s)
        # DataLoader guards its attributes against change; trainers look for this one.
        object.__setattr__(self, "sampler", EpochSetter(self._progress))
        # What was given, for trainers that build a loader anew from its attributes; what holds is
        # told by the properties of these names.
        self.__dict__.update(
            batch_size=batch_size,
            accumulate=accumulate,
            global_batch=global_batch,
            quarantine=quarantine,
            device=device,
            device_prefetch=device_prefetch,
            stall_s=stall_s,
        )

    @property
    def batch_size(self) -> int:
        """Samples a rank and step; with global_batch=, what this topology makes of it."""
        return self._progress.batch.batch_size

    @batch_size.setter
    def batch_size(self, given: int) -> None:
        """What DataLoader's constructor does."""

    @property
    def accumulate(self) -> int:
        """Steps that make an optimiser step."""
        return self._progress.batch.accumulate

    @property
    def global_batch(self) -> int:
        """Samples of an optimiser step over all ranks."""
        return self._progress.global_batch

    @property
    def topology(self) -> Topology:
        """The data-parallel rank and world size."""
        return self._progress.topology

    @property
    def epoch(self) -> int:
        """The epoch being read, or to be read next."""
        return self._progress.position.epoch

    @property
    def step(self) -> int:
        """Steps of the present topology that the position lies behind the epoch's start.

        What `shardloader plan --steps` counts by. Rounded down, where steps of another size were
        taken before a resume.
        """
        return self._progress.position.consumed // self._progress.step_size

    @property
    def steps_left(self) -> int:
        """Batches that this rank has yet to receive in the present epoch."""
        if self._progress.position.empty:
            return 0
        return self._progress.schedule().dealing.num_batches(self.topology.rank)

    def __len__(self) -> int:
        """Batches that this rank gets in a whole epoch, in the present topology."""
        return self._progress.schedule(consumed=0).dealing.num_batches(self.topology.rank)

    def __iter__(self) -> Any:
        """An iterator over what is left of the epoch; it starts when its first batch is asked."""
        return LoaderIterator(self._progress, self._engine, self._account, stall_s=self._stall_s)

    def state_dict(self) -> dict[str, Any]:
        """The position, in plain JSON types: the same on every rank, for any topology.

        It counts the batches that the training loop has received. It may be taken at any time,
        changes nothing and starts no workers. Once the epoch's last batch has been received it is
        the start of the next epoch.
        """
        return self._progress.checkpoint().to_state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state; raises CheckpointError, saying what differs, if it can't."""
        self._progress.load(Checkpoint.from_state(state_dict))

    def set_epoch(self, epoch: int) -> None:
        """Read epoch `epoch` next. Epochs advance by themselves, so this is seldom needed.

        The epoch of a loaded position keeps the position, the one that the loaded state had
        finished gives an empty pass, any other starts from its beginning. While an iterator is
        giving batches it holds from the next one on.
        """
        self._progress.set_epoch(epoch)

    def skip(self, steps: int) -> None:
        """Leave out the next `steps` steps; call it alike on every rank.

        Going past the epoch's end starts the next one. Iterators that have given batches are out
        of date afterwards.
        """
        self._progress.skip(steps)

    def stats(self) -> Stats:
        """What this rank's loop received, and how it waited, since the loader was made: `Stats`."""
        catalog = self._progress.recipe.catalog
        reading = catalog.counts.plus(self._engine.counts)
        return self._account.stats(self._progress.manifest, reading)

    def log_samples(self, folder: str | os.PathLike[str], *, attempt: int | None = None) -> None:
        """Write which samples are received to `folder`, for `shardloader audit`.

        One file a rank, one unbuffered line a step. attempt: a number that grows with every
        launch; by default rank 0's clock, shared through torch.distributed. Call it on every
        rank. Raises UsageError if ranks can't agree on a number, WorldError if the folder can't
        be written.
        """
        launch = launch_number(self.topology, attempt)
        self._progress.sample_log = SampleLog(folder, self.topology, launch)


class EpochSetter:
    """`loader.sampler`: trainers call `set_epoch` on a loader's sampler."""

    def __init__(self, progress: Progress) -> None:
        # Not the loader: it holds this, and a circle would keep its workers until a collection.
        self._progress = progress

    def set_epoch(self, epoch: int) -> None:
        """`loader.set_epoch(epoch)`."""
        self._progress.set_epoch(epoch)


def _checked_source(dataset: Any) -> ShardDataset:
    """The dataset to read; raises UsageError for what is none, or makes batches of its own."""
    source = dataset.source if isinstance(dataset, LoaderDataset) else dataset
    if not isinstance(source, ShardDataset):
        raise UsageError(
            f"ShardLoader takes a ShardDataset, and got a {type(dataset).__name__}: for other "
            "datasets use torch's DataLoader"
        )
    if source.options.batch_size is not None:
        raise UsageError(
            "the loader makes the batches, and the dataset would too, of "
            f"{source.options.batch_size}: give batch_size= to ShardLoader alone"
        )
    return source


def _check_pins(device: torch.device | None, options: Mapping[str, Any]) -> None:
    """Raise UsageError for options of DataLoader that contradict device=."""
    if device is None or device.type == "cpu":
        return
    if options.get("pin_memory", True) is not True:
        raise UsageError(
            f"device='{device}' copies from pinned memory, and pin_memory="
            f"{options['pin_memory']!r} was given: leave pin_memory= out, or leave out device= and "
            "move the batches yourself"
        )
    if options.get("pin_memory_device"):
        raise UsageError(
            f"device='{device}' says for which device memory is pinned: leave out pin_memory_device"
        )


def _check_reseeds(source: ShardDataset, num_workers: int) -> None:
    """Raise UsageError if reseed=True would seed the training loop's own generators."""
    if source.options.reseed and num_workers == 0:
        raise UsageError(
            "reseed=True seeds the global generators, which in the main process belong to the "
            "training loop: use num_workers >= 1, or a transform that takes rng"
        )


def _check_quarantine(source: ShardDataset, quarantine: Any) -> None:
    """Raise UsageError for a quarantine into which nothing would come."""
    if quarantine is not None and source.options.skip is None:
        raise UsageError(
            "quarantine= lists the bad samples that are skipped, and this dataset stops at the "
            'first: give ShardDataset on_error="skip", or leave it out'
        )
    if quarantine is not None and Path(quarantine).exists() and not Path(quarantine).is_dir():
        raise UsageError(f"quarantine= is a folder, made when needed, and {quarantine} is a file")


def _checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """What to pass on to DataLoader; raises UsageError for what can't be taken."""
    passed_on = {}
    for name, value in options.items():
        if name in PASSED_ON:
            passed_on[name] = value
        elif name in REFUSED:
            accepted, instead = REFUSED[name]
            if not any(value is each for each in accepted):
                raise UsageError(f"ShardLoader does not take {name}={value!r}: {instead}")
        else:
            raise UsageError(
                f"ShardLoader has no option {name}=: its own are dataset, batch_size, "
                "num_workers, collate_fn, meta, accumulate, global_batch, agreement_timeout, "
                "decode_threads, quarantine, device, device_prefetch and stall_s, "
                f"and of DataLoader's {', '.join(PASSED_ON)}"
            )
    return passed_on
