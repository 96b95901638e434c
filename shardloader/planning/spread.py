"""How are some numbers spread: the least, the median and the most of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How some numbers are spread; the median of an even number of them may end in a half."""

    least: int
    median: float
    most: int

    @classmethod
    def of(cls, groups: Iterable[tuple[int, int]]) -> Spread:
        """The spread of values that are given as (value, how often).

        >>> Spread.of([(3, 1), (5, 1)])
        Spread(least=3, median=4, most=5)
        """
        present = sorted((value, times) for value, times in groups if times)
        if not present:
            return cls(least=0, median=0, most=0)
        total = sum(times for _, times in present)
        twice = _nth(present, (total - 1) // 2) + _nth(present, total // 2)
        median = twice // 2 if twice % 2 == 0 else twice / 2
        return cls(least=present[0][0], median=median, most=present[-1][0])

    def to_json(self) -> dict[str, float]:
        """The three numbers by name."""
        return asdict(self)


def _nth(groups: list[tuple[int, int]], at: int) -> int:
    for value, times in groups:
        if at < times:
            return value
        at -= times
    raise AssertionError("the place lies among the values")
