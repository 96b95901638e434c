"""How do processes meet over a store, whoever else has used it before?

A store may outlive the processes that met in it: torchrun gives restarted workers the store of
those that failed, with all that these had said. So processes that start together first find each
other in three steps, all of them compare-and-set, with no leader and no clock:

1. A *generation* is whoever first names one. Every process signs it with a word of its own. One
   that finds its place signed by another knows that the generation is a former one's, and names
   the next.
2. The judge (data-parallel rank 0) opens the generation's *session*. Stands are said in a session,
   so the judge hears no answer that was meant for another judge.
3. The judge's verdict repeats the signatures that it heard. Until a process has found the one of
   its rank there, it looks whether the generation has changed, and then starts anew.

Meetings of a session are numbered: every process comes to all of them. Those long over are
deleted.
"""

from __future__ import annotations

import json
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from shardloader.errors import AgreementError, WorldError
from shardloader.order.agreement import FIELDS, absent

Verdict = Callable[[Sequence[Any]], str | None]

GENERATION: Final = "shardloader/generation"
LOOK_AGAIN_S: Final = 0.25  # how long a former generation may be taken for the present one
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.1
KEPT_MEETINGS: Final = 16  # a replica that lags by more is told that it does


class StoreGoneError(WorldError):
    """The store does not answer: its host has ended."""


@dataclass(slots=True)
class Circle:
    """What this process knows of those that it meets over one store.

    process, size: its rank in the default group, and that group's; signature: a word of its own;
    session: the prefix of the session's keys, once the judge has repeated the signature of this
    process's rank; met: meetings so far; parties: the loaders that have met, with their numbers.
    """

    process: int
    size: int = 0
    signature: str = field(default_factory=lambda: secrets.token_hex(8))
    session: str | None = None
    met: int = 0
    can_delete: bool = True
    parties: weakref.WeakKeyDictionary[Any, int] = field(default_factory=weakref.WeakKeyDictionary)
    _num_parties: int = 0

    def number_of(self, party: Any) -> int:
        """How many loaders of this process had met others before this one did, and itself."""
        if party not in self.parties:
            self._num_parties += 1
            self.parties[party] = self._num_parties
        return self.parties[party]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One meeting, as one process comes to it.

    rank, world_size: data-parallel; subject: what the meeting is about, in words; stand: what this
    process has to say, in plain JSON types; party: the number of its loader; verdict: what stands
    differ in, asked of rank 0.
    """

    rank: int
    world_size: int
    subject: str
    stand: Any
    verdict: Verdict
    timeout_s: float
    party: int = 0


class Meeting:
    """One meeting over a store; `hold` gives what every rank stands for."""

    def __init__(self, store: Any, circle: Circle, question: Question) -> None:
        self._store = store
        self._circle = circle
        self._asked = question
        self._number = circle.met
        self._mine = json.dumps(
            {
                "process": circle.process,
                "signature": circle.signature,
                "subject": question.subject,
                "party": question.party,
                "stand": question.stand,
            }
        )
        # The judge may have waited as long as it could before it wrote.
        judging = question.rank == 0
        self._deadline = time.monotonic() + question.timeout_s * (1 if judging else 2)
        self._said: str | None = None  # by a judge that may be a former one

    def hold(self) -> list[Any]:
        """All stands, by rank; raises AgreementError, the same on every rank, or WorldError."""
        self._circle.met += 1
        while True:
            session = self._circle.session or self._find_session()
            stands = None if session is None else self._attend(session)
            if stands is not None:
                return stands
            if time.monotonic() > self._deadline:
                raise AgreementError(self._said or absent([0], 2 * self._asked.timeout_s))

    # Finding the others.

    def _find_session(self) -> str | None:
        """The session of the present generation; None if it has none yet."""
        generation = self._sign()
        key = f"shardloader/{generation}/session"
        if self._asked.rank == 0:
            name = self._compare_set(key, "", self._circle.signature)
        elif self._arrived(key, self._soon()):
            name = self._get(key)
        else:
            return None
        return f"shardloader/{generation}/{name}"

    def _sign(self) -> str:
        signature = self._circle.signature
        generation = self._compare_set(GENERATION, "", secrets.token_hex(8))
        while True:
            place = f"shardloader/{generation}/process/{self._circle.process}"
            if self._compare_set(place, "", signature) == signature:
                return generation
            generation = self._compare_set(GENERATION, generation, secrets.token_hex(8))

    def _is_present(self, session: str) -> bool:
        return session.startswith(f"shardloader/{self._get(GENERATION)}/")

    # Meeting them.

    def _attend(self, session: str) -> list[Any] | None:
        """All stands; None if the session may be a former generation's."""
        meeting = f"{session}/{self._number}"
        self._check_kept(session)
        heard = json.loads(self._compare_set(f"{meeting}/{self._asked.rank}", "", self._mine))
        if heard["signature"] != self._circle.signature:
            self._object_to(meeting, heard)
        if self._asked.rank == 0 and not self._judge(session):
            return None
        while not self._arrived(f"{meeting}/verdict", self._soon()):
            if time.monotonic() > self._deadline or not self._still_in(session):
                return None
        judged = json.loads(self._get(f"{meeting}/verdict"))
        if self._circle.session is None:
            if heard["signature"] not in judged["heard"]:
                self._said = judged["says"]
                self._arrived(f"{meeting}/nothing", self._soon())
                return None
            self._circle.session = session
        if judged["says"] is not None:
            raise AgreementError(judged["says"])
        return [each["stand"] for each in self._stands(meeting)]

    def _still_in(self, session: str) -> bool:
        return self._circle.session is not None or self._is_present(session)

    def _check_kept(self, session: str) -> None:
        kept = f"{session}/kept"
        first = int(self._get(kept)) if self._check(kept) else 0
        if self._number < first:
            raise AgreementError(
                f"all processes of a data-parallel rank start equally often, and process "
                f"{self._circle.process} comes to meeting {self._number} when number {first} is "
                "the earliest that is not over: iterate the loader on all of them alike"
            )

    def _judge(self, session: str) -> bool:
        """Collect the stands and leave the verdict for all; False if this session is a former."""
        meeting = f"{session}/{self._number}"
        missing = list(range(self._asked.world_size))
        while missing and not self._check(f"{meeting}/verdict"):
            if self._arrived(f"{meeting}/{missing[0]}", self._soon()):
                del missing[0]
            elif time.monotonic() > self._deadline:
                break
            elif not self._still_in(session):
                return False
        missing = [rank for rank in missing if not self._check(f"{meeting}/{rank}")]
        heard = self._stands(meeting, missing)
        says = absent(missing, self._asked.timeout_s) if missing else self._verdict(session, heard)
        if says is not None:  # also to those that take the world for larger
            others = range(self._asked.world_size, self._circle.size)
            present = [rank for rank in others if self._check(f"{meeting}/{rank}")]
            heard += [json.loads(self._get(f"{meeting}/{rank}")) for rank in present]
        judged = json.dumps({"says": says, "heard": [each["signature"] for each in heard]})
        self._compare_set(f"{meeting}/verdict", "", judged)
        if not missing:
            self._forget(session)
        return True

    def _verdict(self, session: str, heard: list[dict[str, Any]]) -> str | None:
        for number in (self._number, self._number - 1):
            objection = f"{session}/{number}/objection"
            if self._check(objection) and not self._is_told(f"{session}/{number}"):
                return self._get(objection)
        says = _differing([each["subject"] for each in heard])
        says = says or self._asked.verdict([each["stand"] for each in heard])
        return says or _differing([f"that of loader {each['party']}" for each in heard])

    def _is_told(self, meeting: str) -> bool:
        """Whether a meeting ended with an error on all ranks, and is over with it."""
        verdict = f"{meeting}/verdict"
        return self._check(verdict) and json.loads(self._get(verdict))["says"] is not None

    def _object_to(self, meeting: str, heard: dict[str, Any]) -> None:
        """Tell all if this process differs from the first that came of its rank."""
        asked = self._asked
        mine = json.loads(self._mine)
        if (
            heard["subject"] == asked.subject
            and asked.verdict([heard["stand"], asked.stand]) is None
        ):
            return
        says = _objection(asked.rank, heard, mine)
        # The judge reads it before its verdict, or else at the next meeting.
        self._compare_set(f"{meeting}/objection", "", says)
        raise AgreementError(says)

    def _stands(self, meeting: str, missing: Sequence[int] = ()) -> list[dict[str, Any]]:
        return [
            json.loads(self._get(f"{meeting}/{rank}"))
            for rank in range(self._asked.world_size)
            if rank not in missing
        ]

    def _forget(self, session: str) -> None:
        """Delete the meeting that is over for all: each rank has come to many since."""
        old = self._number - KEPT_MEETINGS
        if old < 0 or not self._circle.can_delete:
            return
        self._set(f"{session}/kept", str(old + 1))
        names = [*map(str, range(self._asked.world_size)), "verdict", "objection"]
        try:
            for name in names:
                self._store.delete_key(f"{session}/{old}/{name}")
        except (RuntimeError, NotImplementedError):  # a store that can't
            self._circle.can_delete = False

    # The store.

    def _soon(self) -> float:
        """When to look again: at the deadline once the session is known to be the present one."""
        if self._circle.session is not None:
            return self._deadline
        return min(self._deadline, time.monotonic() + LOOK_AGAIN_S)

    def _arrived(self, key: str, deadline: float) -> bool:
        if self._circle.session is None:
            return self._looked_for(key, deadline)
        left = max(deadline - time.monotonic(), 0.001)
        try:
            self._store.wait([key], timedelta(seconds=left))
        except RuntimeError:  # a DistStoreError is one; a FileStore raises no more than that
            return self._check(key)  # raises where it is the store that ended, and not the time
        return True

    def _looked_for(self, key: str, deadline: float) -> bool:
        """Look now and then: torch prints a warning for a wait in vain, which is usual here."""
        pause = SHORTEST_PAUSE_S
        while not self._check(key):
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        return True

    def _check(self, key: str) -> bool:
        return bool(_answer(lambda: self._store.check([key])))

    def _get(self, key: str) -> str:
        return _text(_answer(lambda: self._store.get(key)))

    def _set(self, key: str, value: str) -> None:
        _answer(lambda: self._store.set(key, value))

    def _compare_set(self, key: str, expected: str, value: str) -> str:
        return _text(_answer(lambda: self._store.compare_set(key, expected, value)))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except RuntimeError as error:
        raise StoreGoneError(
            "ranks compare what they read through the store of torch.distributed, and it does not "
            f"answer ({str(error).splitlines()[0]}): the process that holds it, rank 0's or its "
            "launcher, has ended or can't be reached; look there"
        ) from error


def _differing(meetings: Sequence[str]) -> str | None:
    """What to say where ranks come to different meetings."""
    if len(set(meetings)) == 1:
        return None
    told = "; ".join(f"{each} on rank {rank}" for rank, each in enumerate(meetings))
    return (
        "all ranks come to the same meetings in one order, loaders numbered by first use, and here "
        f"they come to different ones: {told}: iterate every loader on all ranks or on none, and "
        "call log_samples alike (is it only one rank that evaluates?)"
    )


def _objection(rank: int, heard: dict[str, Any], mine: dict[str, Any]) -> str:
    """What two processes of one data-parallel rank differ in, in words."""
    name, theirs, ours, way_out = "meeting", heard["subject"], mine["subject"], "come alike"
    if theirs == ours:
        first, second = heard["stand"], mine["stand"]
        names = [each for each in FIELDS if first.get(each) != second.get(each)]
        name = names[0] if names else "what they read"
        theirs, ours = first.get(name), second.get(name)
        way_out = FIELDS.get(name, "give both the same")
    return (
        f"all processes of a data-parallel rank read the same, and those of rank {rank} differ in "
        f"{name}: {theirs!r} on process {heard['process']}; {ours!r} on process "
        f"{mine['process']}: {way_out}"
    )
