"""What was asked for: the options of a dataset, checked and frozen.

A recipe holds no open file and no position, so it travels to workers whichever way they start.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

from shardloader.errors import UsageError
from shardloader.order.checkpoint import Checkpoint
from shardloader.order.dealing import checked_even
from shardloader.order.epoch import Order
from shardloader.order.grid import Grid
from shardloader.order.integers import MAX_SEED, checked
from shardloader.order.topology import Topology
from shardloader.reading.cache import Cache, cache_for
from shardloader.reading.catalog import earlier

if TYPE_CHECKING:
    from shardloader.dataset.skipping import Skip
    from shardloader.dataset.transform import Transform
    from shardloader.order.window import Shuffle
    from shardloader.reading.catalog import Catalog
    from shardloader.reading.decode import DecodeTable

Source = str | PathLike[str] | Sequence[str | PathLike[str]]
Collate = Callable[[list[Any]], Any]

GROUP_VALID: Final = "__group_valid__"  # of loaders alone that group steps
NEXT_EPOCH: Final = "next-epoch"
META: Final = {
    "all": ("__valid__", "__global_valid__", GROUP_VALID, "__world_size__", "__index__", "__key__"),
    "mask": ("__valid__", "__global_valid__", GROUP_VALID, "__world_size__"),
    "none": (),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """What was asked for, each as it is used. See `ShardDataset` for the meanings.

    fields: None for all of them; skip: None where a bad sample stops the run; batch_size: None for
    samples. Raises UsageError for options that
    make no sense, before anything is opened.
    """

    source: Source = field(repr=False)
    seed: int
    shuffle: Shuffle | None
    fields: frozenset[str] | None
    decode: DecodeTable
    transform: Transform | None
    reseed: bool
    even: str
    skip: Skip | None
    topology: Topology | None
    grid: Grid | None
    steps_per_epoch: int | None
    index_dir: str | PathLike[str] | None
    cache: Cache | str | None
    storage_options: Mapping[str, Any] | None = field(repr=False)
    on_change: str
    batch_size: int | None
    collate_fn: Collate | None
    meta: str

    def __post_init__(self) -> None:
        checked_even(self.even)
        checked_meta(self.meta)
        if self.on_change not in {"raise", NEXT_EPOCH}:
            raise UsageError(
                "on_change= is 'raise' (a state of another dataset is refused) or 'next-epoch' (an "
                "epoch that began before the dataset grew is ended on what it had), and was "
                f"{self.on_change!r}"
            )
        if self.on_change == NEXT_EPOCH and self.steps_per_epoch is not None:
            raise UsageError(
                "on_change='next-epoch' takes what was appended when an epoch ends, and an endless "
                "order (steps_per_epoch=) has no place for it: leave one of them out"
            )
        self._take("seed", least=0, below=MAX_SEED)
        if self.steps_per_epoch is not None:
            self._take("steps_per_epoch", least=1)
        if self.batch_size is not None:
            self._take("batch_size", least=1, below=2**31)
        if self.topology is not None and not isinstance(self.topology, Topology):
            raise UsageError(
                f"topology= takes a Topology, and was {self.topology!r}: write "
                "Topology(rank=..., world_size=...), Topology.from_group or Topology.from_mesh"
            )
        if self.grid is not None and not isinstance(self.grid, Grid):
            raise UsageError(f"grid= takes a Grid(ranks=, workers=, batch=), and was {self.grid!r}")
        if self.storage_options is not None and not isinstance(self.storage_options, Mapping):
            raise UsageError(
                "storage_options= takes a mapping of fsspec's options, such as {'anon': True}, and "
                f"was given a {type(self.storage_options).__name__}"
            )
        if not isinstance(self.cache, Cache):
            cache_for(self.cache)

    def _take(self, name: str, *, least: int, below: int = 2**63) -> None:
        number = checked(name, getattr(self, name), least=least, below=below)
        object.__setattr__(self, name, number)

    @property
    def window(self) -> int | None:
        """The shuffle's window in samples, None without a shuffle."""
        return None if self.shuffle is None else self.shuffle.window


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recipe:
    """The options and the shards that they are for."""

    options: Options
    catalog: Catalog

    def order(self, grid: Grid) -> Order:
        """The order of this dataset on a grid."""
        return Order(
            counts=self.catalog.manifest.counts,
            seed=self.options.seed,
            window=self.options.window,
            grid=grid,
            steps_per_epoch=self.options.steps_per_epoch,
        )

    def earlier(self, digest: str) -> Recipe | None:
        """The same for the dataset as it was before it was appended to; None if that is unknown."""
        catalog = earlier(self.catalog, digest, keep_damaged=self.options.skip is not None)
        return None if catalog is None else replace(self, catalog=catalog)

    def start_of(self, epoch: int, grid: Grid, *, global_batch: int | None = None) -> Checkpoint:
        """The checkpoint of an epoch's beginning; global_batch: samples of an optimiser step."""
        return Checkpoint(
            dataset=self.catalog.manifest.digest,
            seed=self.options.seed,
            epoch=epoch,
            consumed=0,
            grid=grid,
            window=self.options.window,
            steps_per_epoch=self.options.steps_per_epoch,
            global_batch=global_batch,
        )


def checked_fields(fields: Any) -> frozenset[str] | None:
    """The fields asked for, lower-cased as they are read; raises UsageError for a bare string."""
    if fields is None:
        return None
    is_list = isinstance(fields, Iterable) and not isinstance(fields, str | Mapping)
    given = list(fields) if is_list else []  # once: it may be a generator
    names = [name for name in given if isinstance(name, str)]
    if not is_list or len(names) < len(given):
        raise UsageError(
            f"fields= takes a list of field names such as ('jpg', 'cls'), and was {fields!r}"
        )
    return frozenset(name.lower().lstrip(".") for name in names)


def checked_meta(meta: Any) -> str:
    """`meta` if it is one of META; raises UsageError."""
    if meta not in META:
        raise UsageError(f"meta= is one of {', '.join(map(repr, META))}, and was {meta!r}")
    return str(meta)


def check_pickles(arguments: Mapping[str, Any], *, how: str) -> None:
    """Say which argument can't travel to workers that do not fork; raises UsageError."""
    for name, value in arguments.items():
        error = pickling_error(value)
        if error is not None:
            raise UsageError(
                f"workers started by {how} get the dataset by pickle, and {name}= can't be "
                f"pickled ({error}): give a function of a module instead of a lambda or an inner "
                "one, or start workers by fork"
            ) from error


def pickling_error(value: Any) -> Exception | None:
    """Why a value can't be pickled, or None."""
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return error
    return None
