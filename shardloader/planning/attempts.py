"""Which of the logged rows led to the final model, and how far did training come?

Training that is killed and resumed has a history of attempts. What an earlier attempt read at or
after the start of a later one was rolled back with the model, and is superseded. A log does not
say which attempt made the state that was loaded: it is taken for one that still counted then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from shardloader.planning.log_reader import Logged
    from shardloader.planning.sample_log import Attempt, Place, Start

_NEVER: Place = (2**62, 0)


class Attempts:
    """The attempts that some starts tell of."""

    def __init__(self, starts: Iterable[Start]) -> None:
        begun: dict[Attempt, Place] = {}
        for start in starts:
            if start.is_first:
                # A state that had no step left in its epoch was left there for the next one.
                place = start.closed or start.place
                begun[start.attempt] = min(place, begun.get(start.attempt, place))
        # The earliest start of any later attempt: what was read from there on was rolled back.
        self._limits: dict[Attempt, Place] = {}
        earliest = _NEVER
        for attempt in sorted(begun, reverse=True):
            self._limits[attempt] = earliest
            earliest = min(earliest, begun[attempt])

    def __len__(self) -> int:
        return len(self._limits)

    def limit(self, attempt: Attempt) -> Place:
        """The place from which on an attempt is superseded."""
        return self._limits[attempt]

    def final_rows(self, logged: Logged) -> NDArray[np.int64]:
        """Rows that count, in the order of training, and within a step by attempt and rank."""
        limits = [self._limits[start.attempt] for start in logged.starts]
        epoch, consumed = np.array(limits, dtype=np.int64).reshape(-1, 2)[logged.start].T
        is_final = (logged.epoch < epoch) | ((logged.epoch == epoch) & (logged.consumed < consumed))
        rows = np.flatnonzero(is_final)
        keys = (logged.of_start("rank"), self.numbers(logged), logged.consumed, logged.epoch)
        return rows[np.lexsort([key[rows] for key in keys])]

    def numbers(self, logged: Logged) -> NDArray[np.int64]:
        """For each row the number of its attempt, counted from the first, int64 [rows]."""
        number = {attempt: i for i, attempt in enumerate(sorted(self._limits))}
        of_start = np.array([number[start.attempt] for start in logged.starts], dtype=np.int64)
        return of_start[logged.start]

    def reached(self, logged: Logged, rows: NDArray[np.int64]) -> int | None:
        """The virtual position that every rank of the latest attempt among `rows` has passed.

        None without rows.
        """
        if not rows.size:
            return None
        number = self.numbers(logged)[rows]
        rows = rows[number == number.max()]
        start = logged.starts[int(logged.start[rows[0]])]
        in_epoch = logged.of_start("epoch_length")[rows]
        epoch_end = logged.epoch[rows] * start.stride + in_epoch
        after = np.minimum(logged.virtual()[rows] + start.step_size, epoch_end)
        by_rank = np.full(start.world_size, -1, dtype=np.int64)
        np.maximum.at(by_rank, logged.of_start("rank")[rows] % start.world_size, after)
        if by_rank.min() < 0:  # a rank has not received a batch yet
            first = next(each for each in logged.starts if each.attempt == start.attempt)
            return first.virtual(first.place)
        return int(by_rank.min())
