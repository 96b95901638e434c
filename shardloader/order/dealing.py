"""Who reads which positions at which step?

Step s takes the next `G = world_size * batch_size` positions that are left, sorted by lane-rank
q and, within it, as they come. Rank r takes slots r*b to (r+1)*b - 1 of them, so that each rank
stays with as few lanes as can be. The sort is never carried out: how many of the positions a..b-1
belong to the first lane-ranks is looked up (`turns.Counts`), and a slot's lane-rank is found by
bisection.

The last step deals what is left evenly, and `even` says what fills it up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shardloader.errors import UsageError
from shardloader.order.integers import checked, shown
from shardloader.order.turns import Counts, turns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.order.grid import Lanes

EVEN_POLICIES: Final = {
    "pad": "the last step is filled up with repeated samples, each marked invalid",
    "drop": "what does not fill a step on every rank is left out",
    "join": "the last step may be shorter on some ranks, and empty; for DDP's Join",
}


def checked_even(even: Any) -> str:
    """`even` if it is one of the policies; raises UsageError that lists them."""
    if not isinstance(even, str) or even not in EVEN_POLICIES:
        meanings = "; ".join(f"{name!r}: {text}" for name, text in EVEN_POLICIES.items())
        raise UsageError(f"even= is one of {meanings}. It was {shown(even)}")
    return even


class Slots(NamedTuple):
    """What one rank takes at some steps.

    number: the pass of each slot; position: the position in that pass; valid: False where the
    slot only fills the batch up. Shape [steps, batch_size], int64, int64 and bool. size: slots
    that the rank's batch really has, int64 [steps]; less than batch_size only under "join".
    """

    number: NDArray[np.int64]
    position: NDArray[np.int64]
    valid: NDArray[np.bool_]
    size: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """The steps of what is left of one epoch.

    lanes: how a pass is cut; first: the epoch's first virtual position; length: its positions;
    consumed: how many of them training has taken; world_size, batch_size: the present topology;
    even: a policy of EVEN_POLICIES; accumulate: steps that make an optimiser step. Steps count
    from 0 at `consumed`, and groups of `accumulate` steps from the epoch's start.
    """

    lanes: Lanes
    first: int
    length: int
    consumed: int
    world_size: int
    batch_size: int
    even: str
    accumulate: int = 1

    def __post_init__(self) -> None:
        for name, least in (
            ("world_size", 1),
            ("batch_size", 1),
            ("accumulate", 1),
            ("consumed", 0),
        ):
            below = 2**63 if name == "consumed" else 2**31
            value = checked(name, getattr(self, name), least=least, below=below)
            object.__setattr__(self, name, value)
        checked_even(self.even)
        if self.accumulate > 1 and self.even == "join":
            raise UsageError(
                'under even="join" a rank may have no last step, and its share of the group would '
                f"be lost with it: with {self.accumulate} steps an optimiser step use "
                'even="pad" or "drop"'
            )
        if self.consumed > self.length:
            raise UsageError(
                f"an epoch of {self.length} positions can't have {self.consumed} consumed: the "
                "checkpoint is of other data"
            )

    @property
    def step_size(self) -> int:
        """Positions of a full step over all ranks, G."""
        return self.world_size * self.batch_size

    @property
    def num_full(self) -> int:
        """Steps in which every slot of every rank is valid."""
        return (self.length - self.consumed) // self.step_size

    @property
    def rest(self) -> int:
        """Positions left after the full steps, fewer than a step."""
        return (self.length - self.consumed) % self.step_size

    @property
    def num_steps(self) -> int:
        """Steps that are left, the last short or padded one included."""
        return self.num_full + (self.rest > 0 and self.even != "drop")

    def num_batches(self, rank: int) -> int:
        """Batches that a rank gets: every step, but under "join" perhaps not the last."""
        short = self.even == "join" and self.rest > 0 and self._share(rank)[1] == 0
        return self.num_steps - short

    @property
    def num_omitted(self) -> int:
        """Positions that no rank reads, under "drop"."""
        return self.rest if self.even == "drop" else 0

    @property
    def num_pads(self) -> int:
        """Invalid slots over all ranks, under "pad"."""
        return self.step_size - self.rest if self.rest and self.even == "pad" else 0

    def consumed_after(self, steps: int) -> int:
        """Positions consumed once `steps` more steps have been received."""
        after = self.consumed + steps * self.step_size
        least = self.step_size if self.even == "drop" else 1  # positions that make one more step
        return after if self.length - after >= least else self.length

    def global_valid(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Valid samples over all ranks at each step, int64, the steps' shape."""
        return np.where(steps < self.num_full, self.step_size, self.rest)

    def group_valid(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Valid samples over all ranks in the group of each step, int64, the steps' shape.

        The epoch's last group may be short, and so may the first after a position in mid-group.
        """
        before = self.consumed // self.step_size % self.accumulate  # steps of the first group
        start = (steps + before) // self.accumulate * self.accumulate - before
        stop = np.minimum(start + self.accumulate, self.num_steps)
        last = np.minimum(stop * self.step_size, self.length - self.consumed)
        valid: NDArray[np.int64] = last - np.maximum(start, 0) * self.step_size
        return valid

    def slots(self, steps: NDArray[np.int64], rank: int) -> Slots:
        """What `rank` takes at `steps` (int64 [n], each below num_steps)."""
        steps = np.asarray(steps, dtype=np.int64)
        rank = checked("rank", rank, least=0, below=self.world_size)
        if steps.size and not 0 <= steps.min() <= steps.max() < self.num_steps:
            raise UsageError(
                f"steps lie in 0 .. {self.num_steps - 1}, and these reach from {steps.min()} to "
                f"{steps.max()}"
            )
        start = self.consumed + steps * self.step_size
        stop = np.minimum(start + self.step_size, self.length)
        place = np.arange(self.batch_size, dtype=np.int64)
        slot = np.broadcast_to(rank * self.batch_size + place, (len(steps), self.batch_size))
        valid = np.ones(slot.shape, dtype=bool)
        size = np.full(len(steps), self.batch_size, dtype=np.int64)
        last = np.flatnonzero(steps >= self.num_full)
        if last.size:
            slot = slot.copy()
            first, share = self._share(rank)
            valid[last] = place < share
            if self.even == "join":
                size[last] = share
            # A pad repeats this rank's own samples in turn; a rank without any, the others'.
            slot[last] = first + place % share if share else (first + place) % self.rest
        number, position = self._positions(
            self.first + start[:, None], self.first + stop[:, None], slot
        )
        return Slots(number, position, valid, size)

    def _share(self, rank: int) -> tuple[int, int]:
        """The first slot and the number of slots of `rank` in the last, partial step."""
        each, more = divmod(self.rest, self.world_size)
        return rank * each + min(rank, more), each + (rank < more)

    def _positions(
        self, start: NDArray[np.int64], stop: NDArray[np.int64], slot: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pass and position of the slots of steps that take virtual positions start..stop-1."""
        one_pass = self.lanes.num_samples
        number = (start + slot) // one_pass
        # A step may straddle passes, which are dealt one after another; most don't, and then one
        # column says where all slots of a step lie.
        of = number if (number != number[:, :1]).any() else number[:, :1]
        begin = of * one_pass
        first = np.maximum(start, begin) - begin
        last = np.minimum(stop, begin + one_pass) - begin
        return number, self._sorted_place(first, last, slot - (first + begin - start))

    def _sorted_place(
        self, start: NDArray[np.int64], stop: NDArray[np.int64], slot: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Element `slot` of the positions start..stop-1 of one pass, sorted by lane-rank."""
        ranks, tail_start = self.lanes.grid.ranks, self.lanes.tail_start
        body_start = np.minimum(start, tail_start)
        body_stop = np.minimum(stop, tail_start)
        in_body = body_stop - body_start
        from_start, to_stop = Counts(body_start, ranks), Counts(body_stop, ranks)
        rank = self._lane_rank(from_start, to_stop, slot, constant=start.shape != slot.shape)
        before = to_stop.below(rank) - from_start.below(rank)
        turn = turns(ranks).turn[rank]
        first = (body_start + ranks - 1 - turn) // ranks  # the lane-rank's first element in it
        body = (first + slot - before) * ranks + turn
        tail = np.maximum(start, tail_start) + slot - in_body
        return np.where(slot < in_body, body, tail)

    def _lane_rank(
        self,
        from_start: Counts,
        to_stop: Counts,
        slot: NDArray[np.int64],
        *,
        constant: bool,
    ) -> NDArray[np.int64]:
        """The lane-rank of each slot: the last q before which at most `slot` positions lie.

        constant: whether all slots of a step have the same start and stop.
        """
        low = np.zeros(slot.shape, dtype=np.int64)
        high = np.full(slot.shape, self.lanes.grid.ranks - 1, dtype=np.int64)

        def bisected(
            slot: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64]
        ) -> NDArray[np.int64]:
            for _ in range(int((high - low).max(initial=0)).bit_length()):
                middle = (low + high + 1) // 2
                passed = to_stop.below(middle) - from_start.below(middle) <= slot
                low = np.where(passed, middle, low)
                high = np.where(passed, high, middle - 1)
            return low

        if constant:
            # The slots of a step are neighbours: bisect for the outermost two, then between them.
            ends = np.stack([slot.min(axis=1), slot.max(axis=1)], axis=1)
            ends = bisected(ends, low[:, :2], high[:, :2])
            low, high = ends[:, :1], ends[:, 1:]
        return bisected(slot, low, high)
