"""Which positions need not have been read?

Ranges of virtual positions: those before the first log, those that training skipped, and those
that the end of an epoch left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from shardloader.planning.attempts import Attempts
    from shardloader.planning.log_reader import Logged
    from shardloader.planning.sample_log import Start


class Ranges:
    """A set of positions, given as half-open ranges that may overlap.

    >>> ranges = Ranges([(4, 8), (0, 2), (6, 10)])
    >>> ranges.within(0, 100), ranges.within(1, 7)
    (8, 4)
    """

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._merged: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if self._merged and start <= self._merged[-1][1]:
                first, last = self._merged[-1]
                self._merged[-1] = (first, max(last, stop))
            elif start < stop:
                self._merged.append((start, stop))

    def within(self, start: int, stop: int) -> int:
        """How many of the positions start .. stop-1 are among them."""
        return sum(max(0, min(stop, last) - max(start, first)) for first, last in self._merged)


def skipped(logged: Logged, attempts: Attempts) -> Iterator[tuple[int, int]]:
    """What training skipped, and did not roll back."""
    for skip in logged.skips:
        if skip.place < attempts.limit(skip.attempt):
            yield skip.virtual, skip.virtual + skip.num_positions


def left_out(
    logged: Logged, attempts: Attempts, rows: NDArray[np.int64]
) -> Iterator[tuple[int, int]]:
    """What ends of epochs left out: by "drop", or because a loaded state had no step there."""
    for start in logged.starts:
        if start.closed and start.place <= attempts.limit(start.attempt):
            yield start.virtual(start.closed), start.virtual((start.closed[0] + 1, 0))
        if start.even == "drop" and start.epoch_length < start.step_size:  # it has no step at all
            yield start.virtual(start.place), start.virtual(attempts.limit(start.attempt))
    if not any(start.even == "drop" for start in logged.starts):
        return
    epoch = logged.epoch[rows]
    for row in rows[np.flatnonzero(np.diff(epoch, append=-1))].tolist():
        yield _dropped(
            logged.starts[logged.start[row]], int(logged.epoch[row]), logged.consumed[row]
        )


def _dropped(start: Start, epoch: int, consumed: int) -> tuple[int, int]:
    """What "drop" leaves out of an epoch whose last step in the log began at `consumed`."""
    end = start.virtual((epoch, start.epoch_length))
    rest = (start.epoch_length - int(consumed)) % start.step_size
    return (end - rest if start.even == "drop" else end), end
