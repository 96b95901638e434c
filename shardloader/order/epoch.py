"""Which sample stands at a position?

`Order` holds the constants of a run's order; `Order.one_pass(number)` is the order of one pass
over the data, a pure function position -> (shard, sample) for the positions 0 .. N-1, at any
position in time that does not depend on it.

Without `steps_per_epoch` an epoch is a pass. With it, epoch e is P = steps * Q * B virtual
positions from e*P on, virtual position v lies in pass v // N at v % N, and passes, not epochs,
key the permutations; every pass is dealt whole before the next begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shardloader.errors import UsageError
from shardloader.order.grid import Grid, Lanes
from shardloader.order.integers import MAX_SEED, checked
from shardloader.order.permutation import SHARDS, permutation
from shardloader.order.search import edges_at_most
from shardloader.order.window import shuffled

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from shardloader.order.window import BlockMemo

MAX_POSITIONS = 2**62  # positions are int64; what is added to them stays below that


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Where samples lie: int64 arrays of one shape.

    shard: number of the shard in the manifest; sample: number within the shard; index: number
    within the whole dataset, in the manifest's order, which never changes.
    """

    shard: NDArray[np.int64]
    sample: NDArray[np.int64]
    index: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """All samples end to end, in the order of the pass's shards.

    shards: the shard at each place of the permutation; starts: the first place on the line of
    each of them, and the line's length; firsts: the dataset's number of the first sample of each
    shard, in manifest order. int64 [shards], [shards + 1], [shards].
    """

    shards: NDArray[np.int64]
    starts: NDArray[np.int64]
    firsts: NDArray[np.int64]

    def locate(self, places: NDArray[np.int64]) -> Samples:
        """The samples at places of the line."""
        if places.size == 0:
            return Samples(places, places, places)
        # Neighbouring places lie in few shards: search only between the ends.
        low = int(np.searchsorted(self.starts, places.min(), side="right")) - 1
        high = int(np.searchsorted(self.starts, places.max(), side="right"))
        turn = low - 1 + edges_at_most(self.starts[low : high + 1], places)
        shard = self.shards[turn]
        sample = places - self.starts[turn]
        return Samples(shard, sample, self.firsts[shard] + sample)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassOrder:
    """The order of one pass over the data."""

    line: Line
    lanes: Lanes
    window: int | None
    key: tuple[int, int]

    def locate(self, positions: NDArray[np.int64], memo: BlockMemo | None = None) -> Samples:
        """The samples at positions 0 .. N-1 of this pass, in the positions' shape.

        memo: of the caller's earlier calls, where it goes from position to position.
        """
        places = self.lanes.places(positions.ravel())
        at = places.at
        if self.window is not None:
            at = shuffled(
                places,
                window=self.window,
                longest=self.lanes.longest,
                key=self.key,
                memo=memo,
            )
        return self.line.locate(at.reshape(positions.shape))


def sample_counts(counts: ArrayLike) -> NDArray[np.int64]:
    """Samples a shard as a read-only int64 array; raises UsageError for anything else."""
    array = np.asarray(counts)
    if array.size == 0:
        array = np.zeros(0, dtype=np.int64)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise UsageError(
            f"counts are one whole number of samples a shard, and were an array of {array.dtype} "
            f"with the shape {array.shape}"
        )
    if array.size and (int(array.min()) < 0 or float(array.sum(dtype=np.float64)) >= MAX_POSITIONS):
        raise UsageError(
            "a shard holds at least 0 samples and a dataset fewer than 2**62, and these counts "
            f"reach from {array.min()} to {array.max()}"
        )
    array = array.astype(np.int64)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """The constants that define a run's order.

    counts: samples of each shard, int64 [shards]; seed: 0 <= seed < 2**63; window: samples of
    the shuffle's window, None for the dataset's own order; grid; steps_per_epoch: None for an
    epoch of one pass. Raises UsageError for values that make no order.
    """

    counts: NDArray[np.int64]
    seed: int
    window: int | None
    grid: Grid
    steps_per_epoch: int | None = None
    num_samples: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", sample_counts(self.counts))
        object.__setattr__(self, "seed", checked("seed", self.seed, least=0, below=MAX_SEED))
        object.__setattr__(self, "num_samples", int(self.counts.sum()))
        if self.window is not None:
            object.__setattr__(self, "window", checked("window", self.window, least=1))
        if self.steps_per_epoch is not None:
            steps = checked("steps_per_epoch", self.steps_per_epoch, least=1, below=2**40)
            object.__setattr__(self, "steps_per_epoch", steps)
            if self.num_samples == 0:
                raise UsageError(
                    f"steps_per_epoch={steps} goes round and round the data, and this dataset "
                    "holds no sample: leave it out, or look why the shards are empty"
                )
            if self.epoch_length >= MAX_POSITIONS:
                raise UsageError(
                    f"an epoch holds fewer than 2**62 samples, and steps_per_epoch={steps} steps "
                    f"of {self.grid.step} are more: give fewer steps"
                )

    @property
    def lanes(self) -> Lanes:
        """The line, cut by the grid."""
        return Lanes(grid=self.grid, num_samples=self.num_samples)

    @property
    def epoch_length(self) -> int:
        """Positions of one epoch."""
        if self.steps_per_epoch is None:
            return self.num_samples
        return self.steps_per_epoch * self.grid.step

    def first_virtual(self, epoch: int) -> int:
        """The virtual position at which an epoch begins: pass * N + position in the pass.

        Raises UsageError unless `epoch` is a whole number of at least 0, and small enough for
        its positions to be counted in int64.
        """
        below = MAX_POSITIONS // max(1, self.epoch_length)
        return checked("epoch", epoch, least=0, below=below) * self.epoch_length

    def line(self, number: int) -> Line:
        """The line of pass `number`: shards by a permutation drawn from seed + number."""
        num_shards = len(self.counts)
        if self.window is None:
            shards = np.arange(num_shards, dtype=np.int64)
        else:
            shards = permutation((self.seed + number, 0), SHARDS, num_shards)
        starts = np.zeros(num_shards + 1, dtype=np.int64)
        np.cumsum(self.counts[shards], out=starts[1:])
        firsts = np.cumsum(self.counts) - self.counts
        return Line(shards=shards, starts=starts, firsts=firsts)

    def one_pass(self, number: int) -> PassOrder:
        """The order of pass `number`."""
        return PassOrder(
            line=self.line(number),
            lanes=self.lanes,
            window=self.window,
            key=(self.seed, number),
        )
