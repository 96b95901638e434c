"""How many requests, and how many bytes, has this process asked of a store?"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What stores were asked for.

    requests: each attempt is one; where the client makes several of one, they are not told apart.
    received_bytes: of the bodies that came whole.
    """

    requests: int = 0
    received_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            requests=self.requests + other.requests,
            received_bytes=self.received_bytes + other.received_bytes,
        )

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(
            requests=self.requests - other.requests,
            received_bytes=self.received_bytes - other.received_bytes,
        )


class Meter:
    """Counts the traffic of one process; a process that was forked counts from 0."""

    def __init__(self) -> None:
        self._here = os.getpid(), threading.Lock(), [0, 0]

    def _counts(self) -> tuple[threading.Lock, list[int]]:
        process, lock, counts = self._here
        if process != os.getpid():
            lock, counts = threading.Lock(), [0, 0]
            self._here = os.getpid(), lock, counts
        return lock, counts

    def add(self, *, requests: int = 0, received_bytes: int = 0) -> None:
        """Count more."""
        lock, counts = self._counts()
        with lock:
            counts[0] += requests
            counts[1] += received_bytes

    @property
    def traffic(self) -> Traffic:
        """The counts so far."""
        lock, counts = self._counts()
        with lock:
            return Traffic(requests=counts[0], received_bytes=counts[1])
