"""The public loader: this rank's batches, in an order that a checkpoint of one integer resumes.

It is a StatefulDataLoader to those who ask. What moves the position is in `progress`, what runs
workers in `engine`; here are the options, and the face that trainers see.
"""

from __future__ import annotations

import warnings
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from shardloader.dataset.shard_dataset import ShardDataset
from shardloader.distributed.rendezvous import MEETING_TIMEOUT_S
from shardloader.errors import UnsupportedError, UsageError
from shardloader.loader.device import DEPTH
from shardloader.loader.engine import Engine
from shardloader.loader.iterator import LoaderIterator
from shardloader.loader.log import SampleLog, launch_number
from shardloader.loader.options import DEFAULT, LoaderOptions
from shardloader.loader.progress import Progress
from shardloader.loader.quarantine import Quarantine
from shardloader.loader.stall import STALL_S
from shardloader.loader.stats import Account
from shardloader.loader.stream import LoaderDataset
from shardloader.order.checkpoint import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    import torch

    from shardloader.dataset.recipe import Collate
    from shardloader.loader.stats import Stats
    from shardloader.order.topology import Topology


class ShardLoader(StatefulDataLoader):  # type: ignore[misc]  # torchdata has no types
    """Batches of a ShardDataset for this rank.

    dataset; batch_size: samples a rank and step, "default" for 1; num_workers: worker processes, 0
    for none; collate_fn: list of samples -> batch, by default arrays stacked and all else in
    lists; meta: which `__...__` entries a batch carries, "all", "mask" or "none". accumulate: steps
    whose gradients make one optimiser step. global_batch: samples of an optimiser step over all
    ranks; batch_size, then the most that a rank takes at once (its whole share for None or
    "default"), and accumulate follow from it and from the number of ranks. agreement_timeout:
    seconds that ranks wait for each other before an epoch, to compare what they are about to read,
    where torch.distributed is initialised.
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
    shuffle, drop_last, in_order=False, and batch_size=None, torch's word for no batches, naming
    what to use instead; at the first iter, len or state_dict for a global_batch that the ranks
    can't share evenly.

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
        batch_size: int | Literal["default"] | None = DEFAULT,
        num_workers: int = 0,
        collate_fn: Collate | None = None,
        *,
        meta: str = "all",
        accumulate: int | None = None,
        global_batch: int | None = None,
        agreement_timeout: float = MEETING_TIMEOUT_S,
        decode_threads: int | None = None,
        quarantine: str | PathLike[str] | None = None,
        device: str | torch.device | None = None,
        device_prefetch: int = DEPTH,
        stall_s: float | None = STALL_S,
        **options: Any,
    ) -> None:
        asked = LoaderOptions(
            source=_checked_source(dataset),
            batch_size=batch_size,
            num_workers=num_workers,
            collate_fn=collate_fn,
            meta=meta,
            accumulate=accumulate,
            global_batch=global_batch,
            agreement_timeout=agreement_timeout,
            decode_threads=decode_threads,
            quarantine=quarantine,
            device=device,
            device_prefetch=device_prefetch,
            stall_s=stall_s,
            passed_on=options,
        )
        with warnings.catch_warnings():
            # torchdata's own affair, that every user would see at every start
            warnings.filterwarnings("ignore", "'set_vital' is deprecated", UserWarning)
            super().__init__(
                LoaderDataset(asked.source),
                batch_size=asked.batching.batch_size or 1,
                num_workers=asked.num_workers,
                **asked.passed_on,
            )
        self.collate_fn = asked.collate_fn
        self.meta = asked.meta
        self._progress = Progress(
            asked.source,
            batching=asked.batching,
            num_workers=asked.num_workers,
            patience_s=asked.agreement_timeout,
        )
        listed = None if asked.quarantine is None else Quarantine(asked.quarantine)
        self._account = Account(asked.source.options.skip, listed)
        self._engine = Engine(asked)
        self._stall_s = asked.stall_s
        # DataLoader guards its attributes against change; trainers look for this one.
        object.__setattr__(self, "sampler", EpochSetter(self._progress))
        # What holds is told by the properties of these names.
        self.__dict__.update(asked.for_trainers)

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

    def __getitem__(self, index: object) -> NoReturn:
        """Refused, in words for those who made a DataLoader of a loader."""
        raise UnsupportedError(
            "a ShardLoader gives its batches in order, and none by number. If a DataLoader was "
            "made of it: it is one itself, with num_workers=, collate_fn=, pin_memory= and so on "
            "of its own: iterate it. For samples by number: loader.dataset.source.as_map()"
        )

    def __copy__(self) -> Self:
        """The same position and workers under another name, as copies that share all are."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refused: pickled or copied deeply it would be a second reader of the same position."""
        raise UnsupportedError(
            "a ShardLoader belongs to its process, with its workers and its place among the ranks, "
            "and is not pickled or copied deeply: send the dataset (loader.dataset.source) and "
            "loader.state_dict(), and there make a ShardLoader and load the state"
        )

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

    def log_samples(self, folder: str | PathLike[str], *, attempt: int | None = None) -> None:
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
        instead = "for other datasets use torch's DataLoader"
        if isinstance(dataset, str | PathLike):
            instead = f"write ShardLoader(ShardDataset({str(dataset)!r}))"
        elif isinstance(dataset, DataLoader):
            instead = "give the ShardDataset itself, or iterate that loader"
        raise UsageError(
            f"ShardLoader takes a ShardDataset, and got a {type(dataset).__name__}: {instead}"
        )
    if source.options.batch_size is not None:
        raise UsageError(
            "the loader makes the batches, and the dataset would too, of "
            f"{source.options.batch_size}: give batch_size= to ShardLoader alone"
        )
    return source
