"""Which shards do the ranks and workers of a plan open, and how many bytes is that?

Where each worker reads lanes of its own, as in the grid's own topology, the answer is looked up
(`planning.lanes`). Otherwise the plan is carried out on integers, all of it where that is little
work, else on a few ranks.

`Look.at(plan)` decides which ranks are looked at, `opened(plan, look)` looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardloader.planning.lanes import (
    WINDOWS_TO_AN_EDGE,
    PlacesRead,
    block,
    distinct,
    edges,
    has_lanes_of_its_own,
    lanes_of,
    num_edges,
    read_of_tail,
    read_whole,
    shards_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shardloader.planning.planned import Plan

# In positions, of which a second does two millions or so. Setting a rank up costs about as much
# as one position for every shard and some thousands besides.
MOST_EXACT = 50_000_000
MOST_SAMPLED = 12_000_000
MOST_LOOKED_UP = 4_000_000  # positions evaluated where lanes are looked up, and lanes
WIDEST_WINDOW = 1 << 26  # a block of that many words is half a gibibyte

_RANK_COSTS = 5_000
_PAIRS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Look:
    """Which part of a plan is looked at: the first `num_steps` steps of `ranks` (int64).

    by_lanes: whether whole stretches of lanes are looked up; is_exact: whether it is all of it.
    """

    ranks: NDArray[np.int64]
    num_steps: int
    by_lanes: bool
    is_exact: bool

    @classmethod
    def at(
        cls,
        plan: Plan,
        *,
        most_looked_up: int = MOST_LOOKED_UP,
        most_exact: int = MOST_EXACT,
        most_sampled: int = MOST_SAMPLED,
    ) -> Look | None:
        """What to look at: all if either way can afford it; None if one batch is too much."""
        dealing = plan.dealing
        by_lanes = 0  # ranks
        if has_lanes_of_its_own(plan):
            by_lanes = min(dealing.world_size, most_looked_up // _evaluated_a_rank(plan))
        is_narrow = block(plan.schedule.order) <= WIDEST_WINDOW
        a_rank = plan.steps * dealing.batch_size + _RANK_COSTS + len(plan.schedule.order.counts)
        all_carried_out = is_narrow and a_rank * dealing.world_size <= most_exact
        if by_lanes and (by_lanes == dealing.world_size or not all_carried_out):
            return cls._of(plan, by_lanes, plan.steps, by_lanes=True)
        if all_carried_out:
            return cls._of(plan, dealing.world_size, plan.steps, by_lanes=False)
        if dealing.batch_size > most_sampled or not is_narrow:
            return None
        num_ranks = max(1, min(dealing.world_size, most_sampled // a_rank))
        steps = min(plan.steps, max(1, most_sampled // (num_ranks * dealing.batch_size)))
        return cls._of(plan, num_ranks, steps, by_lanes=False)

    @classmethod
    def _of(cls, plan: Plan, num_ranks: int, num_steps: int, *, by_lanes: bool) -> Look:
        world_size = plan.dealing.world_size
        ranks = np.unique(np.linspace(0, world_size - 1, num_ranks).astype(np.int64))
        return cls(
            ranks=ranks,
            num_steps=num_steps,
            by_lanes=by_lanes,
            is_exact=len(ranks) == world_size and num_steps == plan.steps,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Opened:
    """What the ranks that were looked at open and read.

    a_rank, a_worker: figures of each rank, and of each worker, rank after rank; num_opened:
    different shards opened by any of them; by_workers_of_a_rank: those that more than one worker
    of one rank opens; by_several: those that more than one worker opens, of whatever ranks.
    """

    look: Look
    a_rank: Share
    a_worker: Share
    num_opened: int
    by_workers_of_a_rank: int
    by_several: int


class Share(NamedTuple):
    """Figures of some readers, int64 [readers]; bytes are None where sizes are not known.

    shards: different shards opened; opened_bytes: their sizes; read_bytes: an estimate of the
    bytes of the valid samples read, each taken to be as large as its shard's mean.
    """

    shards: NDArray[np.int64]
    opened_bytes: NDArray[np.int64] | None
    read_bytes: NDArray[np.int64] | None


class _Part(NamedTuple):
    """What some ranks open: reader * shards + shard, ascending int64, and bytes read a reader.

    Readers are numbered rank by rank from 0, the workers of the part's first rank first.
    """

    codes: NDArray[np.int64]
    read: NDArray[np.float64]


def opened(plan: Plan, look: Look, advance: Callable[[int], object] = int) -> Opened:
    """Look; `advance` is told how many ranks' steps are done, num_steps of each of the ranks."""
    num_shards, workers = len(plan.schedule.order.counts), max(1, plan.num_workers)
    readers_of = np.zeros(num_shards, dtype=np.int64)
    in_one_rank = np.zeros(num_shards, dtype=bool)
    ranks, readers = [], []
    for num_ranks, part in _parts(plan, look, advance):
        reader, shard = np.divmod(part.codes, max(1, num_shards))
        np.add.at(readers_of, shard, 1)
        pairs, times = np.unique(reader // workers * num_shards + shard, return_counts=True)
        in_one_rank[pairs[times > 1] % max(1, num_shards)] = True
        readers.append(_share(plan, part.codes, part.read))
        ranks.append(_share(plan, pairs, part.read.reshape(num_ranks, workers).sum(axis=1)))
    return Opened(
        look=look,
        a_rank=_joined(ranks),
        a_worker=_joined(readers),
        num_opened=int(np.count_nonzero(readers_of)),
        by_workers_of_a_rank=int(np.count_nonzero(in_one_rank)),
        by_several=int(np.count_nonzero(readers_of > 1)),
    )


def _share(plan: Plan, codes: NDArray[np.int64], read: NDArray[np.float64]) -> Share:
    """The figures of len(read) readers; codes are reader * shards + shard, ascending."""
    num_shards = len(plan.schedule.order.counts)
    edges = np.searchsorted(codes, np.arange(len(read) + 1) * num_shards)
    if plan.sizes is None:
        return Share(np.diff(edges), None, None)
    below = np.concatenate([[0], np.cumsum(plan.sizes[codes % max(1, num_shards)])])
    return Share(np.diff(edges), np.diff(below[edges]), np.rint(read).astype(np.int64))


def _joined(shares: list[Share]) -> Share:
    def column(name: str) -> NDArray[np.int64] | None:
        columns = [getattr(share, name) for share in shares]
        return None if columns[0] is None else np.concatenate(columns)

    return Share(
        np.concatenate([share.shards for share in shares]),
        column("opened_bytes"),
        column("read_bytes"),
    )


def _parts(plan: Plan, look: Look, advance: Callable[[int], object]) -> Iterator[tuple[int, _Part]]:
    if not look.by_lanes:
        for rank in look.ranks.tolist():
            yield 1, _carried_out(plan, rank, look.num_steps, advance)
        return
    grid, dealing = plan.schedule.order.grid, plan.dealing
    lanes = grid.ranks * grid.workers
    pairs = -(-(lanes + len(plan.schedule.order.counts)) // dealing.world_size)
    at_once = max(1, _PAIRS_AT_ONCE // max(pairs, _evaluated_a_rank(plan)))
    for first in range(0, len(look.ranks), at_once):
        ranks = look.ranks[first : first + at_once]
        yield len(ranks), _looked_up(plan, ranks)
        advance(len(ranks) * look.num_steps)


def _mean_bytes(plan: Plan) -> NDArray[np.float64]:
    """Bytes a sample of each shard, its mean, float64 [shards]; 0 where no size is known."""
    counts = plan.schedule.order.counts
    if plan.sizes is None:
        return np.zeros(len(counts))
    mean: NDArray[np.float64] = plan.sizes / np.maximum(counts, 1)
    return mean


def _carried_out(plan: Plan, rank: int, num_steps: int, advance: Callable[[int], object]) -> _Part:
    """What one rank opens in its first steps, sample by sample."""
    workers, num_shards = max(1, plan.num_workers), len(plan.schedule.order.counts)
    reader, at_once = plan.schedule.reader(rank), plan.schedule.steps_at_once(1)
    place, mean = np.arange(plan.dealing.batch_size), _mean_bytes(plan)
    steps = min(num_steps, plan.dealing.num_batches(rank))
    found, sizes = np.zeros(0, dtype=np.int64), np.zeros(workers)
    for first in range(0, steps, at_once):
        numbers = np.arange(first, min(first + at_once, steps), dtype=np.int64)
        read = reader.steps(numbers)
        worker = np.broadcast_to((numbers % workers)[:, None], read.shard.shape)
        codes = worker * num_shards + read.shard
        found = distinct(np.concatenate([found, codes[place < read.size[:, None]]]))
        weights = mean[read.shard[read.valid]]
        sizes += np.bincount(worker[read.valid], weights=weights, minlength=workers)
        advance(len(numbers))
    return _Part(found, sizes)


def _evaluated_a_rank(plan: Plan) -> int:
    """How many positions are evaluated to look a rank's lanes up, one for a lane at least."""
    order = plan.schedule.order
    lanes = lanes_of(plan, np.zeros(1, dtype=np.int64))
    longest = int((lanes.end - lanes.begin).max(initial=0))
    width = block(order)
    at_an_edge = min(WINDOWS_TO_AN_EDGE * width, longest) + 3 * width
    return len(lanes.rank) + num_edges(lanes) * at_an_edge


def _looked_up(plan: Plan, ranks: NDArray[np.int64]) -> _Part:
    """What some ranks open, each of whose workers reads lanes of its own."""
    order, num_readers = plan.schedule.order, len(ranks) * max(1, plan.num_workers)
    one_pass = plan.schedule.one_pass(plan.checkpoint.epoch)
    lanes = lanes_of(plan, ranks)
    at_edges, positions = edges(order, lanes)
    found = [
        shards_of(one_pass.line, read_whole(order, lanes)),
        shards_of(one_pass.line, read_of_tail(plan, ranks)),
        (at_edges, one_pass.locate(positions).shard),
    ]
    codes = distinct(
        np.concatenate([reader * len(order.counts) + shard for reader, shard in found])
    )
    read = np.zeros(num_readers)
    if plan.sizes is not None:
        line = one_pass.line
        of_samples = np.where(order.counts > 0, plan.sizes, 0)  # an empty tar has bytes, too
        below = np.concatenate([[0], np.cumsum(of_samples[line.shards])])
        for reader, lo, hi in (
            PlacesRead(lanes.reader, lanes.start + lanes.begin, lanes.start + lanes.end),
            read_of_tail(plan, ranks, valid_only=True),
        ):
            amount = np.interp(hi, line.starts, below) - np.interp(lo, line.starts, below)
            read += np.bincount(reader, weights=amount, minlength=num_readers)
    return _Part(codes, read)
