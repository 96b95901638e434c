"""Sizes in words: how many bytes a user means by "200MB"; and the sides of images and arrays.

Knows numbers and units only: kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024.
"""

from __future__ import annotations

import re
from typing import Any

from shardloader.errors import UsageError
from shardloader.order.integers import checked

_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_SIZE = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([a-z]*)", re.ASCII)


def parse_bytes(size: int | str) -> int:
    """Return `size`, a number of bytes or a text such as "200MB" or "1.5 GiB", as an int.

    Raises UsageError for anything else, and for less than one byte.

    >>> parse_bytes("200MB"), parse_bytes("1GiB"), parse_bytes(512)
    (200000000, 1073741824, 512)
    """
    number: object = _of_text(size) if isinstance(size, str) else size
    if isinstance(number, bool) or not isinstance(number, int):
        raise UsageError(
            f"a size is a whole number of bytes or a text such as '200MB', not {size!r}"
        )
    if number < 1:
        raise UsageError(f"a size is at least one byte, not {size!r}")
    return number


def _of_text(text: str) -> int:
    match = _SIZE.fullmatch(text.strip().lower())
    unit = _UNITS.get(match[2]) if match else None
    if match is None or unit is None:
        raise UsageError(
            f"a size is a number and a unit (kB, MB, GB, TB or KiB, MiB, GiB, TiB), "
            f"for example '200MB' or '1GiB', not {text!r}"
        )
    whole, _, decimals = match[1].partition(".")
    # integers throughout: a float would round the number of bytes of a big size
    scale: int = 10 ** len(decimals)
    return int(whole + decimals) * unit // scale


def checked_sides(name: str, given: Any, *, below: int = 2**63) -> tuple[int, ...]:
    """Sides of an image or an array, checked; raises UsageError."""
    if not isinstance(given, tuple | list):
        raise UsageError(f"{name} is a tuple of whole numbers, and was {given!r}")
    return tuple(checked(name, side, least=1, below=below) for side in given)
