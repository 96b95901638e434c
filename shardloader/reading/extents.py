"""Where do the fields of many samples lie?

Looked up shard by shard with numpy, a block of samples at a time. Where the samples of a shard do
not all have the same fields, or two shards differ in them, nothing is said (None): such samples are
read one by one, which also tells what is wrong with one that is bad.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardloader.format.index import SampleIndex
    from shardloader.reading.pool import ShardPool
    from shardloader.reading.shard import Shard

LARGE_BYTES: Final = 1 << 16  # a sample that the kernel is told of by itself


class Layout(NamedTuple):
    """The fields that every sample of a shard has, and where they lie.

    fields: names, in the order of the shard's members; offsets, sizes: for each field, int64
    [samples], in bytes; views of the index where the shard is regular.
    """

    fields: tuple[str, ...]
    offsets: tuple[NDArray[np.int64], ...]
    sizes: tuple[NDArray[np.int64], ...]


def layout_of(index: SampleIndex, wanted: frozenset[str] | None) -> Layout | None:
    """The layout of a shard for the fields asked for (None: all); None if samples differ in them.

    Names that begin with two underscores are the loader's own, and left out.
    """
    num_samples, num_members = index.num_samples, index.num_members
    if num_samples == 0:
        return None
    num_first = int(index.sample_starts[1])
    numbers = index.member_fields[:num_first].tolist()
    chosen = [
        at
        for at, name in enumerate(index.fields[number] for number in numbers)
        if (wanted is None or name in wanted) and not name.startswith("__")
    ]
    if wanted is not None and len(chosen) < len(wanted):
        return None
    is_regular = num_members == num_samples * num_first and bool(
        (index.member_fields.reshape(num_samples, num_first) == numbers).all()
    )
    members: Sequence[slice | NDArray[np.int64]] | None
    if is_regular:
        members = [slice(at, None, num_first) for at in chosen]
    else:
        members = _members(index, [numbers[at] for at in chosen]) if wanted else None
    if not members:
        return None
    return Layout(
        tuple(index.fields[numbers[at]] for at in chosen),
        tuple(index.member_offsets[member] for member in members),
        tuple(index.member_sizes[member] for member in members),
    )


def _members(index: SampleIndex, numbers: list[int]) -> list[NDArray[np.int64]] | None:
    """The members of each field, one a sample and in the same order in all; None if they aren't."""
    found = []
    for number in numbers:
        members = np.flatnonzero(index.member_fields == number)
        if len(members) != index.num_samples:
            return None
        if not ((members >= index.sample_starts[:-1]) & (members < index.sample_starts[1:])).all():
            return None
        found.append(members)
    return None if any((left > right).any() for left, right in pairwise(found)) else found


def _small(shard: NDArray[np.int64]) -> NDArray[Any]:
    """Numbers in the same order, of the type that numpy sorts by counting where they allow it."""
    least = int(shard.min(initial=0))
    is_near = int(shard.max(initial=0)) - least < np.iinfo(np.int16).max
    return (shard - least).astype(np.int16) if is_near else shard


def _announce(
    shard: Shard, starts: Sequence[NDArray[np.int64]], stops: Sequence[NDArray[np.int64]]
) -> None:
    """Tell the kernel what will be read of a shard: large samples one by one, or the whole range.

    starts, stops: for each field, int64 [samples]. A call costs about as much as reading a small
    sample.
    """
    if shard.num_bytes < LARGE_BYTES * shard.index.num_samples:
        first = min(int(each.min()) for each in starts)
        shard.will_need_up_to(first, max(int(each.max()) for each in stops))
        return
    firsts, lasts = np.min(starts, axis=0), np.max(stops, axis=0)
    for start, stop in zip(firsts.tolist(), lasts.tolist(), strict=True):
        shard.will_need(start, stop)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Extents:
    """Where n samples lie.

    shard: int64 [n]; fields: names; starts, stops: int64 [fields, n], bytes of the tar; keys:
    int64 [2, n], first byte of each key in its shard's keys, and the byte after its last.
    """

    shard: NDArray[np.int64]
    fields: tuple[str, ...]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    keys: NDArray[np.int64]


def locate(
    pool: ShardPool,
    shard: NDArray[np.int64],
    sample: NDArray[np.int64],
    wanted: frozenset[str] | None,
) -> Extents | None:
    """Where the samples lie, given by numbers of the shard and in it, int64 [n]; None as above.

    The kernel is told that they will be read. Raises what opening a shard does.
    """
    order = np.argsort(_small(shard), kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(shard[order])) + 1)
    pool.open_ahead(int(shard[rows[0]]) for rows in groups if len(rows))
    found: Extents | None = None
    for rows in groups:
        number = int(shard[rows[0]])
        opened = pool[number]
        layout = opened.layout(wanted)
        if layout is None or (found and layout.fields != found.fields):
            return None
        if found is None:
            shape = len(layout.fields), len(shard)
            found = Extents(
                shard=shard,
                fields=layout.fields,
                starts=np.empty(shape, dtype=np.int64),
                stops=np.empty(shape, dtype=np.int64),
                keys=np.empty((2, len(shard)), dtype=np.int64),
            )
        of = sample[rows]
        starts = [offsets[of] for offsets in layout.offsets]
        stops = [start + sizes[of] for start, sizes in zip(starts, layout.sizes, strict=True)]
        for at, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            found.starts[at, rows], found.stops[at, rows] = start, stop
        _announce(opened, starts, stops)
        found.keys[0, rows] = opened.index.key_starts[of]
        found.keys[1, rows] = opened.index.key_starts[1:][of]
        del opened  # while the next one is opened, the cache may need its room
    return found
