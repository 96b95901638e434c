"""How do ranks compare values without a collective?

Through the store that torch.distributed met in, with a timeout: a collective would need the
backend's device, and NCCL's watchdog would kill a process that waits too long. The only place that
reaches for the store, since torch gives no public way to the default group's; what is said over it
stands in `meeting`.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from torch import distributed

from shardloader.distributed.meeting import Circle, Meeting, Question, StoreGoneError
from shardloader.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardloader.distributed.meeting import Verdict
    from shardloader.order.topology import Topology

MEETING_TIMEOUT_S = 300.0
# Beyond twice the timeout, for a store whose host is silent: its own calls know no timeout then.
SILENCE_S: Final = 5.0

# Those that meet over a store, as long as the store lives: another one starts afresh.
_circles: weakref.WeakKeyDictionary[Any, Circle] = weakref.WeakKeyDictionary()


def can_meet(topology: Topology) -> bool:
    """Whether the ranks of a topology are processes of an initialised default group.

    A topology larger than that group is somebody's simulation, with nobody to meet.
    """
    return topology.world_size <= group_size()


def group_size() -> int:
    """Processes of the default group; 0 where it is not initialised."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0
    return distributed.get_world_size()


def meet(
    topology: Topology,
    stand: Any,
    verdict: Verdict,
    *,
    timeout_s: float,
    subject: str = "the start of an epoch",
    party: Any = None,
) -> list[Any]:
    """Let every data-parallel rank say what it stands for, and judge: all stands, by rank.

    stand: plain JSON types; subject: what this meeting is about, and party: whose it is, so that
    meetings of two kinds or of two loaders are told apart: loaders are numbered as they come to
    their first. Every process that holds a loader calls this equally often. Data-parallel rank 0
    judges; its verdict is an AgreementError on every rank, also when a rank does not come within
    the timeout. Processes that share a data-parallel rank (tensor or pipeline parallelism) must
    stand for the same: the one that differs raises at once, the others then or at their next
    meeting. Raises WorldError if the store's host has ended. All within twice the timeout, and 5 s.
    """
    store = _store()
    here = Circle(process=distributed.get_rank(), size=distributed.get_world_size())
    circle = _circles.setdefault(store, here)
    question = Question(
        rank=topology.rank,
        world_size=topology.world_size,
        subject=subject,
        stand=stand,
        verdict=verdict,
        timeout_s=timeout_s,
        party=0 if party is None else circle.number_of(party),
    )
    meeting = Meeting(store, circle, question)
    return _within(2 * timeout_s + SILENCE_S, meeting.hold)


def _within(seconds: float, ask: Callable[[], list[Any]]) -> list[Any]:
    """What `ask` returns or raises, in a thread that is left behind if it takes longer."""
    answers: list[list[Any]] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        except BaseException as error:  # noqa: BLE001 - handed over, and raised there
            errors.append(error)

    thread = threading.Thread(target=run, name="shardloader-meeting", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise StoreGoneError(
            f"ranks compare what they read through the store of torch.distributed, and it was "
            f"silent for {seconds:g} s: the machine that holds it, rank 0's or its launcher's, "
            "can't be reached; look there"
        )
    return answers[0]


def _store() -> Any:
    """The default group's store, by a private function of torch: there is no public one."""
    try:
        from torch.distributed.distributed_c10d import _get_default_store
    except ImportError:
        raise MissingExtraError(
            "ranks compare what they read through the store of torch.distributed, and this torch "
            f"({distributed.__name__} has no _get_default_store) has moved it: install a torch "
            "that shardloader was tried with (see its README)"
        ) from None
    return _get_default_store()
