"""How do ranks agree on a value without a collective?

Through the store that torch.distributed met in. The only place that reaches for it: torch gives
no public way to the default group's store.
"""

from __future__ import annotations

import itertools
from datetime import timedelta

from torch import distributed

from shardloader.errors import WorldError

_numbers = itertools.count()  # the n-th agreement of every process is the same one


def is_initialized() -> bool:
    """Whether this process belongs to an initialised default process group."""
    return distributed.is_available() and distributed.is_initialized()


def value_of_rank_zero(value: int, *, timeout_s: float = 120.0) -> int:
    """The `value` that rank 0 of the default group called this with, on every rank.

    Raises WorldError if rank 0 does not call it within the timeout.
    """
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    key = f"shardloader/value/{next(_numbers)}"
    if distributed.get_rank() == 0:
        store.set(key, str(value))
        return value
    try:
        store.wait([key], timedelta(seconds=timeout_s))
    except distributed.DistStoreError as error:
        raise WorldError(
            f"rank {distributed.get_rank()} waited {timeout_s:.0f} s for rank 0 to make the same "
            "call, and it did not: every rank has to make it"
        ) from error
    return int(store.get(key))
