"""Was every sample read once?

Counts on integers: what was read as valid in one pass against what the dataset holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tally:
    """What one pass over the data read.

    samples: valid reads; distinct: different samples among them; pads: invalid slots; missing,
    repeated, unknown: the samples' dataset numbers, int64, ascending. A sample is repeated if it
    was read as valid more than once, and unknown if the dataset holds no sample of its number.
    """

    samples: int
    distinct: int
    pads: int
    missing: NDArray[np.int64]
    repeated: NDArray[np.int64]
    unknown: NDArray[np.int64]

    @property
    def is_exact(self) -> bool:
        """Every sample exactly once, and nothing else."""
        return not (self.missing.size or self.repeated.size or self.unknown.size)


def tally(parts: Iterable[tuple[NDArray[np.int64], NDArray[np.bool_]]], num_samples: int) -> Tally:
    """Count what was read: `index` and `valid` of every slot, in parts of any shape and order.

    Takes four bytes a sample of the dataset, however much was read.
    """
    times = np.zeros(num_samples, dtype=np.int32)
    num_read = num_slots = 0
    unknown: set[int] = set()
    for index, valid in parts:
        read = index[valid]
        known = (read >= 0) & (read < num_samples)
        np.add.at(times, read[known], 1)
        unknown.update(read[~known].tolist())
        num_read += read.size
        num_slots += valid.size
    return Tally(
        samples=num_read,
        distinct=int(np.count_nonzero(times)),
        pads=num_slots - num_read,
        missing=np.flatnonzero(times == 0),
        repeated=np.flatnonzero(times > 1),
        unknown=np.array(sorted(unknown), dtype=np.int64),
    )
