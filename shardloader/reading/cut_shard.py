"""What can still be read of a shard that was cut after it was indexed?

The samples that lie whole before the cut, if what is there is the beginning of what was indexed: a
shard that was replaced by another one has no such samples, however many of them look alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardloader.errors import ShardError
from shardloader.format.agreeing import holds_member
from shardloader.format.damage import has_no_end
from shardloader.format.index import SampleIndex
from shardloader.reading.shard import Shard

if TYPE_CHECKING:
    from shardloader.reading.extents import Layout


class CutShard(Shard):
    """A shard of which only the first `num_whole` samples are there; the others are errors."""

    def __init__(self, data: memoryview, index: SampleIndex, *, name: str, num_whole: int) -> None:
        super().__init__(data, replace(index, shard_bytes=len(data)), name=name)
        self._num_whole = num_whole
        self._bytes_indexed = index.shard_bytes

    @property
    def num_whole(self) -> int:
        """How many samples are there."""
        return self._num_whole

    def fields(self, sample: int, wanted: frozenset[str] | None = None) -> dict[str, memoryview]:
        """Give a sample's fields; raises ShardError for one that is not whole."""
        if sample >= self._num_whole:
            raise ShardError(
                f"{self.name}: truncated: the shard has {self.index.shard_bytes} bytes, and had "
                f"{self._bytes_indexed} when it was indexed: {self._num_whole} of its "
                f"{self.num_samples} samples are whole: fetch it again",
                kind="truncated",
                offset=self.index.shard_bytes,
            )
        return super().fields(sample, wanted)

    def layout(self, wanted: frozenset[str] | None) -> Layout | None:
        """None: samples are looked at one by one."""
        del wanted
        return None


def cut_shard(data: memoryview, index: SampleIndex, *, name: str) -> CutShard | None:
    """The shard that was cut, of the index that was made before; None if it is another one."""
    if len(data) >= index.shard_bytes or not len(data):
        return None
    try:
        found, notices = SampleIndex.build_what_is_whole(data, shard=name)
    except ShardError:
        return None
    if found.damage is None and not has_no_end(notices):
        return None  # a whole archive, and a smaller one: another one
    num_whole = _alike(found, index)
    if num_whole == found.num_samples:  # the next one is held back where its end was not seen
        num_whole += _is_there(index, data, num_whole)
    return CutShard(data, index, name=name, num_whole=num_whole) if num_whole else None


def _is_there(index: SampleIndex, data: memoryview, sample: int) -> bool:
    """Whether all members of a sample lie in what is left, with headers that name them."""
    if sample >= index.num_samples:
        return False
    return all(
        int(index.member_offsets[member] + index.member_sizes[member]) <= len(data)
        and holds_member(index, data, sample, member)
        for member in range(*index.sample_starts[sample : sample + 2].tolist())
    )


def _alike(found: SampleIndex, index: SampleIndex) -> int:
    """How many samples what is left has in common with what was there, if those are all it has.

    The last one is left out where it lacks members that the cut took.
    """
    num = min(found.num_samples, index.num_samples)
    while num and found.sample_starts[num] != index.sample_starts[num]:
        num -= 1
        if found.num_samples - num > 1:
            return 0
    members, keys = int(found.sample_starts[num]), int(found.key_starts[num])
    same = (
        np.array_equal(found.sample_starts[: num + 1], index.sample_starts[: num + 1])
        and np.array_equal(found.key_starts[: num + 1], index.key_starts[: num + 1])
        and np.array_equal(found.key_bytes[:keys], index.key_bytes[:keys])
        and np.array_equal(found.member_offsets[:members], index.member_offsets[:members])
        and np.array_equal(found.member_sizes[:members], index.member_sizes[:members])
        and [found.fields[number] for number in found.member_fields[:members].tolist()]
        == [index.fields[number] for number in index.member_fields[:members].tolist()]
    )
    return num if same else 0
