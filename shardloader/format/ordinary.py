"""What does the index of an ordinary shard hold, found without a Python object a member?

Joins `tar_columns` and `name_columns`. What it gives is what the careful way through
`shardloader.format.tar` and `shardloader.format.samples` gives, or nothing: it makes no notices
and no errors. A property test holds that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardloader.format.name_columns import NameColumns
from shardloader.format.tar_columns import files
from shardloader.format.unusual import Unusual

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.format.tar_columns import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexColumns:
    """The columns of a `SampleIndex`, as that describes them."""

    fields: tuple[str, ...]
    sample_starts: Int64Array
    member_offsets: Int64Array
    member_sizes: Int64Array
    member_fields: NDArray[np.uint32]
    key_starts: Int64Array
    key_bytes: NDArray[np.uint8]


def index_columns(buffer: bytes | bytearray | memoryview) -> IndexColumns | None:
    """Index the tar archive in `buffer`; None if any of it is unusual, however slightly."""
    names = NameColumns()
    offsets: list[Int64Array] = []
    sizes: list[Int64Array] = []
    try:
        for found in files(memoryview(buffer).cast("B")):
            names.take(found.names)
            offsets.append(found.offsets)
            sizes.append(found.sizes)
        grouped = names.finish()
    except Unusual:
        return None
    return IndexColumns(
        fields=grouped.fields,
        sample_starts=grouped.sample_starts,
        member_offsets=np.concatenate(offsets),
        member_sizes=np.concatenate(sizes),
        member_fields=grouped.member_fields,
        key_starts=grouped.key_starts,
        key_bytes=grouped.key_bytes,
    )
