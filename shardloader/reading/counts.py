"""What did reading take, besides the samples themselves?

Counted where it happens, by a `Diary`, in whichever process reads. The counts travel with the next
batch (in its `Carrier`, as bad samples do), so that the main process counts them when it receives
that batch. A new count of what batches took is a field here, and one call of `Diary.count`. What
was asked of a store, for whatever was received or not, is `traffic` instead.
"""

from __future__ import annotations

from operator import add, sub
from typing import NamedTuple


class Counts(NamedTuple):
    """Counts of reading, of some batches.

    field_bytes: bytes of the batches' fields, as they lie in the shards; cache_hits: shards that
    were whole in the node's cache, also after waiting for another process; cache_misses: those
    that this process had to bring there, or unpack, also ahead of their need; retries: requests
    that were made again.
    """

    field_bytes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    retries: int = 0

    def plus(self, other: Counts) -> Counts:
        """Both together.

        >>> Counts(retries=1).plus(Counts(retries=2, cache_hits=1))
        Counts(field_bytes=0, cache_hits=1, cache_misses=0, retries=3)
        """
        return Counts._make(map(add, self, other))

    def minus(self, earlier: Counts) -> Counts:
        """What came since earlier counts."""
        return Counts._make(map(sub, self, earlier))


NOTHING = Counts()
