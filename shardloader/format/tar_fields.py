"""How does tar write a number, a name, a checksum and a PAX record?

Pure functions of a few bytes each; `shardloader.format.tar` walks the archive with them. Every one
raises `FieldError` with what is wrong; the walker adds shard and offset.

Formats: POSIX.1-2001, pax; GNU tar's manual, "Basic Tar Format" (base-256 numbers).
"""

from __future__ import annotations

CHECKSUM = slice(148, 156)
SPARSE_KEYWORDS = "GNU.sparse."


class FieldError(ValueError):
    """A field of a header can't be read; says which value and why."""


def text(field: bytes) -> str:
    """Decode a name that ends at its first NUL; any bytes have a name (surrogateescape)."""
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def number(field: bytes, what: str) -> int:
    r"""Read a number: octal digits padded with spaces or NULs, or GNU's base-256.

    >>> number(b"00000001274\0", "size"), number(b"\x80\0\0\0\0\0\0\x02\x40\0\0\0", "size")
    (700, 9663676416)
    """
    if field[0] & 0x80:
        return _base256(field, what)
    if field[:1] == b"\0" and field.strip(b"\0 "):
        raise FieldError(f"{what} begins with a NUL, which some readers skip, in {field!r}")
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if not digits:
        return 0
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise FieldError(f"{what} should be octal digits, not {field!r}")
    return int(digits, 8)


def _base256(field: bytes, what: str) -> int:
    bits = 8 * len(field) - 1  # the highest bit marks base-256, the next one is the sign
    value = int.from_bytes(field, "big") & ((1 << bits) - 1)
    if value >> (bits - 1):
        raise FieldError(f"negative {what} ({value - (1 << bits)} in base-256)")
    return value


def checksum_holds(block: bytes) -> bool:
    """Whether the header's sum is the stored one, taken over unsigned or over signed bytes."""
    try:
        stored = number(block[CHECKSUM], "checksum")
    except FieldError:
        return False
    summed = block[:148] + b"        " + block[156:]
    unsigned = sum(summed)
    if stored == unsigned:
        return True
    return stored == unsigned - 256 * sum(byte >= 0x80 for byte in summed)


def pax_records(data: bytes) -> dict[str, bytes]:
    r"""Read the records of a PAX extended header.

    >>> pax_records(b"17 path=000.json\n")
    {'path': b'000.json'}
    """
    records: dict[str, bytes] = {}
    position = 0
    while position < len(data) and data[position]:
        space = data.find(b" ", position, position + 20)
        digits = data[position:space]
        if space < 0 or not digits.isdigit():
            raise FieldError(f"PAX record without a length: {data[position : position + 20]!r}")
        end = position + int(digits)
        keyword, equals, value = data[space + 1 : end - 1].partition(b"=")
        if end > len(data) or end <= space + 1 or data[end - 1 : end] != b"\n" or not equals:
            raise FieldError(f"PAX record of wrong length: {data[position : position + 20]!r}")
        _check_record(keyword, value)
        word = keyword.decode("utf-8", "replace")
        if changes_a_member(word) and records.get(word, value) != value:
            raise FieldError(f"PAX records give two values of {word}")
        records[word] = value
        position = end
    return records


def _check_record(keyword: bytes, value: bytes) -> None:
    """Refuse what readers of tar read in different ways."""
    if not keyword:
        raise FieldError("PAX record without a keyword")
    if keyword in {b"path", b"size"} and (not value or b"\0" in value):
        raise FieldError(
            f"PAX {keyword.decode()} should be a text without NULs, not {value[:40]!r}"
        )


def changes_a_member(keyword: str) -> bool:
    """Whether a PAX record of this keyword says which member follows, or where its data lies."""
    return keyword in {"path", "size"} or keyword.startswith(SPARSE_KEYWORDS)


def pax_size(value: bytes) -> int:
    """Read the decimal number of a PAX `size` record."""
    if not value.isdigit() or len(value) > 20:
        raise FieldError(f"PAX size should be decimal digits, not {value[:40]!r}")
    return int(value)
