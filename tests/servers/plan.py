"""Which request meets which fault?

A plan is a value: the faults in order, and a seed. Whether a request meets one follows from the
seed, the request and how often it was made, not from the order in which different requests come: so
many clients at once meet what one would.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any, Final, Self

# What a fault does to an answer:
KINDS: Final = (
    "status",  # `status` in place of the answer, with Retry-After where `retry_after` says one
    "page",  # 200 with a page of HTML in place of the file
    "expired",  # 400 with S3's error ExpiredToken
    "slow",  # as it is, `seconds` later
    "reset",  # the connection is reset in mid-body
    "cut",  # Content-Length as it is, and the connection closed in mid-body
    "short",  # a body that is shorter than was asked for, and says so
    "stall",  # nothing more comes from mid-body on, and the connection stays
    "changed",  # another etag
    "damage",  # one byte of the body is another
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What the requests that it matches meet.

    path: a pattern of fnmatch for the path without its first slash; method: "*" for all. after:
    matching requests that are let through before; times: how many meet it, None for all; chance:
    of each; apart: how many matching requests for a path go unharmed after one that met it. at:
    where in the body, as a fraction; status, retry_after (seconds, or a date), seconds: see KINDS.
    """

    kind: str
    path: str = "*"
    method: str = "GET"
    after: int = 0
    times: int | None = None
    chance: float = 1.0
    apart: int = 0
    at: float = 0.5
    status: int = 503
    retry_after: float | str | None = None
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a fault's kind is one of {', '.join(KINDS)}, not {self.kind!r}")

    def is_for(self, method: str, path: str) -> bool:
        """Whether a request is one that may meet it."""
        return self.method in {"*", method} and fnmatchcase(path, self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Faults, the first that applies; and what the line is like.

    latency_s: before each answer; bytes_per_s: of all connections together, None for no limit.

    >>> Plan.from_json(Plan(faults=(Fault(kind="reset"),), seed=3).to_json()).faults[0].kind
    'reset'
    """

    faults: tuple[Fault, ...] = ()
    seed: int = 0
    latency_s: float = 0.0
    bytes_per_s: float | None = None

    def to_json(self) -> str:
        """The plan as a text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """What `to_json` was made of; names that are left out have their defaults."""
        read: dict[str, Any] = json.loads(text)
        return cls(**{**read, "faults": tuple(Fault(**each) for each in read.get("faults", ()))})


class Dealer:
    """Deals a plan's faults to requests, and remembers which were dealt."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.met = [0] * len(plan.faults)  # by fault, how many requests met it
        self._matched = [0] * len(plan.faults)
        self._made: Counter[tuple[str, str, str]] = Counter()
        self._unharmed: dict[tuple[int, str], int] = {}  # by fault and path, since one met it

    def fault_of(self, method: str, path: str, span: str = "") -> Fault | None:
        """What the next request meets; span: the range that it asks for."""
        request = (method, path, span)
        self._made[request] += 1
        for number, fault in enumerate(self.plan.faults):
            if fault.is_for(method, path) and self._applies(number, fault, request):
                self.met[number] += 1
                return fault
        return None

    def _applies(self, number: int, fault: Fault, request: tuple[str, str, str]) -> bool:
        self._matched[number] += 1
        place = (number, request[1])
        unharmed = self._unharmed.get(place, fault.apart)
        self._unharmed[place] = unharmed + 1
        if unharmed < fault.apart:
            return False
        if not self._is_drawn(number, fault, request):
            return False
        self._unharmed[place] = 0
        return True

    def _is_drawn(self, number: int, fault: Fault, request: tuple[str, str, str]) -> bool:
        if self._matched[number] <= fault.after:
            return False
        if fault.times is not None and self.met[number] >= fault.times:
            return False
        words = repr((self.plan.seed, number, request, self._made[request])).encode()
        drawn = int.from_bytes(blake2b(words, digest_size=8).digest(), "big") / 2**64
        return drawn < fault.chance
