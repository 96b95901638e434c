"""What does a reader need next, what is fetched ahead of it, and what may go to make room?

A need is a shard and the steps between which a reader opens it, first and last. Steps only grow,
and a reader knows its coming ones, since the order is arithmetic; who it is, this module does not
know. Needs of several readers, of other runs too, are compared by their depth: how many other
shards that reader opens before. It needs no clock, and gives each reader the same right to what it
needs next, however fast it goes.

All of it is decisions on numbers: `prefetch` carries them out, `needs_files` tells other processes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardloader.reading.cache_folder import Entry

NEVER: Final = math.inf
HELD: Final = 0.5  # the depth of what was fetched ahead, and not begun yet
FAR: Final = 1 << 62
EARLY: Final = 4.0  # a fetch begins when this many times its duration is left
_FIRST_ROWS: Final = 8  # looked at; then twice as many, and so on
_BESIDES: Final = 0.25  # of what the first row opens: a wide window is the same for many rows


class Need(NamedTuple):
    """A shard that is opened between two steps, both included."""

    shard: int
    first: int
    last: int


class Needs:
    """A reader's coming needs, in the order of their first steps.

    start, stop: the reader opens the shards of the steps start .. stop-1 now. reach: after how many
    steps a shard that did not come again is over; until so many more were taken, a need may go on.
    linger: steps for which it is kept then, for others who read the same and are behind. stay:
    shards that are needed to the end once they were needed, as others will need them.
    """

    def __init__(self, *, reach: int = 0, linger: int = 0, stay: Container[int] = ()) -> None:
        self.start = self.stop = 0
        self.taken = 0  # up to which step
        self._reach = reach
        self._linger = linger
        self._stay = stay
        self._needs: list[Need] = []
        self._latest: dict[int, int] = {}  # shards whose needs may go on, and where they stand
        self._over = self._begun = FAR  # up to which `start` and `stop` nothing changes

    def take(self, block: Iterable[Need], *, stop: int) -> None:
        """Take the shards of steps that follow those taken so far, up to stop-1, each shard once.

        A shard of the block before goes on, as does one within reach; one that comes again later is
        another need.
        """
        latest: dict[int, int] = {}
        for need in sorted(block, key=lambda need: (need.first, need.shard)):
            place = self._latest.get(need.shard)
            last = FAR if need.shard in self._stay else need.last
            if place is None:
                place = len(self._needs)
                self._needs.append(need._replace(last=last))
            else:
                self._needs[place] = self._needs[place]._replace(last=last)
            latest[need.shard] = place
        self.taken = stop
        going_on = {s: at for s, at in self._latest.items() if self.end_of(self._needs[at]) == FAR}
        self._latest = going_on | latest
        self._note_changes()

    def end(self) -> None:
        """Nothing follows what was taken so far."""
        self.taken = FAR
        self._note_changes()

    def end_of(self, need: Need) -> int:
        """The last step of a need; FAR while it may go on."""
        return need.last if self.taken > need.last + self._reach else FAR

    def move_to(self, start: int, stop: int) -> bool:
        """Go on to some steps; say whether needs have begun or ended."""
        self.start, self.stop = max(self.start, start), max(self.stop, stop)
        if self._keeps(self._over) and self.stop <= self._begun:
            return False
        kept = [(at, need) for at, need in enumerate(self._needs) if self._keeps(self.end_of(need))]
        places = {old: new for new, (old, _) in enumerate(kept)}
        self._latest = {s: places[n] for s, n in self._latest.items() if n in places}
        self._needs = [need for _, need in kept]
        self._note_changes()
        return True

    def _keeps(self, end: int) -> bool:
        return end >= self.start or end + self._linger >= self.stop

    def told_end_of(self, need: Need) -> int:
        """The last `start` with which it is kept, as far as the steps now reach."""
        end = self.end_of(need)
        return max(end, end + self._linger - (self.stop - self.start))

    def _note_changes(self) -> None:
        later = (need.first for need in self._needs if need.first >= self.stop)
        self._over = min(map(self.end_of, self._needs), default=FAR)
        self._begun = next(later, FAR)

    def coming(self) -> Iterator[tuple[int, Need]]:
        """Each need that is kept, with its depth: 0 where it has begun, else 1, 2, 3, ..."""
        depth = 0
        for need in self._needs:
            depth += need.first >= self.stop
            yield (depth if need.first >= self.stop else 0), need


class Room(NamedTuple):
    """How much of the cache a reader may take, so that no other has to fetch a shard twice.

    part_bytes: for what it needs now and what is fetched ahead of it together, at least as much as
    it ever needs at one time, or 0; spare_bytes: for what is fetched ahead, whatever it needs now.
    """

    part_bytes: int
    spare_bytes: int

    def ahead_of(self, now_bytes: int) -> int:
        """What may be fetched ahead of a reader who needs so many bytes now."""
        return max(self.part_bytes - now_bytes, self.spare_bytes)


ALL_ROOM: Final = Room(0, FAR)  # of a reader that knows of no others


class Pace(NamedTuple):
    """Seconds that a step takes, and that a fetched byte takes; None while it is not known."""

    a_step: float | None = None
    a_byte: float | None = None

    def is_time(self, *, steps: int, num_bytes: int) -> bool:
        """Whether to begin now with bytes that are needed after so many steps."""
        if self.a_step is None or self.a_byte is None:
            return True
        return steps * self.a_step <= EARLY * num_bytes * self.a_byte


class Coming(NamedTuple):
    """A shard that is needed after so many steps (0: now), and whether it is there already.

    is_possible: False where it can't be had now; index_bytes: that its index takes besides.
    """

    shard: int
    num_bytes: int
    steps: int
    is_there: bool = False
    is_possible: bool = True
    index_bytes: int = 0


def next_to_fetch(
    coming: Iterable[Coming],
    *,
    bound_bytes: int,
    pace: Pace,
    room_bytes: int = FAR,
    only_now: bool = False,
) -> Coming | None:
    """Which shard is to be fetched next, of those that come, in their order; None for none.

    What is needed now comes first. Of what is needed later at most `bound_bytes` are to be there,
    counting what is there anyway, but one shard always may, where there are `room_bytes` for it;
    and none is begun long before its time, or that of those behind it, which wait for it. only_now:
    what is needed later has to wait.

    >>> later = [Coming(7, 60, 0, is_there=True), Coming(3, 60, 5), Coming(4, 60, 9)]
    >>> next_to_fetch(later, bound_bytes=100, pace=Pace()).shard
    3
    """
    ahead = to_fetch = taken = 0
    first: Coming | None = None  # that is missing
    for each in coming:
        is_later = each.steps > 0
        taken += (each.num_bytes + each.index_bytes) if is_later else 0
        if taken > room_bytes or (is_later and ahead and ahead + each.num_bytes > bound_bytes):
            return None
        if not each.is_there and each.is_possible:
            if is_later and only_now:
                return None
            first = first or each
            to_fetch += each.num_bytes
            is_next = not ahead
            if is_next or not is_later or pace.is_time(steps=each.steps, num_bytes=to_fetch):
                return first
        ahead += each.num_bytes if is_later else 0
    return None


def removal_order(
    entries: Sequence[Entry], depths: Mapping[bytes, float], *, below: float = -1.0
) -> list[Entry]:
    """The whole tars in the order in which they go: what is needed last, then the least used.

    depths: by `Entry.key`; what is not among them is needed by nobody, and goes first. below:
    only what is needed later than by this depth may go at all.
    """
    ranked = [(depths.get(entry.key, NEVER), entry) for entry in entries if not entry.is_part]
    ranked = [each for each in ranked if each[0] > below]
    return [entry for _, entry in sorted(ranked, key=lambda x: (-x[0], x[1].used_ns, x[1].name))]


def rows_at_once(
    shard: NDArray[np.int64],
    bytes_of: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    *,
    bound_bytes: int,
    most_rows: int = FAR,
) -> int:
    """How many of the first rows a reader may be at, all at once, in a cache that others share.

    Between the shards of those rows there is no order of need: all of them are needed now. So they
    are to have at most bound_bytes, or a quarter more than the first row's alone, which is always
    one of them; at most most_rows. shard: int64 [rows, batch_size]; bytes_of: gives the sizes of
    distinct shards in the cache, int64 [n].

    >>> rows = np.array([[3, 3], [3, 4], [4, 4], [4, 5]])
    >>> rows_at_once(rows, lambda shards: np.full(len(shards), 10), bound_bytes=20)
    3
    """
    num_rows, batch_size = min(len(shard), most_rows), shard.shape[1]
    looked_at = min(_FIRST_ROWS, num_rows)
    while True:
        distinct, first = np.unique(shard[:looked_at], return_index=True)
        of_rows = np.zeros(looked_at, dtype=np.int64)
        np.add.at(of_rows, first // max(1, batch_size), bytes_of(distinct))
        total = np.cumsum(of_rows)
        most = max(bound_bytes, int(total[0] * (1 + _BESIDES))) if looked_at else 0
        found = int(np.searchsorted(total, most, side="right"))
        if found < looked_at or looked_at == num_rows:
            return found
        looked_at = min(2 * looked_at, num_rows)
