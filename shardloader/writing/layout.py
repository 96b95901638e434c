"""Which samples go into which shard?

The rule, alone: the writer asks it sample by sample, and a dry run for all samples at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardloader.format.tar_header import END_OF_ARCHIVE, member_header, padding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardloader.writing.pack import PlannedSample
    from shardloader.writing.pattern import ShardPattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a shard holds: samples, and bytes of the tar file with its end."""

    max_samples: int
    max_bytes: int

    def has_room(self, num_samples: int, size_bytes: int, added_bytes: int) -> bool:
        """Whether a shard takes one more sample; an empty one takes any."""
        if num_samples == 0:
            return True
        return num_samples < self.max_samples and size_bytes + added_bytes <= self.max_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShard:
    """A shard that a writer would make."""

    name: str
    num_samples: int
    num_bytes: int


def lay_out(
    samples: Iterable[PlannedSample], pattern: ShardPattern, limits: Limits
) -> Iterator[PlannedShard]:
    """Yield the shards that a writer would make of the samples, without reading a file."""
    empty = len(END_OF_ARCHIVE)
    number, count, total = 0, 0, empty
    for sample in samples:
        added = tarred_bytes(sample)
        if not limits.has_room(count, total, added):
            yield PlannedShard(name=pattern.name(number), num_samples=count, num_bytes=total)
            number, count, total = number + 1, 0, empty
        count, total = count + 1, total + added
    if count:
        yield PlannedShard(name=pattern.name(number), num_samples=count, num_bytes=total)


def tarred_bytes(sample: PlannedSample) -> int:
    """Bytes that a sample takes in a tar: headers, contents and padding."""
    return sum(
        len(member_header(f"{sample.key}.{file.field}", file.size)) + file.size + padding(file.size)
        for file in sample.files
    )
