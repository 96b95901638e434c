"""How long does the training loop wait for the loader?

Measured around each batch: two looks at a clock, and one number that is kept. When some hundreds
are kept they go into a histogram together, since that is much cheaper than one by one. It has a
fixed number of places, eight to each doubling of the wait, so that a quantile is known to about 6%,
over whatever number of steps.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from operator import sub
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

_PER_DOUBLING: Final = 8
_SMALLEST: Final = -20  # waits below 2^-20 s, about a microsecond, share the first place
_FIRST: Final = -(_SMALLEST + 1) * _PER_DOUBLING
_NUM_PLACES: Final = _PER_DOUBLING * 34  # up to 2^14 s, about four hours
_LOT: Final = 512  # waits that go into the histogram together


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """How the loop was fed, over some steps.

    steps; wait_s: seconds that the loop waited for batches, of wall_s, which passed from the moment
    when an iterator was first asked until its last batch (what lies between iterators counts
    nothing); last_wait_s: for the last batch; num_ready: batches that are made, or lie on the
    device, and were not received yet; samples: received; field_bytes: of the fields that were read,
    those of batches that are ready among them, as they lie in the shards; waits: how many waits
    there were of each length, see `shardloader.loader.meter`.
    """

    steps: int = 0
    wait_s: float = 0.0
    wall_s: float = 0.0
    last_wait_s: float = 0.0
    num_ready: int = 0
    samples: int = 0
    field_bytes: int = 0
    waits: tuple[int, ...] = field(default=(), repr=False)

    @property
    def mean_wait_s(self) -> float:
        """Seconds waited a step; 0 before the first."""
        return self.wait_s / self.steps if self.steps else 0.0

    @property
    def p50_wait_s(self) -> float:
        """The wait that half of the steps stayed below, to about 6%."""
        return quantile(self.waits, 0.5)

    @property
    def p99_wait_s(self) -> float:
        """The wait that 99 of 100 steps stayed below, to about 6%."""
        return quantile(self.waits, 0.99)

    @property
    def wait_share(self) -> float:
        """The share of the time that was spent waiting, 0 to 1."""
        return self.wait_s / self.wall_s if self.wall_s else 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples that the loop received a second."""
        return self.samples / self.wall_s if self.wall_s else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Bytes of fields, as they lie in the shards, that were read for the loop a second."""
        return self.field_bytes / self.wall_s if self.wall_s else 0.0

    def since(self, earlier: Feed) -> Feed:
        """The same for the steps after an earlier value of the same loader."""
        before = earlier.waits or (0,) * len(self.waits)
        return Feed(
            steps=self.steps - earlier.steps,
            wait_s=self.wait_s - earlier.wait_s,
            wall_s=self.wall_s - earlier.wall_s,
            last_wait_s=self.last_wait_s,
            num_ready=self.num_ready,
            samples=self.samples - earlier.samples,
            field_bytes=self.field_bytes - earlier.field_bytes,
            waits=tuple(map(sub, self.waits, before)),
        )

    def to_dict(self) -> dict[str, float]:
        """One mapping of plain numbers, for a log."""
        return {
            "wait_last_s": self.last_wait_s,
            "wait_mean_s": self.mean_wait_s,
            "wait_p50_s": self.p50_wait_s,
            "wait_p99_s": self.p99_wait_s,
            "wait_share": self.wait_share,
            "samples_per_s": self.samples_per_s,
            "bytes_per_s": self.bytes_per_s,
            "ready": self.num_ready,
        }


class Meter:
    """Keeps the waits of one loader, of one iterator after another. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.now = clock
        self._began = self._came = 0.0  # when the iterator was first asked, and its last batch came
        self._earlier_s = 0.0  # from that to this, of iterators before
        self._kept: deque[float] = deque()
        self._wait_s = 0.0
        self._last_s = 0.0
        self._waits = np.zeros(_NUM_PLACES, dtype=np.int64)
        self._lock = threading.Lock()

    def begin(self, asked: float) -> None:
        """An iterator is asked for its first batch."""
        with self._lock:
            self._earlier_s += self._came - self._began
            self._began = self._came = asked

    def received(self, asked: float) -> None:
        """A batch is here that was asked for at a moment."""
        now = self._came = self.now()
        self._kept.append(now - asked)
        if len(self._kept) >= _LOT:
            with self._lock:
                self._settle()

    def _settle(self) -> None:
        # What comes meanwhile, in another thread, is for the next time.
        waits = np.array([self._kept.popleft() for _ in range(len(self._kept))], dtype=np.float64)
        if waits.size:
            self._waits += np.bincount(places_of(waits), minlength=_NUM_PLACES)
            self._wait_s += float(waits.sum())
            self._last_s = float(waits[-1])

    def feed(self, *, samples: int, field_bytes: int, num_ready: int) -> Feed:
        """What is known now."""
        with self._lock:
            self._settle()
            return Feed(
                steps=int(self._waits.sum()),
                wait_s=self._wait_s,
                wall_s=self._earlier_s + self._came - self._began,
                last_wait_s=self._last_s,
                num_ready=num_ready,
                samples=samples,
                field_bytes=field_bytes,
                waits=tuple(self._waits.tolist()),
            )


def places_of(waits: NDArray[np.float64]) -> NDArray[np.int64]:
    """The places of waits, in seconds, in the histogram.

    >>> places_of(np.array([1.0, 2.0, 0.0, 1e9])).tolist()
    [168, 176, 0, 271]
    """
    mantissa, exponent = np.frexp(waits)  # 0.5 <= mantissa < 1
    steps = (mantissa * (2 * _PER_DOUBLING)).astype(np.int64)
    places = exponent.astype(np.int64) * _PER_DOUBLING + steps + _FIRST
    return np.where(waits > 0, np.clip(places, 0, _NUM_PLACES - 1), 0)


def middle_of(place: int) -> float:
    """The seconds in the middle of a place; what is below the first ends counts as nothing."""
    if place == 0:
        return 0.0
    exponent, step = divmod(place, _PER_DOUBLING)
    return 2.0 ** (exponent + _SMALLEST - 1) * (1 + (step + 0.5) / _PER_DOUBLING)


def quantile(waits: Sequence[int], share: float) -> float:
    """The wait that a share of the steps stayed below; 0 where there were none."""
    wanted, passed = share * sum(waits), 0
    for place, number in enumerate(waits):
        passed += number
        if number and passed >= wanted:
            return middle_of(place)
    return 0.0
