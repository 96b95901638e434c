"""What does a reader tell those who fetch for it, and when?

Its coming steps are arithmetic: they are evaluated a second time, ahead of it and by whoever
fetches, and only the shards are kept of them. A reader of plain local shards tells nothing, but
closes what it has read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardloader.dataset.batches import row_blocks
from shardloader.order.schedule import Schedule
from shardloader.reading.fetching import Block, Outlook
from shardloader.reading.needs import ALL_ROOM, Need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shardloader.dataset.batches import RowBlock
    from shardloader.dataset.samples import SampleReader
    from shardloader.order.reach import Reach
    from shardloader.reading.needs import Room


def looking_ahead(
    reader: SampleReader,
    schedule: Schedule,
    rank: int,
    *,
    worker: int,
    num_workers: int,
    skip: int = 0,
    room: Room,
    reach: Reach,
    items: Callable[[Iterator[RowBlock]], Iterator[Any]],
) -> Iterator[Any]:
    """What `items` makes of a worker's rows, as `row_blocks` gives them, while it is asked.

    Shards are fetched ahead from when the first is asked for until the last was given, an error
    came, or nobody wants more. room, reach: of a reader of this node, which keeps to them where the
    cache has not room for all.
    """

    def blocks(of: Schedule) -> Iterator[RowBlock]:
        return row_blocks(of, rank, worker=worker, num_workers=num_workers, skip=skip)

    if not reader.fetches_ahead:
        return items(_closing(blocks(schedule), reader))
    outlook, most_rows = Outlook(), None
    if room != ALL_ROOM:
        first = range(worker, schedule.dealing.num_batches(rank), num_workers)[skip:]
        stay = at_borders(schedule, rank, np.array(first[: schedule.order.grid.workers]))
        linger = reach.rows_ahead * num_workers if reach.is_shared else 0
        outlook = Outlook(reach=reach.steps, linger=linger, stay=stay, room=room)
        most_rows = reach.rows if reach.is_shuffled else None
    return _fetching(reader, blocks, schedule, outlook, most_rows, items)


def _fetching(
    reader: SampleReader,
    blocks: Callable[[Schedule], Iterator[RowBlock]],
    schedule: Schedule,
    outlook: Outlook,
    most_rows: int | None,
    items: Callable[[Iterator[RowBlock]], Iterator[Any]],
) -> Iterator[Any]:
    # Of its own, since a schedule remembers passes, and another thread evaluates it.
    again = Schedule(schedule.order, schedule.dealing)
    reader.fetch_ahead(map(needs_of, blocks(again)), outlook, most_rows=most_rows)
    try:
        yield from items(_closing(blocks(schedule), reader))
    finally:
        reader.stop_fetching()


def at_borders(schedule: Schedule, rank: int, steps: NDArray[np.int64]) -> frozenset[int]:
    """The shards in which lanes begin that a rank reads at some steps, and the lanes before end.

    Whoever reads the lane before comes to them last of all.
    """
    dealing, lanes = schedule.dealing, schedule.order.lanes
    slots, found = dealing.slots(steps.astype(np.int64), rank), set[int]()
    for number in np.unique(slots.number).tolist():
        position = slots.position[slots.number == number]
        start = np.unique(lanes.places(position[position < lanes.tail_start]).lane_start)
        start = start[start > 0]
        line = schedule.one_pass(number).line
        shard, before = line.locate(start).shard, line.locate(start - 1).shard
        found.update(shard[shard == before].tolist())
    return frozenset(found)


def _closing(blocks: Iterator[RowBlock], reader: SampleReader) -> Iterator[RowBlock]:
    for block in blocks:
        reader.keep_open(block.read.shard)
        yield block


def needs_of(block: RowBlock) -> Block:
    """The shards that some rows need, and in which of their steps."""
    read, steps = block.read, np.asarray(block.steps)
    is_there = np.arange(read.shard.shape[1]) < read.size[:, None]
    shard = read.shard[is_there]
    step = np.broadcast_to(steps[:, None], read.shard.shape)[is_there]
    distinct, first = np.unique(shard, return_index=True)
    _, from_end = np.unique(shard[::-1], return_index=True)
    pairs = zip(distinct.tolist(), step[first].tolist(), step[::-1][from_end].tolist(), strict=True)
    return Block([Need(*each) for each in pairs], block.steps[-1], len(shard))
