"""Which samples do the names of many files make, a column of bytes at a time?

The rules are those of `shardloader.format.samples`, whose functions read each *distinct* field;
keys are never made into strings. Whatever would be worth a notice or an error raises `Unusual`,
and so does some of what only resembles it: a key that comes back, a field twice in a sample, a
name without extension, one that begins with two underscores, a path that may climb.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shardloader.format.samples import seems_to_hold_a_key, split_name
from shardloader.format.tar_columns import NAME_WORDS
from shardloader.format.unusual import Unusual

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardloader.format.tar_columns import Int64Array, Words

_T = TypeVar("_T", bound=np.generic)

_MAX_SUFFIXES = 10_000
_MAX_MEMBERS = 64  # of a sample
_DOT, _SLASH = b"./"
_DOT_BITS, _SLASH_BITS, _ONE_BYTE = (np.array(n, dtype=np.uint64) for n in (_DOT, _SLASH, 0xFF))
_LETTERS = np.array(0x6161616161616161, dtype=np.uint64)
_BITS = [np.array(8 * num_bytes, dtype=np.uint64) for num_bytes in range(8)]
_TWO_BYTES, _TWO_UNDERSCORES = (np.array(bits, dtype=np.uint64) for bits in (0xFFFF, 0x5F5F))
_ODD = np.array(0xD6E8FEB86659FD93, dtype=np.uint64)
_ODDS = [np.array(0x9E3779B97F4A7C15 + 2 * word, dtype=np.uint64) for word in range(NAME_WORDS)]
_29, _32 = np.array(29, dtype=np.uint64), np.array(32, dtype=np.uint64)
_SEVEN_BYTES = np.array((1 << 56) - 1, dtype=np.uint64)
_ROW = 8 * NAME_WORDS

_BEFORE = np.tri(_ROW + 1, _ROW, -1, dtype=bool)  # row n has n times True
_MASKS = np.ascontiguousarray((_BEFORE * np.uint8(0xFF)).view("<u8").T)  # word, then n


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """The samples that names make, as columns of a `SampleIndex`."""

    fields: tuple[str, ...]
    sample_starts: Int64Array
    member_fields: NDArray[np.uint32]
    key_starts: Int64Array
    key_bytes: NDArray[np.uint8]


class NameColumns:
    """Collects names in order, and gives the columns of a sample index."""

    def __init__(self) -> None:
        self._suffixes = _Suffixes()
        self._last_key = bytes(_ROW)
        self._begins: list[NDArray[np.bool_]] = []
        self._numbers: list[NDArray[np.uint32]] = []
        self._key_lengths: list[Int64Array] = []
        self._key_bytes: list[NDArray[np.uint8]] = []
        self._key_hashes: list[Words] = []

    def take(self, names: Words) -> None:
        """Add names, by columns of words; what is behind a name are zeros."""
        if not names.size:
            return
        if ((names[0] & _TWO_BYTES) == _TWO_UNDERSCORES).any():
            raise Unusual  # a reserved name, perhaps
        if self._take_keys_of_a_length(names):
            return
        flat, text = _text(names)
        lengths = _lengths(text)
        dots = _dots(text, lengths)
        starts = np.arange(0, text.size, text.shape[1])
        suffixes = _suffix_columns(flat, starts + dots + 1, lengths - dots - 1)
        self._numbers.append(self._suffixes.numbers(suffixes))
        self._take_keys(_masked(names, dots), dots)

    def _take_keys_of_a_length(self, names: Words) -> bool:
        """Add names whose keys are of one length, if these are; tell whether they are.

        Then nothing need be looked for name by name. Directories have no dots here.
        """
        first = names[:, 0].tobytes()
        length = first.find(b".", first.rfind(b"/") + 1)
        keys = None if length < 1 else _keys_of_length(names, length)
        if keys is None:
            return False
        suffixes = _behind(names, length + 1)
        if b"/" in suffixes.tobytes():
            return False
        self._numbers.append(self._suffixes.numbers(suffixes))
        self._take_keys(keys, np.full(names.shape[1], length))
        return True

    def _take_keys(self, keys: Words, lengths: Int64Array) -> None:
        begins = np.zeros(len(lengths), dtype=bool)
        for key in keys:
            begins[1:] |= key[1:] != key[:-1]
        first, last = keys[:, 0].tobytes(), keys[:, -1].tobytes()
        begins[0] = first.ljust(_ROW, b"\0") != self._last_key
        self._last_key = last.ljust(_ROW, b"\0")
        self._begins.append(begins)
        chosen = np.flatnonzero(begins)
        if not len(chosen):
            return
        lengths, keys = lengths[chosen], keys[:, chosen]
        self._key_lengths.append(lengths)
        self._key_hashes.append(_hashes(keys))
        letters = np.ascontiguousarray(keys.T).view(np.uint8)
        longest = int(lengths.max())
        if longest == lengths.min():
            self._key_bytes.append(letters[:, :longest].ravel())
        else:
            self._key_bytes.append(letters[_BEFORE[:, : letters.shape[1]].take(lengths, axis=0)])

    def finish(self) -> Grouped:
        """Give what the names make, once all were taken."""
        if not self._key_hashes:
            raise Unusual  # no samples
        hashes = _joined(self._key_hashes)
        hashes.sort()
        if (hashes[1:] == hashes[:-1]).any():
            raise Unusual  # a key that comes back (or, once in many lives, only its hash)
        begins = _joined(self._begins)
        starts = np.append(np.flatnonzero(begins), len(begins))
        fields, places = self._suffixes.fields()
        numbers = places[_joined(self._numbers)]
        _refuse_a_field_twice(begins, starts, numbers)
        key_starts = np.zeros(len(starts), dtype=np.int64)
        np.cumsum(_joined(self._key_lengths), out=key_starts[1:])
        return Grouped(
            fields=fields,
            sample_starts=starts,
            member_fields=numbers,
            key_starts=key_starts,
            key_bytes=_joined(self._key_bytes),
        )


def _joined(parts: list[NDArray[_T]]) -> NDArray[_T]:
    """Join arrays, and let their memory go."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole


def _text(names: Words) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Give the names as bytes, flat and by rows, with a NUL at the end of every row.

    Behind the rows the flat bytes go on, so that any row can be read as if it were the longest.
    """
    used, rows = names.shape
    width = used + bool((names[-1] > _SEVEN_BYTES).any())
    flat = np.empty(rows * width + NAME_WORDS, dtype=np.uint64)
    flat[rows * width :] = 0
    text = flat[: rows * width].reshape(rows, width)
    text[:, :used] = names.T
    text[:, used:] = 0
    return flat.view(np.uint8), text.view(np.uint8)


def _keys_of_length(names: Words, length: int) -> Words | None:
    """Give what precedes the dots, if all names have one behind `length` bytes.

    None if not, or if what precedes them has to be looked at closely.
    """
    word, shift = divmod(length, 8)
    if (((names[word] >> _BITS[shift]) & _ONE_BYTE) != _DOT_BITS).any():
        return None
    keys = names[: -(-length // 8)].copy()
    if shift:
        keys[-1] &= _MASKS[0, shift]
        filled = np.concatenate((keys[:-1].ravel(), keys[-1] | (_LETTERS & ~_MASKS[0, shift])))
    raw = (filled if shift else keys).tobytes()
    if any(byte in raw for byte in (b".", b"\0", b"\\")):
        return None
    if b"/" in raw:
        last_word, last_shift = divmod(length - 1, 8)
        ends = (keys[last_word] >> _BITS[last_shift]) & _ONE_BYTE
        if (ends == _SLASH_BITS).any() or ((keys[0] & _ONE_BYTE) == _SLASH_BITS).any():
            return None
    return keys


def _behind(names: Words, start: int) -> Words:
    """Give what stands in all names from byte `start` on."""
    word, shift = divmod(start, 8)
    columns = names[word:]
    if not shift:
        return columns if len(columns) else np.zeros((1, names.shape[1]), dtype=np.uint64)
    shifted = columns >> _BITS[shift]
    shifted[:-1] |= columns[1:] << _BITS[8 - shift]
    return shifted


def _masked(columns: Words, lengths: Int64Array) -> Words:
    """Give the first `lengths` bytes of each row, and zeros behind."""
    kept = np.empty_like(columns)
    shortest, longest = int(lengths.min()), int(lengths.max())
    for word, column in enumerate(columns):
        if shortest >= 8 * (word + 1):
            kept[word] = column
        elif shortest == longest:
            np.bitwise_and(column, _MASKS[word, longest], out=kept[word])
        else:
            np.bitwise_and(column, _MASKS[word].take(lengths), out=kept[word])
    return kept


def _lengths(text: NDArray[np.uint8]) -> Int64Array:
    """Give the names' lengths; there must be nothing behind their ends."""
    ends = text == 0
    lengths: Int64Array = ends.argmax(axis=1)
    if np.count_nonzero(ends) != text.size - lengths.sum():
        raise Unusual
    return lengths


def _dots(text: NDArray[np.uint8], lengths: Int64Array) -> Int64Array:
    """Find the dot between key and field: the first one of the base name."""
    is_dot, raw = text == _DOT, text.tobytes()
    bases: Int64Array | int = 0
    if b"/" in raw:
        is_slash = text == _SLASH
        _refuse_climbing_paths(is_dot, is_slash)
        width = text.shape[1]
        back = is_slash[:, ::-1].argmax(axis=1)  # 0 if there is none: a row ends with a NUL
        bases = np.where(back == 0, 0, width - back)
        is_dot &= ~_BEFORE[:, :width].take(bases, axis=0)
    dots: Int64Array = is_dot.argmax(axis=1)
    # A row without a dot has 0 here, which is not behind its base name's first byte.
    if (dots <= bases).any() or (dots >= lengths - 1).any() or b"\\" in raw:
        raise Unusual
    return dots


def _refuse_climbing_paths(is_dot: NDArray[np.bool_], is_slash: NDArray[np.bool_]) -> None:
    dots, slashes = is_dot.ravel(), is_slash.ravel()
    if is_slash[:, 0].any() or (dots[:-2] & dots[1:-1] & slashes[2:]).any():
        raise Unusual


def _hashes(columns: Words) -> Words:
    """Hash the rows of some columns of words; columns of zeros at the end make no difference.

    One column is its own hash: then two rows of one hash are the same.
    """
    total: Words = columns[0].copy()
    for word, column in enumerate(columns[1:]):
        mixed = column * _ODDS[word]
        mixed ^= mixed >> _29
        mixed *= _ODD
        mixed ^= mixed >> _32
        total += mixed
    return total


def _refuse_a_field_twice(
    begins: NDArray[np.bool_], starts: Int64Array, numbers: NDArray[np.uint32]
) -> None:
    """Compare each member with those behind it in its sample, at every distance."""
    longest = int(np.diff(starts).max())
    if longest > _MAX_MEMBERS:
        raise Unusual
    apart = np.zeros(len(begins), dtype=bool)
    for distance in range(1, longest):
        apart = apart[:-1] | begins[distance:]
        if ((numbers[distance:] == numbers[:-distance]) & ~apart).any():
            raise Unusual


class _Suffixes:
    """The distinct suffixes met so far, which are read as fields once each."""

    def __init__(self) -> None:
        self._hashes: Words = np.zeros(0, dtype=np.uint64)  # sorted
        self._columns: Words = np.zeros((NAME_WORDS, 0), dtype=np.uint64)
        self._width = 0  # how many of those are in use
        self._numbers: NDArray[np.uint32] = np.zeros(0, dtype=np.uint32)
        self._first_seen: dict[str, int] = {}

    def numbers(self, columns: Words) -> NDArray[np.uint32]:
        """Give the number of the field that each suffix is; zeros stand behind it."""
        hashes = _hashes(columns)
        places = self._places(hashes)
        new = self._hashes[places] != hashes if len(self._hashes) else np.ones(len(hashes), bool)
        if new.any():
            self._add(columns[:, new], hashes[new])
            places = self._places(hashes)
        if self._width > 1:
            self._check(places, columns)
        return self._numbers[places]

    def _check(self, places: Int64Array, columns: Words) -> None:
        """Refuse two suffixes of one hash."""
        nothing = np.zeros(1, dtype=np.uint64)
        for word in range(self._width):
            column = columns[word] if word < len(columns) else nothing
            if (self._columns[word].take(places) != column).any():
                raise Unusual

    def _places(self, hashes: Words) -> Int64Array:
        return np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)

    def _add(self, columns: Words, hashes: Words) -> None:
        hashes, firsts = np.unique(hashes, return_index=True)
        if len(self._hashes) + len(hashes) > _MAX_SUFFIXES:
            raise Unusual
        suffixes = [columns[:, first].tobytes().rstrip(b"\0") for first in firsts]
        numbers = np.array([self._number(suffix) for suffix in suffixes], dtype=np.uint32)
        hashes = np.concatenate((self._hashes, hashes))
        order = np.argsort(hashes)
        wider = np.zeros((NAME_WORDS, len(hashes)), dtype=np.uint64)
        wider[:, : len(self._hashes)] = self._columns
        wider[: len(columns), len(self._hashes) :] = columns[:, firsts]
        self._width = max(self._width, len(columns))
        self._hashes, self._columns = hashes[order], wider[:, order]
        self._numbers = np.concatenate((self._numbers, numbers))[order]

    def _number(self, suffix: bytes) -> int:
        if b"\0" in suffix or b"\\" in suffix:
            raise Unusual  # it may hold more than a name, or a path of Windows
        parts = split_name("key." + suffix.decode("utf-8", "surrogateescape"))
        if parts is None or parts[0] != "key" or seems_to_hold_a_key(parts[1]):
            raise Unusual
        return self._first_seen.setdefault(parts[1], len(self._first_seen))

    def fields(self) -> tuple[tuple[str, ...], NDArray[np.uint32]]:
        """Give the fields, sorted by their UTF-8 bytes, and the place of each number there."""
        first_seen = self._first_seen
        fields = tuple(
            sorted(first_seen, key=lambda field: field.encode("utf-8", "surrogateescape"))
        )
        renumber = np.empty(len(fields), dtype=np.uint32)
        renumber[[first_seen[field] for field in fields]] = np.arange(len(fields), dtype=np.uint32)
        return fields, renumber


def _suffix_columns(flat: NDArray[np.uint8], starts: Int64Array, lengths: Int64Array) -> Words:
    words = np.ndarray((len(flat) - 7,), dtype="<u8", buffer=flat, strides=(1,))  # at every byte
    columns = np.empty((-(-int(lengths.max()) // 8), len(starts)), dtype=np.uint64)
    for word in range(len(columns)):
        columns[word] = words[starts + 8 * word]
    return _masked(columns, lengths)
