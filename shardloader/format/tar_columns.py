"""Where do the members of an ordinary archive lie, found by the thousand?

The archive is seen as a table of 512-byte blocks of 64 words, and a batch of headers is read by
columns of it. Ordinary are files and folders with ustar or GNU headers, all numbers octal, each
perhaps after a PAX header whose records change nothing that is read here; then nothing but zeros
from the end marker on. Whatever is not exactly that raises `Unusual`.

Where the headers lie may be guessed (by their magic, where members are small) or followed from
one to the next (where they are large: their data is not touched). Either way a batch holds only
if its headers are a chain: each is sound by its checksum, and the next is where it says.

Word and bit numbers below are those of little-endian words: byte 8 * w + i of a block is bits
8 * i to 8 * i + 7 of its word w. Format: POSIX.1-2001, pax, "ustar Interchange Format".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardloader.format.tar_fields import FieldError, changes_a_member, pax_records
from shardloader.format.tar_header import BLOCK_BYTES
from shardloader.format.unusual import Unusual

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Words: TypeAlias = NDArray[np.uint64]
Int64Array: TypeAlias = NDArray[np.int64]

NAME_WORDS = 13  # 100 bytes of name, and 4 that are not
_BLOCK_WORDS = BLOCK_BYTES // 8
_CHUNK = 1024  # headers that fit a core's cache
_ROWS = 16  # of a chunk, that are compared at a time
_BATCH = 4096  # files: what a batch needs fits a core's cache, and numpy's calls cost little
_FIRST_BATCH = 64
_NEAR_BLOCKS = 48  # up to so many a header, looking for magics costs less than following
_ZEROS_CHUNK_BYTES = 1 << 20
_MAX_RECORD_LAYOUTS = 64

_SIZE_WORD, _SUM_WORD, _KIND_WORD, _MAGIC_WORD, _VERSION_WORD, _PREFIX_WORD = 15, 18, 19, 32, 33, 43


def _bits(value: int | bytes) -> Words:
    """Give a constant for arithmetic on words: an array without axes costs numpy the least."""
    if isinstance(value, bytes):
        value = int.from_bytes(value, "little")
    return np.array(value, dtype=np.uint64)


# The kind word from its third byte on: the checksum's end, the typeflag, a link's first bytes.
_FILE, _FOLDER, _PAX = (_bits(b"\0 %b\0\0\0" % typeflag) for typeflag in (b"0", b"5", b"x"))
_POSIX_MAGIC, _GNU_MAGIC, _ANY_MAGIC = map(_bits, (b"\0ustar\x000", b"\0ustar  ", b"\0ustar"))
_MAGIC_BITS = _bits((1 << 48) - 1)
_SPACE, _ZERO = _bits(b" "), _bits(b"0")
_BYTE_0, _BYTE_1, _BYTES_0_AND_1 = _bits(0xFF), _bits(0xFF00), _bits(0xFFFF)
_LOW_HALF, _HIGH_HALF = _bits((1 << 32) - 1), _bits((1 << 64) - (1 << 32))
_TWO_ZEROS, _FOUR_ZEROS, _EIGHT_ZEROS = _bits(b"00"), _bits(b"0000"), _bits(b"00000000")
_OCTAL_BITS = _bits(b"\x07" * 8)
_EACH_SECOND_BYTE, _LOW_TWO_OF_FOUR = _bits(b"\xff\0" * 4), _bits(b"\xff\xff\0\0" * 2)
_SIX_OF_16, _TWELVE_OF_32, _LAST_24 = (
    _bits(b"\x3f\0" * 4),
    _bits(b"\xff\x0f\0\0" * 2),
    _bits(0xFFFFFF),
)
_3, _6, _8, _12, _16, _21, _32, _48, _56 = map(_bits, (3, 6, 8, 12, 16, 21, 32, 48, 56))


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Some files of an archive in order: n rows of each.

    `names` is uint64 [1 to 13, n], the name field by columns up to its last word in use, where the
    thirteenth has 4 bytes that are none of it. `offsets` (of the data) and `sizes` are int64 [n],
    bytes.
    """

    names: Words
    offsets: Int64Array
    sizes: Int64Array


def files(view: memoryview) -> Iterator[Files]:
    """Yield the files of an ordinary archive in batches; raise Unusual where it is not one."""
    num_blocks = len(view) // BLOCK_BYTES
    if not num_blocks:
        raise Unusual
    blocks = np.frombuffer(view[: num_blocks * BLOCK_BYTES], dtype="<u8")
    archive = _Archive(view, blocks.reshape(num_blocks, _BLOCK_WORDS))
    block, blocks_a_header = 0, float(_NEAR_BLOCKS + 1)
    limit = _FIRST_BATCH
    while not archive.ends_at(block):
        headers = archive.headers(block, limit, blocks_a_header)
        found = headers.files()
        yield found
        num_headers, num_files = len(headers.positions), len(found.sizes)
        blocks_a_header = (headers.stop - block) / num_headers
        limit = min(4 * _BATCH, _BATCH * num_headers // max(1, num_files))
        block = headers.stop


class _Archive:
    def __init__(self, view: memoryview, blocks: Words) -> None:
        self.view = view
        self.blocks = blocks
        # The words from size to kind of each block, as one item: one access to memory, not three.
        self.middles: NDArray[np.void] = np.ndarray(
            (len(blocks),),
            dtype=f"V{8 * (_KIND_WORD + 1 - _SIZE_WORD)}",
            buffer=view,
            offset=8 * _SIZE_WORD,
            strides=(BLOCK_BYTES,),
        )
        self.records = _Records()
        space = np.empty((_CHUNK, _BLOCK_WORDS), dtype=np.uint64)
        self.tables = {kind: _Table(blocks, space) for kind in ("file", "folder", "pax")}
        self.magics_mislead = False  # an archive in the archive, most likely

    def ends_at(self, block: int) -> bool:
        """Whether the end marker is here; nothing but zeros may follow it."""
        if block >= len(self.blocks):
            raise Unusual
        if self.blocks[block].any():
            return False
        for start in range(block * BLOCK_BYTES, len(self.view), _ZEROS_CHUNK_BYTES):
            chunk = self.view[start : start + _ZEROS_CHUNK_BYTES]
            if np.frombuffer(chunk, dtype=np.uint8).any():
                raise Unusual
        return True

    def headers(self, block: int, limit: int, blocks_a_header: float) -> _Headers:
        """Read the next headers, about `limit` of them, that lie in a chain from `block` on."""
        if blocks_a_header <= _NEAR_BLOCKS and not self.magics_mislead:
            stop = block + max(_FIRST_BATCH, int(limit * blocks_a_header))
            headers = self._read(self._guessed(block, stop))
            if headers is not None and headers.positions[0] == block and headers.are_a_chain():
                return headers
            self.magics_mislead = True
        headers = self._read(self._followed(block, limit))
        if headers is None or not headers.are_a_chain():
            raise Unusual
        return headers

    def _guessed(self, start: int, stop: int) -> Int64Array:
        """Find the blocks that have a header's magic."""
        magics = self.blocks[start:stop, _MAGIC_WORD] & _MAGIC_BITS
        return np.flatnonzero(magics == _ANY_MAGIC) + start

    def _followed(self, block: int, limit: int) -> Int64Array:
        """Go from header to header; what stands in them is not checked here."""
        view, num_blocks = self.view, len(self.blocks)
        found: list[int] = []
        while block < num_blocks and len(found) < limit:
            digits = block * BLOCK_BYTES + 124
            try:
                size = int(view[digits : digits + 11].tobytes(), 8)
            except ValueError:
                break
            found.append(block)
            block += 1 - (-size // BLOCK_BYTES)
        return np.array(found, dtype=np.int64)

    def _read(self, positions: Int64Array) -> _Headers | None:
        """Read the headers that lie at these blocks, up to the last one of a member."""
        if not len(positions):
            return None
        sizes_to_kinds = self.middles[positions].view("<u8").reshape(len(positions), -1).T
        kinds = sizes_to_kinds[-1] >> _16
        members = np.flatnonzero(kinds != _PAX)
        if not len(members):
            return None
        count = int(members[-1]) + 1
        return _Headers(self, positions[:count], sizes_to_kinds[:2, :count], kinds[:count])


class _Headers:
    """A batch of headers, and what they say; only a sound one gives its files."""

    def __init__(
        self, archive: _Archive, positions: Int64Array, size_words: Words, kinds: Words
    ) -> None:
        self.archive = archive
        self.positions = positions
        self.kinds = kinds
        first, last = size_words
        high, low = (first & _HIGH_HALF) | _FOUR_ZEROS, (last << _8) | _ZERO
        end = last >> _56
        self.sound = _are_octal(high) & _are_octal(low) & ((end == 0) | (end == _SPACE))
        self.sizes = ((_octal(high) << _21) | _octal(low)).astype(np.int64)
        self.next = positions + 1 + ((self.sizes + (BLOCK_BYTES - 1)) >> 9)
        self.stop = int(self.next[-1])

    def are_a_chain(self) -> bool:
        return bool((self.next[:-1] == self.positions[1:]).all())

    def files(self) -> Files:
        """Give the files among the members, if all is as it should be."""
        _require(self.sound)
        positions, sizes = self.positions, self.sizes
        chosen = self.kinds == _FILE
        if not chosen.all():
            self._check_others(chosen)
            positions, sizes = positions[chosen], sizes[chosen]
        names = self.archive.tables["file"].read(positions).checked_names()
        return Files(names=names, offsets=(positions + 1) * BLOCK_BYTES, sizes=sizes)

    def _check_others(self, files: NDArray[np.bool_]) -> None:
        """Check what is no file: folders, which have no data, and PAX headers."""
        pax, folders = self.kinds == _PAX, self.kinds == _FOLDER
        _require(files | pax | (folders & (self.sizes == 0)))
        archive = self.archive
        archive.tables["pax"].read(self.positions[pax]).checked_names()
        archive.tables["folder"].read(self.positions[folders]).checked_names()
        archive.records.check(archive.blocks, self.positions[pax] + 1, self.sizes[pax])


class _Table:
    """Reads headers by columns, those that vary: most words are the same in all of a kind."""

    def __init__(self, blocks: Words, space: Words) -> None:
        self.blocks = blocks
        self.space = space  # for the rows of a chunk: new memory is slow
        self.varied = np.zeros(_BLOCK_WORDS, dtype=bool)  # words that did so far

    def read(self, positions: Int64Array) -> _Columns:
        """Read the headers that lie at these blocks."""
        if not len(positions):
            return _Columns(0, self.space[0], {})
        kept = np.flatnonzero(self.varied)
        columns = np.empty((len(kept), len(positions)), dtype=np.uint64)
        first = self.blocks[positions[0]]
        pattern = np.concatenate([first] * _ROWS)
        varies = np.zeros(_BLOCK_WORDS, dtype=bool)
        for start in range(0, len(positions), _CHUNK):
            chunk = positions[start : start + _CHUNK]
            rows = self.space[: len(chunk)]
            np.take(self.blocks, chunk, axis=0, out=rows, mode="clip")
            columns[:, start : start + len(chunk)] = rows.T[kept]
            varies |= ~self._same(len(chunk), first, pattern)
        if (varies & ~self.varied).any():
            self.varied |= varies
            return self.read(positions)
        return _Columns(len(positions), first, dict(zip(kept.tolist(), columns, strict=True)))

    def _same(self, num_rows: int, first: Words, pattern: Words) -> NDArray[np.bool_]:
        """Tell which words are the same in all rows; several rows at a time, for long loops."""
        num_wide = -(-num_rows // _ROWS)
        self.space[num_rows : num_wide * _ROWS] = first
        rows = self.space[: num_wide * _ROWS].reshape(num_wide, _ROWS * _BLOCK_WORDS)
        narrowed = np.logical_and.reduce(rows == pattern, axis=0)
        same: NDArray[np.bool_] = narrowed.reshape(_ROWS, _BLOCK_WORDS).all(axis=0)
        return same


@dataclass(frozen=True, slots=True)
class _Columns:
    """Some headers by columns: each word of those that vary, and one for all of the others."""

    num_rows: int
    first: Words
    varying: dict[int, Words]

    def column(self, word: int) -> Words:
        found = self.varying.get(word)
        return self.first[word : word + 1] if found is None else found

    def checked_names(self) -> Words:
        """Check all that a header holds besides kind and size; give the names by columns."""
        if not self.num_rows:
            return np.zeros((1, 0), dtype=np.uint64)
        magic, version = self.column(_MAGIC_WORD), self.column(_VERSION_WORD) & _BYTE_0
        posix = (magic == _POSIX_MAGIC) & (version == _ZERO)
        gnu = (magic == _GNU_MAGIC) & (version == 0)
        low, high = self.column(_SUM_WORD) >> _32, self.column(_KIND_WORD)
        digits = _TWO_ZEROS | (low << _16) | (high << _48)
        # The field counts as eight spaces; it holds six digits, a NUL and a space.
        difference = 7 * ord(" ") + 2 * ord("0") - _byte_sums([digits])
        _require(
            posix | gnu,
            (self.column(_PREFIX_WORD) & _BYTE_1) == 0,
            _are_octal(digits),
            self._byte_sums() + difference == _octal(digits),
        )
        return self._names()

    def _names(self) -> Words:
        last = NAME_WORDS - 1
        ends = self.column(last) & _LOW_HALF  # the other half is none of the name
        used = NAME_WORDS if ends.any() else last
        while used > 1 and used < NAME_WORDS and not self.column(used - 1).any():
            used -= 1
        names = np.empty((used, self.num_rows), dtype=np.uint64)
        for word in range(used):
            names[word] = self.column(word) if word < last else ends
        return names

    def _byte_sums(self) -> Words:
        same = self.first.view(np.uint8).sum(dtype=np.uint64)
        for word in self.varying:
            same -= self.first[word : word + 1].view(np.uint8).sum(dtype=np.uint64)
        sums: Words = _byte_sums(self.varying.values()) + same
        return sums


def _require(*conditions: NDArray[np.bool_]) -> None:
    if not all(condition.all() for condition in conditions):
        raise Unusual


def _are_octal(digits: Words) -> NDArray[np.bool_]:
    """Whether all eight bytes of a word are octal digits."""
    are: NDArray[np.bool_] = (digits & ~_OCTAL_BITS) == _EIGHT_ZEROS
    return are


def _octal(digits: Words) -> Words:
    """Read the eight octal digits of each word; the first one is the lowest byte."""
    value = digits & _OCTAL_BITS
    value = ((value << _3) + (value >> _8)) & _SIX_OF_16
    value = ((value << _6) + (value >> _16)) & _TWELVE_OF_32
    return ((value << _12) + (value >> _32)) & _LAST_24


def _byte_sums(columns: Iterable[Words]) -> Words:
    """Add the bytes of up to 64 words, column by column; four lanes of 128 bytes fit 16 bits."""
    total = np.zeros(1, dtype=np.uint64)
    for column in columns:
        total = total + (column & _EACH_SECOND_BYTE) + ((column >> _8) & _EACH_SECOND_BYTE)
    total = (total & _LOW_TWO_OF_FOUR) + ((total >> _16) & _LOW_TWO_OF_FOUR)
    return (total & _LOW_HALF) + (total >> _32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """What PAX records of one size look like, but for their values."""

    size: int
    mask: Words
    expected: Words


class _Records:
    """Checks that PAX records change nothing, by layouts that were read carefully once."""

    def __init__(self) -> None:
        self.layouts: list[_Layout] = []

    def check(self, blocks: Words, positions: Int64Array, sizes: Int64Array) -> None:
        """Check the records that lie at these blocks and have these sizes, in bytes."""
        if not len(positions):
            return
        if sizes.min() < 1 or sizes.max() > BLOCK_BYTES or positions[-1] >= len(blocks):
            raise Unusual
        rows = blocks[:, : -(-int(sizes.max()) // 8)][positions]
        for layout in self.layouts:
            left = ~_have_layout(rows, sizes, layout)
            rows, sizes = rows[left], sizes[left]
            if not len(rows):
                return
        while len(rows):
            layout = _layout(rows[0].tobytes()[: int(sizes[0])])
            self.layouts.append(layout)
            if len(self.layouts) > _MAX_RECORD_LAYOUTS:
                raise Unusual
            left = ~_have_layout(rows, sizes, layout)
            rows, sizes = rows[left], sizes[left]


def _have_layout(rows: Words, sizes: Int64Array, layout: _Layout) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = sizes == layout.size
    width = min(rows.shape[1], len(layout.mask))  # of another size, where rows are shorter
    for word in range(width):
        same &= (rows[:, word] & layout.mask[word]) == layout.expected[word]
    return same


def _layout(content: bytes) -> _Layout:
    """Read records carefully, and mark which of their bytes are values."""
    try:
        keywords = pax_records(content)
    except FieldError:
        raise Unusual from None
    if any(map(changes_a_member, keywords)):
        raise Unusual
    mask = bytearray(b"\xff" * len(content)).ljust(BLOCK_BYTES, b"\0")
    position = 0
    while position < len(content) and content[position]:
        space = content.index(b" ", position)
        end = position + int(content[position:space])
        value = content.index(b"=", space) + 1
        mask[value : end - 1] = bytes(end - 1 - value)
        position = end
    mask_words = np.frombuffer(mask, dtype="<u8")
    expected = np.frombuffer(content.ljust(BLOCK_BYTES, b"\0"), dtype="<u8") & mask_words
    num_words = -(-len(content) // 8)
    return _Layout(size=len(content), mask=mask_words[:num_words], expected=expected[:num_words])
