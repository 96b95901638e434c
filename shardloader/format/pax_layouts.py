"""Do the PAX records before many members change what is read of these?

Records that change nothing, like a fractional `mtime`, differ in their values only. So one of each
layout is read carefully, and the others are compared with it, but for the values. Whatever else
there is raises `Unusual`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardloader.format.tar_fields import FieldError, changes_a_member, pax_records
from shardloader.format.tar_header import BLOCK_BYTES
from shardloader.format.unusual import Unusual

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.format.tar_columns import Int64Array, Words

_MAX_LAYOUTS = 64


@dataclass(slots=True, kw_only=True)
class _Layout:
    """What records of one size look like, but for their values.

    `rules` are places of words, masks, and what is expected there.
    """

    size: int
    rules: tuple[tuple[int, np.uint64, np.uint64], ...]
    times_met: int = 0

    def is_that_of(self, columns: Words, sizes: Int64Array) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = sizes == self.size
        for word, mask, expected in self.rules:
            if word < len(columns):  # of another size, where rows are shorter
                same &= (columns[word] & mask) == expected
        return same


class PaxLayouts:
    """Checks records by the layouts met so far, the most frequent ones first."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._layouts: list[_Layout] = []

    def check(self, positions: Int64Array, sizes: Int64Array) -> None:
        """Check the records that lie at these blocks and have these sizes, in bytes."""
        num_blocks = len(self._view) // BLOCK_BYTES
        if sizes.min() < 1 or sizes.max() > BLOCK_BYTES or positions[-1] >= num_blocks:
            raise Unusual
        width = min(int(sizes.max()) + 8, BLOCK_BYTES) // 8  # with the byte behind the records
        # All words in question of a block as one item: one access to memory, not several.
        items: NDArray[np.void] = np.ndarray(
            (num_blocks,), dtype=f"V{8 * width}", buffer=self._view, strides=(BLOCK_BYTES,)
        )
        rows = items[positions].view("<u8").reshape(len(positions), width)
        columns = np.ascontiguousarray(rows.T)
        for layout in self._layouts:
            columns, sizes = _without(layout, columns, sizes)
            if not len(sizes):
                break
        while len(sizes):
            if len(self._layouts) == _MAX_LAYOUTS:
                raise Unusual
            self._layouts.append(_layout(columns[:, 0].tobytes(), int(sizes[0])))
            columns, sizes = _without(self._layouts[-1], columns, sizes)
        self._layouts.sort(key=lambda layout: -layout.times_met)


def _without(layout: _Layout, columns: Words, sizes: Int64Array) -> tuple[Words, Int64Array]:
    """Leave out the records of a layout."""
    left = np.flatnonzero(~layout.is_that_of(columns, sizes))
    layout.times_met += len(sizes) - len(left)
    return columns.take(left, axis=1), sizes[left]


def _layout(block: bytes, size: int) -> _Layout:
    """Read the records of that size which a block begins with, and mark which bytes are values."""
    content, behind = block[:size], block[size : size + 1]
    if behind.strip(b"\0"):
        raise Unusual
    try:
        keywords = pax_records(content)
    except FieldError:
        raise Unusual from None
    if any(map(changes_a_member, keywords)):
        raise Unusual
    mask = bytearray(b"\xff" * (size + len(behind))).ljust(BLOCK_BYTES, b"\0")
    position = 0
    while position < len(content) and content[position]:
        space = content.index(b" ", position)
        end = position + int(content[position:space])
        value = content.index(b"=", space) + 1
        mask[value : end - 1] = bytes(end - 1 - value)
        position = end
    masks = np.frombuffer(mask, dtype="<u8")
    expected = np.frombuffer(content.ljust(BLOCK_BYTES, b"\0"), dtype="<u8") & masks
    places = np.flatnonzero(masks).tolist()
    rules = tuple((place, masks[place], expected[place]) for place in places)
    return _Layout(size=size, rules=rules)
