"""How is the line of all samples cut into lanes, and where does a position lie?

The grid is three constants, `ranks Q`, `workers M`, `batch B`. There are `C = N // (Q*B)`
canonical batches; lane (q, m) is the stretch of the line that worker m of rank q reads when the
topology is the grid itself, and the lanes lie on the line in the order q*M + m. What is left,
fewer samples than one step, is the tail. Everything here is arithmetic on int64 arrays.

Positions take one sample of each lane-rank in turn (`turns` says in which): position p < C*Q*B is
element e = p // Q of the lane-rank whose turn is p % Q, that is place e % B of canonical batch
j = e // B, which worker j % M makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardloader.errors import UsageError
from shardloader.order.integers import checked, shown
from shardloader.order.turns import turns

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_GRID = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The constants that cut the line into lanes.

    ranks: lane-ranks Q; workers: DataLoader workers a rank M (1 for `num_workers=0`); batch:
    samples a rank and step B. Raises UsageError if one is not a whole number of at least 1.
    """

    ranks: int
    workers: int
    batch: int

    def __post_init__(self) -> None:
        for name in ("ranks", "workers", "batch"):
            value = checked(f"Grid({name}=)", getattr(self, name), least=1, below=MAX_GRID)
            object.__setattr__(self, name, value)
        if self.ranks * self.workers * self.batch >= MAX_GRID**2:
            raise UsageError(f"a grid holds fewer than 2**62 places, and {self} holds more")

    @property
    def step(self) -> int:
        """Samples of one step over all lane-ranks, Q*B."""
        return self.ranks * self.batch

    def to_list(self) -> list[int]:
        """`[ranks, workers, batch]`, as a checkpoint holds it."""
        return [self.ranks, self.workers, self.batch]

    @classmethod
    def from_list(cls, values: Any) -> Grid:
        """The grid of `[ranks, workers, batch]`; raises UsageError for anything else."""
        if not isinstance(values, (list, tuple)) or len(values) != 3:
            raise UsageError(
                f"a grid is three integers [ranks, workers, batch], not {shown(values)}"
            )
        ranks, workers, batch = values
        return cls(ranks=ranks, workers=workers, batch=batch)


def default_grid(*, world_size: int, num_workers: int, batch_size: int, shuffled: bool) -> Grid:
    """The grid that a topology makes: its own, or unshuffled one that keeps the dataset's order.

    num_workers: DataLoader workers a rank, 0 for none.
    """
    if shuffled:
        return Grid(ranks=world_size, workers=max(1, num_workers), batch=batch_size)
    return Grid(ranks=1, workers=1, batch=world_size * batch_size)


class Places(NamedTuple):
    """Where positions lie on the line: int64 arrays of one shape.

    lane_start, lane_stop: the lane's stretch of the line; at: the place on the line before the
    window's shuffle. In the tail the lane is the single place itself, which nothing can shuffle.
    """

    lane_start: NDArray[np.int64]
    lane_stop: NDArray[np.int64]
    at: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """A line of `num_samples`, cut by a grid."""

    grid: Grid
    num_samples: int

    @property
    def num_batches(self) -> int:
        """Canonical batches C: whole steps of the grid in the line."""
        return self.num_samples // self.grid.step

    @property
    def tail_start(self) -> int:
        """The first position that lies in no lane."""
        return self.num_batches * self.grid.step

    @property
    def longest(self) -> int:
        """Samples of the longest lane."""
        return self.grid.batch * -(-self.num_batches // self.grid.workers)

    def extents(
        self, rank: NDArray[np.int64], worker: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where lanes (q, m) start on the line, and their lengths: int64, broadcast together."""
        even, extra = divmod(self.num_batches, self.grid.workers)
        before = rank * self.num_batches + worker * even + np.minimum(worker, extra)
        return before * self.grid.batch, (even + (worker < extra)) * self.grid.batch

    def places(self, positions: NDArray[np.int64]) -> Places:
        """Where each position lies before its lane is shuffled."""
        grid, tail_start = self.grid, self.tail_start
        element, turn_in_round = np.divmod(positions, grid.ranks)
        rank = turns(grid.ranks).rank[turn_in_round]
        batch, in_batch = np.divmod(element, grid.batch)
        turn, worker = np.divmod(batch, grid.workers)
        start, length = self.extents(rank, worker)
        stop = start + length
        at = start + turn * grid.batch + in_batch
        in_tail = positions >= tail_start
        if in_tail.any():
            start = np.where(in_tail, positions, start)
            stop = np.where(in_tail, positions + 1, stop)
            at = np.where(in_tail, positions, at)
        return Places(start, stop, at)

    def lane_numbers(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The lane q*M + m of each position; Q*M for the tail. int64, the positions' shape."""
        grid = self.grid
        element, turn_in_round = np.divmod(positions, grid.ranks)
        rank = turns(grid.ranks).rank[turn_in_round]
        lane = rank * grid.workers + element // grid.batch % grid.workers
        return np.where(positions >= self.tail_start, grid.ranks * grid.workers, lane)
