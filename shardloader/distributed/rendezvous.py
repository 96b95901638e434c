"""How do ranks compare values without a collective?

Through the store that torch.distributed met in, with a timeout: a collective would need the
backend's device, and NCCL's watchdog would kill a process that waits too long. The only place that
reaches for the store: torch gives no public way to the default group's.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch import distributed

from shardloader.errors import AgreementError
from shardloader.order.agreement import absent

if TYPE_CHECKING:
    from shardloader.order.topology import Topology

Verdict = Callable[[Sequence[Any]], str | None]

MEETING_TIMEOUT_S = 300.0

_meetings = itertools.count()  # the n-th meeting of every process is the same one


def can_meet(topology: Topology) -> bool:
    """Whether the ranks of a topology are processes of an initialised default group.

    A topology larger than that group is somebody's simulation, with nobody to meet.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    return topology.world_size <= distributed.get_world_size()


def meet(topology: Topology, stand: Any, verdict: Verdict, *, timeout_s: float) -> list[Any]:
    """Let every data-parallel rank say what it stands for, and judge: all stands, by rank.

    stand: plain JSON types. Every rank calls this equally often. Data-parallel rank 0 judges; its
    verdict is an AgreementError on every rank, also when a rank does not come within the timeout.
    """
    store = _store()
    meeting = f"shardloader/{next(_meetings)}"
    # Replicas of a rank (tensor or pipeline parallelism) say the same; the first is heard.
    store.compare_set(f"{meeting}/{topology.rank}", "", json.dumps(stand))
    if topology.rank == 0:
        _judge(store, meeting, topology.world_size, verdict, timeout_s)
    # The judge may have waited as long as it could before it wrote.
    if not _arrived(store, f"{meeting}/verdict", time.monotonic() + 2 * timeout_s):
        raise AgreementError(absent([0], 2 * timeout_s))
    judged = json.loads(store.get(f"{meeting}/verdict"))
    if judged is not None:
        raise AgreementError(judged)
    return [json.loads(store.get(f"{meeting}/{rank}")) for rank in range(topology.world_size)]


def _judge(store: Any, meeting: str, world_size: int, verdict: Verdict, timeout_s: float) -> None:
    """Collect the stands, and leave the verdict for all."""
    deadline = time.monotonic() + timeout_s
    missing = [
        rank for rank in range(world_size) if not _arrived(store, f"{meeting}/{rank}", deadline)
    ]
    if missing:
        judged: str | None = absent(missing, timeout_s)
    else:
        judged = verdict([json.loads(store.get(f"{meeting}/{rank}")) for rank in range(world_size)])
    store.compare_set(f"{meeting}/verdict", "", json.dumps(judged))


def _arrived(store: Any, key: str, deadline: float) -> bool:
    left = max(deadline - time.monotonic(), 0.001)
    try:
        store.wait([key], timedelta(seconds=left))
    except RuntimeError:  # a DistStoreError is one; a FileStore raises no more than that
        return False
    return True


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
