"""Which bytes come before and after a file's data in a tar?

The writing side of `shardloader.format.tar`. Headers are a pure function of name and size (mode
0644, no owner, time 0), so the same samples give the same shard, byte for byte.

| the name, as UTF-8                       | header                                          |
|------------------------------------------|-------------------------------------------------|
| at most 100 bytes                        | one ustar block                                 |
| splits at a `/` into 155 and 100 bytes   | one ustar block with its prefix field used      |
| anything longer, or 8 GiB of data        | a PAX `x` header with `path` or `size`, then ustar |

Formats: POSIX.1-2001, pax, "ustar Interchange Format" and "pax Header Block".
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from zlib import adler32

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

BLOCK_BYTES = 512
END_OF_ARCHIVE = bytes(2 * BLOCK_BYTES)

NAME_BYTES = 100
_PREFIX_BYTES = 155
USTAR_MAX_SIZE = 8**11 - 1  # eleven octal digits: 8 GiB less one

_NUL = bytes(1)  # apart: in a literal, digits after \0 would be read as part of the escape
_OWNER = b"0000644" + _NUL + b"0000000" + _NUL + b"0000000" + _NUL  # mode, uid, gid
_MTIME = _NUL + b"00000000000" + _NUL  # the end of the size field, then the time
_LINK_TO_DEVICES = bytes(100) + b"ustar" + _NUL + b"00" + bytes(32 + 32 + 8 + 8)
_TAIL = bytes(12)
_FILE = b"%b" + _OWNER + b"%b" + _MTIME + b"%06o\0 0" + _LINK_TO_DEVICES + bytes(155) + _TAIL
_PAX_NAME = b"././@PaxHeader"
_CHECKSUM_AS_SPACES = 8 * ord(" ")
_BASE_SUM = sum(_OWNER) + sum(_MTIME) + _CHECKSUM_AS_SPACES + sum(_LINK_TO_DEVICES)
_FILE_SUM = _BASE_SUM + ord("0")
_SIZE_END, _CHECKSUM_AT = 135, 148


def padding(size: int) -> int:
    """Give the number of zero bytes that follow `size` bytes of data.

    >>> padding(0), padding(1), padding(512)
    (0, 511, 0)
    """
    return -size % BLOCK_BYTES


def member_header(name: str, size: int) -> bytes:
    r"""Give all header bytes of a regular file: 512 of them, or more when PAX is needed.

    `name` is written as UTF-8 (with surrogateescape, so that any name read is written back).
    Raises ValueError for a name that no tar can hold: empty, with a NUL, or ending in a slash.

    >>> len(member_header("000.jpg", 700)), len(member_header("x" * 300, 700))
    (512, 1536)
    """
    encoded = name.encode("utf-8", "surrogateescape")
    if not encoded or b"\0" in encoded or encoded.endswith(b"/"):
        raise ValueError(
            f"a tar member's name holds no NUL, is not empty and does not end in '/': {name!r}"
        )
    if size < 0:
        raise ValueError(f"a member's size is at least 0, not {size}")
    if len(encoded) <= NAME_BYTES and size <= USTAR_MAX_SIZE:
        digits = b"%011o" % size
        # Adler-32's lower half is 1 plus the sum of the bytes: exact for so few of them.
        checksum = _FILE_SUM - 1 + (adler32(encoded + digits) & 0xFFFF)
        return _FILE % (encoded.ljust(NAME_BYTES, b"\0"), digits, checksum)
    return _long_header(encoded, size)


def member_headers(
    keys: Sequence[str], endings: Sequence[str], sizes: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Give what `member_header` gives for each of many ordinary members, uint8 [members, 512].

    Members are named by a key and an ending, each key with all of the endings before the next one;
    `sizes` [members] are in that order. Names are ASCII, of 1 to 100 characters without NUL, and no
    slash at their end; sizes are below 8 GiB. Nothing of that is looked at again here: a property
    test holds that the bytes are equal.
    """
    text, longest = "".join(keys), max(map(len, keys))
    if len(text) < longest * len(keys):  # not all have one length
        keys, endings = [key + ending for key in keys for ending in endings], ("",)
        longest = max(map(len, keys))
        text = "".join([key.ljust(longest, "\0") for key in keys])
    letters = np.frombuffer(text.encode("ascii"), np.uint8).reshape(len(keys), longest)
    template, sums = _templates(tuple(endings), longest)
    of_keys = sizes.reshape(len(keys), len(endings))
    num_digits = -(-max(int(sizes.max()), 1).bit_length() // 3)
    digits = _octal(of_keys, num_digits)
    of_digits = digits.sum(axis=2, dtype=np.int64) - num_digits * ord("0")
    checksums = sums + letters.sum(axis=1, dtype=np.int64)[:, np.newaxis] + of_digits
    headers = np.empty((*of_keys.shape, BLOCK_BYTES), np.uint8)
    headers[:] = template
    headers[:, :, :longest] = letters[:, np.newaxis]
    headers[:, :, _SIZE_END - num_digits : _SIZE_END] = digits
    headers[:, :, _CHECKSUM_AT : _CHECKSUM_AT + 6] = _octal(checksums, 6)
    return headers.reshape(-1, BLOCK_BYTES)


@lru_cache(maxsize=256)  # the samples of one dataset have few sets of fields between them
def _templates(
    endings: tuple[str, ...], key_bytes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Give headers of empty files, the key left out of their names, and the sums of their bytes.

    uint8 [endings, 512] and int64 [endings]; in a sum the checksum counts as spaces.
    """
    digits = b"0" * 11
    names = [
        (bytes(key_bytes) + ending.encode("ascii")).ljust(NAME_BYTES, b"\0") for ending in endings
    ]
    made = b"".join([_FILE % (name, digits, 0) for name in names])
    sums = [_FILE_SUM + sum(name) + sum(digits) for name in names]
    template = np.frombuffer(made, np.uint8).reshape(len(names), BLOCK_BYTES)
    return template, np.array(sums, np.int64)


def _octal(numbers: NDArray[np.int64], num_digits: int) -> NDArray[np.uint8]:
    """Give the digits of numbers [...] as text, uint8 [..., num_digits]."""
    shifts = np.arange(3 * (num_digits - 1), -1, -3, dtype=np.int64)
    return ((numbers[..., np.newaxis] >> shifts & 7) + ord("0")).astype(np.uint8)


def _long_header(name: bytes, size: int) -> bytes:
    records = b""
    prefix, base = _split(name)
    if not base:
        prefix, base = b"", name[:NAME_BYTES]
        if not _is_utf8(name):
            records += _record(b"hdrcharset", b"BINARY")
        records += _record(b"path", name)
    if size > USTAR_MAX_SIZE:
        records += _record(b"size", b"%d" % size)
        size = 0
    header = _ustar(base, size, b"0", prefix)
    if not records:
        return header
    extension = _ustar(_PAX_NAME, len(records), b"x", b"")
    return extension + records + bytes(padding(len(records))) + header


def _split(name: bytes) -> tuple[bytes, bytes]:
    """Split into ustar's prefix and name at a slash; the name is empty where that can't be."""
    if len(name) <= NAME_BYTES:
        return b"", name
    cut = name.find(b"/", max(1, len(name) - NAME_BYTES - 1))
    if cut < 0 or cut > _PREFIX_BYTES:
        return b"", b""
    return name[:cut], name[cut + 1 :]


def _ustar(name: bytes, size: int, typeflag: bytes, prefix: bytes) -> bytes:
    digits = b"%011o" % size
    checksum = _BASE_SUM + sum(name) + sum(digits) + sum(typeflag) + sum(prefix)
    return b"".join(
        (
            name.ljust(NAME_BYTES, b"\0"),
            _OWNER,
            digits,
            _MTIME,
            b"%06o\0 " % checksum,
            typeflag,
            _LINK_TO_DEVICES,
            prefix.ljust(_PREFIX_BYTES, b"\0"),
            _TAIL,
        )
    )


def _record(keyword: bytes, value: bytes) -> bytes:
    """Give one PAX record: its own length in decimal, a space, keyword=value, a newline."""
    rest = len(keyword) + len(value) + 3  # the space, the equals sign, the newline
    length = rest + len(str(rest))
    if len(str(length)) > len(str(rest)):
        length = rest + len(str(length))
    return b"%d %b=%b\n" % (length, keyword, value)


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
