"""How often is a store asked again, after which waits, and how many requests are open at once?

Waits grow, and have jitter, so that the many processes which one fault has met don't come back
together; the jitter is drawn from the system, and touches no generator that training uses. A
deadline ends it, also where a server asks for longer waits.

The gate counts the open requests of this process by host, whichever dataset they are for.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Self

from shardloader.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_RANDOM: Final = secrets.SystemRandom()
OPTION: Final = "patience"  # its name among the storage options


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often a request is tried, and the waits between, in seconds: each twice the last.

    deadline_s: after which no further attempt begins, counted from the first one; stall_s: how
    long a connection may give nothing before it is ended, where the file system lets it be said;
    in_flight: requests that this process has open at one host at a time.
    """

    attempts: int = 8
    first_s: float = 0.25
    longest_s: float = 16.0
    deadline_s: float = 180.0
    stall_s: float = 30.0
    in_flight: int = 16

    def __post_init__(self) -> None:
        for each in fields(self):
            value: Any = getattr(self, each.name)
            kinds = int if each.type == "int" else int | float
            if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0:
                raise UsageError(
                    f"the option {OPTION!r} of a store has numbers above 0, and whole ones for "
                    f"'attempts' and 'in_flight'; {each.name!r} was given as {value!r}"
                )

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Self:
        """What a mapping of some of its names says. Raises UsageError for what it does not have."""
        names = [each.name for each in fields(cls)]
        if given is not None and not (hasattr(given, "keys") and set(given) <= set(names)):
            raise UsageError(
                f"the option {OPTION!r} of a store is a mapping with some of "
                f"{', '.join(names)}, not {given!r}"
            )
        return cls(**(given or {}))

    @property
    def longest_wait_s(self) -> float:
        """How long the waits before all further attempts are together, at most."""
        return min(sum(self.waits()), self.deadline_s)

    def waits(self) -> Iterator[float]:
        """Yield the longest wait before each further attempt; the least is half of it.

        >>> list(Patience(attempts=4, longest_s=0.6).waits())
        [0.25, 0.5, 0.6]
        """
        for number in range(self.attempts - 1):
            yield min(self.first_s * 2**number, self.longest_s)


class Attempts:
    """The attempts at one request. made: how many, the first among them."""

    def __init__(
        self,
        patience: Patience,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = _RANDOM.random,
    ) -> None:
        self.made = 1
        self._waits = patience.waits()
        self._clock = clock
        self._draw = draw
        self._deadline = clock() + patience.deadline_s

    def wait_s(self, asked_s: float | None = None) -> float | None:
        """How long to wait before another attempt, which is counted; None where there is none.

        asked_s: what the server has asked for, in seconds.
        """
        longest = next(self._waits, None)
        if longest is None:
            return None
        wait = max(longest * (1 + self._draw()) / 2, asked_s or 0.0)
        if self._clock() + wait > self._deadline:
            return None
        self.made += 1
        return wait


class _Gate:
    """Open requests by host."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._changed = threading.Condition()

    @contextmanager
    def passed(self, host: str, most: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._open[host] < most)
            self._open[host] += 1
        try:
            yield
        finally:
            with self._changed:
                self._open[host] -= 1
                self._changed.notify_all()


# By process: one that was forked starts with nothing open, and with a lock that nobody holds.
_GATES: Final[dict[int, _Gate]] = {}


def one_request(host: str, patience: Patience) -> Any:
    """A context for one request, entered when few enough are open at that host."""
    process = os.getpid()
    gate = _GATES.get(process) or _GATES.setdefault(process, _Gate())
    return gate.passed(host, patience.in_flight)
