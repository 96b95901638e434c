"""How often is a store asked again, after which waits, and how many requests are open at once?

Waits grow, and have jitter, so that the many processes which one fault has met don't come back
together; the jitter is drawn from the system, and touches no generator that training uses. A
deadline ends it, also where a server asks for longer waits.

The gate counts the open requests of this process by host, whichever dataset they are for. What is
fetched ahead of its need lets go first what somebody waits for, but for one place in nine, so that
it comes as well; and it leaves a quarter of the places free.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Self

from shardloader.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_RANDOM: Final = secrets.SystemRandom()
OPTION: Final = "patience"  # its name among the storage options
_SHARE_KEPT_FREE: Final = 4  # of the places, from what is fetched ahead
_MOST_IN_A_ROW: Final = 8  # that go before one that is fetched ahead and waits
_LOOK_AGAIN_S: Final = 0.05  # whether somebody waits by now for what is fetched ahead


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


@dataclass(slots=True)
class Line:
    """The requests to one host: those that are open, and those that wait for a place.

    needed, ahead: that are open, of those that somebody waits for and of those ahead of their need;
    needed_waiting, ahead_waiting: that wait; in_a_row: of those needed, begun one after another
    while one ahead waited.
    """

    needed: int = 0
    ahead: int = 0
    needed_waiting: int = 0
    ahead_waiting: int = 0
    in_a_row: int = 0

    def may_begin(self, *, is_needed: bool, most: int) -> bool:
        """Whether one that waits may take a place, of `most`.

        >>> line = Line(needed=1, ahead=2, needed_waiting=1, ahead_waiting=1)
        >>> line.may_begin(is_needed=True, most=4), line.may_begin(is_needed=False, most=4)
        (True, False)
        """
        if self.needed + self.ahead >= most:
            return False
        has_turn = self.ahead_waiting > 0 and self.in_a_row >= _MOST_IN_A_ROW
        has_place = self.ahead < max(1, most - max(1, most // _SHARE_KEPT_FREE))
        if is_needed:
            return not (has_turn and has_place)
        return has_place and (has_turn or not self.needed_waiting)

    def waits(self, *, is_needed: bool, number: int = 1) -> None:
        """Count one more that waits; or one less, with the number -1."""
        if is_needed:
            self.needed_waiting += number
        else:
            self.ahead_waiting += number

    def begins(self, *, is_needed: bool) -> None:
        """Count one that waited until now."""
        self.waits(is_needed=is_needed, number=-1)
        if is_needed:
            self.needed += 1
            self.in_a_row = self.in_a_row + 1 if self.ahead_waiting else 0
        else:
            self.ahead += 1
            self.in_a_row = 0

    def ends(self, *, is_needed: bool) -> None:
        """Count one less that is open."""
        if is_needed:
            self.needed -= 1
        else:
            self.ahead -= 1


class _Gate:
    """The lines of one process, by host."""

    def __init__(self) -> None:
        self._lines: defaultdict[str, Line] = defaultdict(Line)
        self._changed = threading.Condition()

    @contextmanager
    def passed(self, host: str, most: int, is_needed: Callable[[], bool]) -> Iterator[None]:
        with self._changed:
            line = self._lines[host]
            needed = self._waited(line, most, is_needed)
        try:
            yield
        finally:
            with self._changed:
                line.ends(is_needed=needed)
                self._changed.notify_all()

    def _waited(self, line: Line, most: int, is_needed: Callable[[], bool]) -> bool:
        """Begin when it may; say whether as one that is needed, which it may become meanwhile."""
        needed = is_needed()
        line.waits(is_needed=needed)
        try:
            while not line.may_begin(is_needed=needed, most=most):
                self._changed.wait(None if needed else _LOOK_AGAIN_S)
                if not needed and is_needed():
                    line.waits(is_needed=False, number=-1)
                    needed = True
                    line.waits(is_needed=True)
        except BaseException:
            line.waits(is_needed=needed, number=-1)
            self._changed.notify_all()
            raise
        line.begins(is_needed=needed)
        self._changed.notify_all()  # who is ahead may have been waited for
        return needed


# By process: one that was forked starts with nothing open, and with a lock that nobody holds.
_GATES: Final[dict[int, _Gate]] = {}


def always() -> bool:
    """Whether somebody waits for what is asked for, of most requests."""
    return True


def one_request(host: str, patience: Patience, is_needed: Callable[[], bool] = always) -> Any:
    """A context for one request, entered when few enough are open at that host.

    is_needed: whether somebody waits for it now; asked again while it waits for its place.
    """
    process = os.getpid()
    gate = _GATES.get(process) or _GATES.setdefault(process, _Gate())
    return gate.passed(host, patience.in_flight, is_needed)
