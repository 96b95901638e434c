"""Which shards that are read by ranges have come into the node's cache meanwhile?

Those that somebody reads by ranges now are fetched whole before all others. What can't be fetched
counts as come: whoever then opens it meets the fault, and can say it. Decides on what it is told,
and fetches nothing. One process at a time asks; its threads share a lock around whatever changes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable


class Arrivals:
    """The shards of one reader, by their numbers."""

    def __init__(self) -> None:
        self._awaited: dict[int, None] = {}  # in the order asked for
        self._come: set[int] = set()
        self._failed: set[int] = set()
        self._elsewhere: dict[int, float] = {}  # when to ask again for what others fetch

    def ask(self, shard: int) -> None:
        """Somebody begins to read a shard by ranges, whatever became of it before."""
        self._come.discard(shard)
        self._failed.discard(shard)
        self._awaited.setdefault(shard)

    def is_done(self, shard: int) -> bool:
        """Whether a shard has come, or will not come this way; changes nothing."""
        return shard in self._come or shard in self._failed

    def is_awaited(self, shard: int) -> bool:
        """Whether somebody reads a shard by ranges now."""
        return shard in self._awaited

    def awaited(self) -> list[int]:
        """The shards that are read by ranges now, in the order asked for."""
        return list(self._awaited)

    def taken(self, shard: int) -> None:
        """A shard that is done is read whole from now on."""
        self._awaited.pop(shard, None)

    def keep_only(self, shards: Container[int]) -> None:
        """The others are not read any more."""
        self._awaited = {shard: None for shard in self._awaited if shard in shards}

    def came(self, shard: int) -> None:
        """It was brought into the cache, or found there."""
        self._come.add(shard)
        self._elsewhere.pop(shard, None)

    def failed(self, shard: int) -> None:
        """It is left to whoever needs it: it can't be had, or is not cached after all."""
        self._failed.add(shard)

    def is_left_alone(self, shard: int) -> bool:
        """Whether it has failed, and was not asked for since."""
        return shard in self._failed

    def fetched_elsewhere(self, shard: int, *, ask_again: float) -> None:
        """Another process is fetching it; ask_again: not before this time."""
        self._elsewhere[shard] = ask_again

    def forget_elsewhere(self) -> None:
        """What others fetched may be asked for again."""
        self._elsewhere.clear()

    def is_there(self, shard: int, *, is_in_folder: bool, now: float) -> bool:
        """Whether a shard needs no fetch; is_in_folder: some version of it is in the cache.

        For one that is read by ranges that is not enough: it is asked for, which tells the version.
        """
        again = self._elsewhere.get(shard, -math.inf)
        if shard not in self._awaited:
            return is_in_folder or shard in self._elsewhere
        return shard in self._come or (shard in self._elsewhere and not is_in_folder) or now < again

    def has_more(self, planned: Iterable[int]) -> bool:
        """Whether anything is left that may have to be fetched."""
        awaited = any(not self.is_done(shard) for shard in self._awaited)
        return awaited or any(shard not in self._failed for shard in planned)
