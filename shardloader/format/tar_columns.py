"""Where do the members of an ordinary archive lie, found by the thousand?

The archive is seen as a table of 512-byte blocks of 64 words, and a batch of headers is read by
columns of it. Ordinary are files and folders with ustar or GNU headers, all numbers octal, each
perhaps after a PAX header whose records change nothing that is read here; then nothing but zeros
from the end marker on. Whatever is not exactly that raises `Unusual`.

Where the headers lie may be guessed (by a mark, where members are small) or followed from
one to the next (where they are large: their data is not touched). Either way a batch holds only
if its headers are a chain: each is sound by its checksum, and the next is where it says.

What costs is memory and numpy's calls: the limit is to copy each header out of the map, which is a
quarter to three fifths of the whole. To read into a buffer instead of mapping gained nothing.

Word and bit numbers below are those of little-endian words: byte 8 * w + i of a block is bits
8 * i to 8 * i + 7 of its word w. Format: POSIX.1-2001, pax, "ustar Interchange Format".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardloader.format.pax_layouts import PaxLayouts
from shardloader.format.tar_header import BLOCK_BYTES
from shardloader.format.unusual import Unusual

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Words: TypeAlias = NDArray[np.uint64]
Int64Array: TypeAlias = NDArray[np.int64]
_Places: TypeAlias = "slice | Int64Array"

NAME_WORDS = 13  # 100 bytes of name, and 4 zeros
_BLOCK_WORDS = BLOCK_BYTES // 8
_HALF_WORDS = _BLOCK_WORDS // 2
_CHUNK = 2048  # halves of headers, which fit a core's cache
_BATCH = 8192  # files: what a batch needs fits a core's cache, and numpy's calls cost little
_FIRST_BATCH = 64
_NEAR_BLOCKS = 48  # up to so many a header, looking for marks costs less than following
_ZEROS_CHUNK_BYTES = 1 << 20

_SIZE_WORD, _SUM_WORD, _KIND_WORD, _MAGIC_WORD, _VERSION_WORD, _PREFIX_WORD = 15, 18, 19, 32, 33, 43


def _bits(value: int | bytes) -> Words:
    """Give a constant for arithmetic on words: an array without axes costs numpy the least."""
    if isinstance(value, bytes):
        value = int.from_bytes(value, "little")
    return np.array(value, dtype=np.uint64)


# The kind word from its third byte on: the checksum's end, the typeflag, a link's first bytes.
_FILE, _FOLDER, _PAX = (_bits(b"\0 %b\0\0\0" % typeflag) for typeflag in (b"0", b"5", b"x"))
_POSIX_MAGIC, _GNU_MAGIC = map(_bits, (b"\0ustar\x000", b"\0ustar  "))
# A header's mark: the NUL and the space behind the checksum, any typeflag, no link.
_MARK, _MARK_BITS = _bits(b"\0 "), _bits(b"\xff\xff\0\xff\xff\xff\0\0")
_SPACE, _ZERO = _bits(b" "), _bits(b"0")
_BYTE_0, _BYTE_1 = _bits(0xFF), _bits(0xFF00)
_LOW_HALF, _HIGH_HALF = _bits((1 << 32) - 1), _bits((1 << 64) - (1 << 32))
_TWO_ZEROS, _FOUR_ZEROS, _EIGHT_ZEROS = _bits(b"00"), _bits(b"0000"), _bits(b"00000000")
_OCTAL_BITS = _bits(b"\x07" * 8)
_EACH_SECOND_BYTE, _LOW_TWO_OF_FOUR = _bits(b"\xff\0" * 4), _bits(b"\xff\xff\0\0" * 2)
_SIX_OF_16, _TWELVE_OF_32, _LAST_24 = (
    _bits(b"\x3f\0" * 4),
    _bits(b"\xff\x0f\0\0" * 2),
    _bits(0xFFFFFF),
)
_NO_NAMES, _NO_NUMBERS = np.zeros((1, 0), dtype=np.uint64), np.zeros(0, dtype=np.int64)
_3, _6, _8, _12, _16, _21, _32, _48, _56 = map(_bits, (3, 6, 8, 12, 16, 21, 32, 48, 56))


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Some files of an archive in order: n rows of each.

    `names` is uint64 [1 to 13, n], the name field by columns up to its last word in use, zeros
    behind its 100 bytes. `offsets` (of the data) and `sizes` are int64 [n], bytes.
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
        self.layouts = PaxLayouts(view)
        self.space = _Space(blocks)
        self.tables = _tables(self.space)
        self.marks_mislead = False  # an archive in the archive, most likely

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
        if blocks_a_header <= _NEAR_BLOCKS and not self.marks_mislead:
            stop = block + max(_FIRST_BATCH, int(limit * blocks_a_header))
            headers = self._read(*self._guessed(block, stop))
            if headers is not None and headers.are_a_chain_from(block):
                return headers
            self.marks_mislead = True
            self.tables = _tables(self.space)  # what was no header may have varied widely
        headers = self._read(*self._followed(block, limit))
        if headers is None or not headers.are_a_chain_from(block):
            raise Unusual
        return headers

    def _guessed(self, start: int, stop: int) -> tuple[Int64Array, Words]:
        """Find the blocks that have a header's mark, and what they say of their kind."""
        words = self.blocks[start:stop, _KIND_WORD] >> _16
        places = np.flatnonzero((words & _MARK_BITS) == _MARK)
        return places + start, words[places]

    def _followed(self, block: int, limit: int) -> tuple[Int64Array, Words]:
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
        positions = np.array(found, dtype=np.int64)
        return positions, self.blocks[positions, _KIND_WORD] >> _16

    def _read(self, positions: Int64Array, kinds: Words) -> _Headers | None:
        """Read the headers that lie at these blocks, up to the last one of a member."""
        places = _places_of_kinds(kinds)
        if places is None:
            return None
        count, by_kind = places
        return _Headers(self, positions[:count], by_kind)


def _places_of_kinds(kinds: Words) -> tuple[int, dict[str, _Places]] | None:
    """Tell where in a batch the headers of each kind are, up to the last one of a member.

    None if there is no member, or a kind of header that is not read here.
    """
    is_file, is_pax = kinds == _FILE, kinds == _PAX
    if len(kinds) and is_file.all():
        return len(kinds), {"file": slice(None)}
    if len(kinds) > 1 and is_pax[::2].all() and is_file[1::2].all():
        return len(kinds) // 2 * 2, {"pax": slice(0, None, 2), "file": slice(1, None, 2)}
    is_folder = kinds == _FOLDER
    members = np.flatnonzero(~is_pax)
    if not len(members) or not (is_file | is_pax | is_folder).all():
        return None
    count = int(members[-1]) + 1
    masks = {"file": is_file, "pax": is_pax, "folder": is_folder}
    return count, {kind: np.flatnonzero(mask[:count]) for kind, mask in masks.items()}


class _Headers:
    """A batch of headers, and what they say; only a sound one gives its files."""

    def __init__(
        self, archive: _Archive, positions: Int64Array, places_by_kind: dict[str, _Places]
    ) -> None:
        self.archive = archive
        self.positions = positions
        self.groups: dict[str, _Group] = {}
        self.sizes = np.empty(len(positions), dtype=np.int64)
        for kind, places in places_by_kind.items():
            chosen = positions[places]
            if not len(chosen):
                continue
            group = self.groups[kind] = _Group(chosen, archive.tables[kind].read(chosen))
            self.sizes[places] = group.sizes
        self.next = positions + 1 + ((self.sizes + (BLOCK_BYTES - 1)) >> 9)
        self.stop = int(self.next[-1])

    def are_a_chain_from(self, block: int) -> bool:
        begin = int(self.positions[0]) == block
        return begin and bool((self.next[:-1] == self.positions[1:]).all())

    def files(self) -> Files:
        """Give the files among the members, if all is as it should be."""
        for group in self.groups.values():
            _require(*group.size_is_sound)
            group.columns.check()
        if "folder" in self.groups:
            _require(self.groups["folder"].sizes == 0)
        if "pax" in self.groups:
            pax = self.groups["pax"]
            self.archive.layouts.check(pax.positions + 1, pax.sizes)
        if "file" not in self.groups:
            return Files(names=_NO_NAMES, offsets=_NO_NUMBERS, sizes=_NO_NUMBERS)
        files = self.groups["file"]
        return Files(
            names=files.columns.names(),
            offsets=(files.positions + 1) * BLOCK_BYTES,
            sizes=files.sizes,
        )


class _Group:
    """The headers of one kind."""

    def __init__(self, positions: Int64Array, columns: _Columns) -> None:
        self.positions = positions
        self.columns = columns
        first, last = columns.column(_SIZE_WORD), columns.column(_SIZE_WORD + 1)
        high, low = (first & _HIGH_HALF) | _FOUR_ZEROS, (last << _8) | _ZERO
        end = last >> _56
        self.size_is_sound = _are_octal(high), _are_octal(low), (end == 0) | (end == _SPACE)
        # One for all headers, or one for each; if it is not sound, it may be anything.
        sizes = ((_octal(high) << _21) | _octal(low)).astype(np.int64)
        self.sizes: Int64Array = np.broadcast_to(sizes, (len(positions),))


def _tables(space: _Space) -> dict[str, _Table]:
    return {kind: _Table(space) for kind in ("file", "folder", "pax")}


class _Space:
    """Memory for the rows of a chunk, used again and again: new memory is slow.

    The halves of headers lie apart: the second mostly is the same in all.
    """

    def __init__(self, blocks: Words) -> None:
        self.blocks = blocks
        halves = blocks.reshape(2 * len(blocks), _HALF_WORDS)
        self._halves = halves, halves[1:]  # row 2 * n is half a block n
        self._bytes = bytearray(_CHUNK * _HALF_WORDS * 8)
        self._rows = np.frombuffer(self._bytes, dtype=np.uint64).reshape(_CHUNK, _HALF_WORDS)

    def take(self, half: int, doubled_positions: Int64Array) -> Words:
        """Copy a half of some blocks and give it, a row each, until the next call."""
        rows = self._rows[: len(doubled_positions)]
        self._halves[half].take(doubled_positions, axis=0, out=rows, mode="clip")
        return rows

    def holds_only(self, row: Words, num_rows: int) -> bool:
        """Whether each of the first rows is `row`: each is the one before; bytes compare fast."""
        behind_the_first = memoryview(self._bytes)[row.nbytes : num_rows * row.nbytes]
        return bool((self._rows[0] == row).all()) and self._bytes.startswith(behind_the_first)


class _Table:
    """Reads headers by columns, those that vary: most words are the same in all of a kind."""

    def __init__(self, space: _Space) -> None:
        self._halves = _HalfTable(space, 0), _HalfTable(space, 1)
        self._blocks = space.blocks

    def read(self, positions: Int64Array) -> _Columns:
        """Read the headers that lie at these blocks."""
        first = self._blocks[int(positions[0])]
        front, back = (half.read(2 * positions) for half in self._halves)
        return _Columns(len(positions), first, front | back)


class _HalfTable:
    """Reads half of each header, and learns which words of it vary."""

    def __init__(self, space: _Space, half: int) -> None:
        self._space = space
        self._half = half
        self._varied = np.zeros(_HALF_WORDS, dtype=bool)  # words that did so far

    def read(self, doubled_positions: Int64Array) -> dict[int, Words]:
        """Give the columns of the words that vary, by the words' places in the block."""
        kept = np.flatnonzero(self._varied).tolist()
        columns = np.empty((len(kept), len(doubled_positions)), dtype=np.uint64)
        for start in range(0, len(doubled_positions), _CHUNK):
            rows = self._space.take(self._half, doubled_positions[start : start + _CHUNK])
            for column, word in zip(columns, kept, strict=True):
                column[start : start + len(rows)] = rows[:, word]
                rows[:, word] = 0
            if not start:
                same = rows[0].copy()
            if not self._space.holds_only(same, len(rows)):
                self._varied |= (rows != same).any(axis=0)
                return self.read(doubled_positions)  # more columns
        before = self._half * _HALF_WORDS
        return {before + word: column for word, column in zip(kept, columns, strict=True)}


@dataclass(frozen=True, slots=True)
class _Columns:
    """Some headers by columns: each word of those that vary, and one for all of the others."""

    num_rows: int
    first: Words
    varying: dict[int, Words]

    def column(self, word: int) -> Words:
        found = self.varying.get(word)
        return self.first[word : word + 1] if found is None else found

    def check(self) -> None:
        """Check all that a header holds besides kind and size."""
        magic, version = self.column(_MAGIC_WORD), self.column(_VERSION_WORD) & _BYTE_0
        posix = (magic == _POSIX_MAGIC) & (version == _ZERO)
        gnu = (magic == _GNU_MAGIC) & (version == 0)
        sum_high, sum_low = self.column(_SUM_WORD) >> _32, self.column(_KIND_WORD)
        digits = _TWO_ZEROS | (sum_high << _16) | (sum_low << _48)
        _require(
            posix | gnu,
            (self.column(_PREFIX_WORD) & _BYTE_1) == 0,
            _are_octal(digits),
            self._byte_sums() == _octal(digits),
        )

    def names(self) -> Words:
        last = NAME_WORDS - 1
        ends = self.column(last) & _LOW_HALF  # the other half is none of the name
        used = NAME_WORDS
        if not ends.any():
            in_use = (word for word in range(last) if word in self.varying or self.first[word])
            used = 1 + max(in_use, default=0)
        names = np.empty((used, self.num_rows), dtype=np.uint64)
        for word in range(used):
            names[word] = self.column(word) if word < last else ends
        return names

    def _byte_sums(self) -> Words:
        """Add the bytes of each header, where those of the checksum count as spaces."""
        blank = self.first.copy()
        blank[list(self.varying)] = 0
        blank[_SUM_WORD] &= _LOW_HALF
        blank[_KIND_WORD] = self.first[_KIND_WORD] & _HIGH_HALF  # the same in all of a kind
        columns = [
            column & _LOW_HALF if word == _SUM_WORD else column
            for word, column in self.varying.items()
            if word != _KIND_WORD
        ]
        same = blank.view(np.uint8).sum(dtype=np.uint64) + np.uint64(8 * ord(" "))
        sums: Words = _byte_sums(columns) + same
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
