"""What is saved, and which states may be loaded?

A checkpoint is one integer, the positions consumed of an epoch, and the constants that define the
order. It is the same on every rank and for every topology, and has the same keys at every moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from shardloader.errors import CheckpointError, UsageError
from shardloader.order.grid import Grid
from shardloader.order.integers import MAX_SEED, checked, shown

if TYPE_CHECKING:
    from shardloader.order.epoch import Order

FORMAT_VERSION: Final = 1
KEYS: Final = (
    "version",
    "dataset",
    "seed",
    "epoch",
    "consumed",
    "grid",
    "window",
    "steps_per_epoch",
    "global_batch",
)
MAY_LACK: Final = ("global_batch",)  # the first states of version 1 do not say it

# What defines the order and may not differ between a state and the loader that takes it: the
# field, the argument that sets it, and what to do when it differs.
IDENTITY: Final = (
    (
        "dataset",
        "dataset",
        (
            "load it into a loader of the dataset that it was made with, or if shards were "
            "appended since, give ShardDataset on_change='next-epoch' and read it by ShardLoader"
        ),
    ),
    ("seed", "seed=", "make the loader with the state's seed"),
    ("window", "shuffle=", "make the loader with the state's window"),
    ("steps_per_epoch", "steps_per_epoch=", "make the loader with the state's value"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A position in a run's order.

    dataset: the manifest's digest; seed; epoch; consumed: positions that training has taken in
    the epoch; grid; window: samples, None for no shuffle; steps_per_epoch: None for an epoch of
    one pass; global_batch: samples of an optimiser step over all ranks when the state was taken,
    None where it is not known. Raises CheckpointError for values that can't be.
    """

    dataset: str
    seed: int
    epoch: int
    consumed: int
    grid: Grid
    window: int | None
    steps_per_epoch: int | None
    global_batch: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.dataset, str):
            raise CheckpointError(f"a state's dataset is a digest, and was {self.dataset!r}")
        try:
            self._check_number("seed", least=0, below=MAX_SEED)
            self._check_number("epoch", least=0, below=2**62)
            self._check_number("consumed", least=0)
            for name in ("window", "steps_per_epoch", "global_batch"):
                if getattr(self, name) is not None:
                    self._check_number(name, least=1)
        except UsageError as error:
            raise CheckpointError(f"not a state of a loader: {error}") from None

    def _check_number(self, name: str, *, least: int, below: int = 2**63) -> None:
        number = checked(name, getattr(self, name), least=least, below=below)
        object.__setattr__(self, name, number)

    def to_state(self) -> dict[str, Any]:
        """Plain JSON types, fresh at each call, with the keys of KEYS."""
        return {
            "version": FORMAT_VERSION,
            "dataset": self.dataset,
            "seed": self.seed,
            "epoch": self.epoch,
            "consumed": self.consumed,
            "grid": self.grid.to_list(),
            "window": self.window,
            "steps_per_epoch": self.steps_per_epoch,
            "global_batch": self.global_batch,
        }

    @classmethod
    def from_state(cls, state: Any) -> Checkpoint:
        """The checkpoint of a state; raises CheckpointError in words for anything else."""
        if not isinstance(state, Mapping):
            raise CheckpointError(
                "a state is the mapping that state_dict() returned, and this is a "
                f"{type(state).__name__}"
            )
        _check_version(state)
        missing = [key for key in KEYS if key not in state and key not in MAY_LACK]
        unknown = sorted(str(key) for key in state if key not in KEYS)
        if missing or unknown:
            raise CheckpointError(
                f"a state has the keys {', '.join(KEYS)}; this one lacks {missing or 'none'} and "
                f"has {unknown or 'none'} besides: load what ShardLoader.state_dict() returned"
            )
        try:
            grid = Grid.from_list(state["grid"])
        except UsageError as error:
            raise CheckpointError(f"not a state of a loader: {error}") from None
        values: dict[str, Any] = {
            key: state.get(key) for key in KEYS if key not in {"version", "grid"}
        }
        return cls(grid=grid, **values)

    def check_matches(self, other: Checkpoint) -> None:
        """Raise CheckpointError if this state defines another order than a loader's `other`."""
        for name, argument, way_out in IDENTITY:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise CheckpointError(
                    f"a state resumes the order that it was made in, and it differs in "
                    f"{argument.rstrip('=')}: the state has {name} {mine!r}, this loader "
                    f"{theirs!r}. To go on, {way_out}; to start afresh, don't load it"
                )

    def check_fits(self, order: Order) -> None:
        """Raise CheckpointError if `order` has no such epoch, or it is shorter than consumed."""
        try:
            order.first_virtual(self.epoch)
        except UsageError as error:
            raise CheckpointError(f"the state is damaged: {error}") from None
        if self.consumed > order.epoch_length:
            raise CheckpointError(
                f"an epoch of this dataset has {order.epoch_length} positions, and the state has "
                f"consumed {self.consumed}: it is damaged, or was not made by this dataset"
            )

    def at(self, *, epoch: int, consumed: int) -> Checkpoint:
        """The same order at another position."""
        return replace(self, epoch=epoch, consumed=consumed)


def _check_version(state: Mapping[Any, Any]) -> None:
    version = state.get("version")
    if version is None:
        raise CheckpointError(
            "a state of ShardLoader names its format version, and this one, with the keys "
            f"{sorted(map(str, state))[:8]}, does not: load what ShardLoader.state_dict() returned"
        )
    if type(version) is not int or version != FORMAT_VERSION:
        raise CheckpointError(
            f"this release reads states of format version {FORMAT_VERSION}, and this one has "
            f"version {shown(version)}: load it with the release that wrote it, or a newer one"
        )


def starting_grid(
    grid: Grid,
    present: Grid,
    *,
    given: Grid | None,
    consumed: int,
    steps_per_epoch: int | None,
    global_batch: int | None = None,
) -> Grid:
    """The grid of an epoch that goes on at `consumed`.

    global_batch: samples of an optimiser step, where steps are grouped to one.

    In mid-epoch, and for ever with `steps_per_epoch` (whose passes run on over epochs), the grid
    is the one that the order began with. An epoch that starts with another global batch than the
    grid's takes `given` (the argument grid=), or the present topology. Where steps are grouped, a
    grid whose steps make whole groups is kept: then each optimiser step has the same samples in
    every topology of that global batch.
    """
    if consumed > 0 or steps_per_epoch is not None:
        return grid
    if given is not None:
        return given
    fits = grid.step == present.step if global_batch is None else global_batch % grid.step == 0
    return grid if fits else present
