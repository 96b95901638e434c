"""Which samples are written at all?

Told by the key alone, so that it does not matter where a sample lies or who reads it. A fraction
of the samples is taken by a hash of the key: `0:0.9` and `0.9:1` share nothing and together are
everything, whatever the input's form.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any

from shardloader.errors import UsageError

_WORDS = 1 << 64
_FRACTION = b"fraction"  # a shuffle's words would put the samples of a fraction side by side


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The samples to write: those whose key is listed, matches, and falls into the fraction."""

    keys: frozenset[str] | None = None
    patterns: tuple[str, ...] = ()
    fraction: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        low, high = self.fraction
        if not 0 <= low < high <= 1:
            raise UsageError(f"a fraction is two numbers, 0 <= from < to <= 1, not {low}:{high}")

    @property
    def is_all(self) -> bool:
        """Whether every sample is wanted."""
        return self == Selection()

    @property
    def about(self) -> dict[str, Any]:
        """The selection, as JSON types."""
        keys = None if self.keys is None else keyed_word("\0".join(sorted(self.keys)), 0)
        return {"keys": keys, "patterns": list(self.patterns), "fraction": list(self.fraction)}

    def wants(self, key: str) -> bool:
        """Whether the sample with this key is wanted.

        >>> half = Selection(fraction=(0.0, 0.5))
        >>> sum(half.wants(str(number)) for number in range(1000))
        498
        """
        if self.keys is not None and key not in self.keys:
            return False
        if self.patterns and not any(fnmatchcase(key, pattern) for pattern in self.patterns):
            return False
        if self.fraction == (0.0, 1.0):
            return True
        low, high = (int(end * _WORDS) for end in self.fraction)
        return low <= keyed_word(key, 0, use=_FRACTION) < high


def parse_keys(data: bytes, *, name: str) -> frozenset[str]:
    """Read a list of keys, one a line, from a file that is called `name` in messages."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: a list of keys is UTF-8, one a line: {error}") from None
    return frozenset(line.removesuffix("\r") for line in text.split("\n")) - {""}


def keyed_word(key: str, seed: int, *, use: bytes = b"") -> int:
    """Return 64 bits that follow from a key and a seed, and look random; others for another use.

    BLAKE2b is a standard (RFC 7693), so they are the same for ever.
    """
    text, secret = key.encode("utf-8", "surrogateescape"), seed.to_bytes(8, "little")
    return int.from_bytes(blake2b(text, digest_size=8, key=secret, person=use).digest())


def parse_fraction(text: str) -> tuple[float, float]:
    """Read `FROM:TO`.

    >>> parse_fraction("0:0.9")
    (0.0, 0.9)
    """
    low, colon, high = text.partition(":")
    try:
        if colon:
            return float(low), float(high)
    except ValueError:
        pass
    raise UsageError(f"a fraction is FROM:TO, two numbers from 0 to 1, not {text!r}")
