"""Shard patterns: which name the n-th shard has, and whether a name is a shard's.

Knows names only. A pattern is a file name that ends in ".tar" with one place for the number, as
str.format or printf writes it: `shard-{:06d}.tar`, `out-%06d.tar`. Compressed shards end in
".tar.zst", with a pattern of either ending.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from shardloader.errors import UsageError

_NUMBER = re.compile(r"\{0?(?::(?:0([1-9]\d?))?d?)?\}|%(?:0([1-9]\d?))?d", re.ASCII)
_SUFFIX = ".tar"
_COMPRESSED_SUFFIX = ".tar.zst"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPattern:
    """The names of a writer's shards: what stands before and after a number, and its width."""

    before: str
    width: int
    after: str

    def name(self, number: int) -> str:
        """Return the name of a shard; numbers from 0."""
        return f"{self.before}{number:0{self.width}d}{self.after}"

    def makes(self, name: str) -> bool:
        """Whether some number gives this name."""
        return self.number(name) is not None

    def number(self, name: str) -> int | None:
        """Return the number that gives this name, or None."""
        digits = name[len(self.before) : len(name) - len(self.after)]
        is_number = digits.isascii() and digits.isdecimal()
        return int(digits) if is_number and self.name(int(digits)) == name else None

    def packed_as(self, suffix: str) -> ShardPattern:
        """Return the pattern of the same names with another suffix than `.tar` or `.tar.zst`."""
        own = _COMPRESSED_SUFFIX if self.after.endswith(_COMPRESSED_SUFFIX) else _SUFFIX
        return replace(self, after=f"{self.after.removesuffix(own)}{suffix}")


def parse_pattern(pattern: str, *, compressed: bool = False) -> ShardPattern:
    """Return the pattern that a text describes; raises UsageError with what is wrong with it.

    >>> parse_pattern("shard-{:06d}.tar").name(7), parse_pattern("out-%02d.tar").name(123)
    ('shard-000007.tar', 'out-123.tar')
    """
    pattern = str(pattern)
    places = list(_NUMBER.finditer(pattern))
    if len(places) != 1:
        raise _refusal(pattern, "has one place for the shard's number")
    (place,) = places
    before, after = pattern[: place.start()], pattern[place.end() :]
    rest = before + after
    if set(rest) & set("/\\{}%") or not rest.isprintable() or before.startswith("."):
        raise _refusal(
            pattern,
            "is a file name: no folder in it, no dot at its start, no other brace, '%' or "
            "unprintable character",
        )
    if compressed and after.endswith(_SUFFIX):
        after += _COMPRESSED_SUFFIX.removeprefix(_SUFFIX)
    suffix = _COMPRESSED_SUFFIX if compressed else _SUFFIX
    if not after.endswith(suffix):
        raise _refusal(pattern, f"ends in '{suffix}'")
    return ShardPattern(before=before, width=int(place[1] or place[2] or 1), after=after)


def _refusal(pattern: str, rule: str) -> UsageError:
    return UsageError(
        f"a shard pattern {rule}, for example 'shard-{{:06d}}.tar' or 'out-%06d.tar'; "
        f"not {pattern!r}"
    )
