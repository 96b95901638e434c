"""What did reading take, besides the samples themselves?

Counted where it happens, whether or not anybody receives what was read, in a row of numbers. A
worker's row lies in memory that the main process sees, so that its counts are there while it runs,
and after it has died. A new count is a field of `Counts`, and one call of `CountRow.add`.
"""

from __future__ import annotations

import os
import threading
from operator import add, sub
from typing import Any, Final, NamedTuple


class Counts(NamedTuple):
    """Counts of reading.

    store_requests: what a store was asked for, each attempt being one; where the client makes
    several of one, they are not told apart. store_received_bytes: of the bodies that came whole.
    retries: requests that were made again. cache_hits: shards that were whole in the node's cache
    when they were opened, also after waiting for whoever brought them there; cache_misses: those
    that had to be brought there, or unpacked, then. field_bytes: of the fields of samples, as they
    lie in the shards.
    """

    store_requests: int = 0
    store_received_bytes: int = 0
    retries: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    field_bytes: int = 0

    def plus(self, other: Counts) -> Counts:
        """Both together.

        >>> Counts(retries=1).plus(Counts(retries=2, field_bytes=1)).minus(Counts(field_bytes=1))
        ... # doctest: +ELLIPSIS
        Counts(store_requests=0, ..., retries=3, ..., field_bytes=0)
        """
        return Counts._make(map(add, self, other))

    def minus(self, earlier: Counts) -> Counts:
        """What came since earlier counts."""
        return Counts._make(map(sub, self, earlier))


NUM_COUNTS: Final = len(Counts._fields)
_PLACES: Final = {name: place for place, name in enumerate(Counts._fields)}
_FIELD_BYTES: Final = _PLACES["field_bytes"]


class CountRow:
    """Counts as they grow, of one process; a copy that travels to another is an empty one.

    memory: int64 [NUM_COUNTS], None for memory of its own.
    """

    __slots__ = ("_lock", "_words")

    def __init__(self, memory: Any = None) -> None:
        own = memoryview(bytearray(8 * NUM_COUNTS)).cast("q")
        self._words = own if memory is None else memoryview(memory)
        self._lock = os.getpid(), threading.Lock()

    def __reduce__(self) -> tuple[type[CountRow], tuple[()]]:
        return (CountRow, ())

    def add(self, **more: int) -> None:
        """Count more, by name; any thread may."""
        process, lock = self._lock
        if process != os.getpid():  # a thread of the parent may have held it
            lock = threading.Lock()
            self._lock = os.getpid(), lock
        with lock:
            for name, number in more.items():
                self._words[_PLACES[name]] += number

    def add_field_bytes(self, num_bytes: int) -> None:
        """Count bytes of fields, for the one thread that makes batches: at no cost."""
        self._words[_FIELD_BYTES] += num_bytes

    @property
    def now(self) -> Counts:
        """The counts so far."""
        return Counts._make(self._words.tolist())
