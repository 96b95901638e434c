"""Was every sample read once?

Counts on integers: what was read as valid in one pass against what the dataset holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
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


def tally(index: NDArray[np.int64], valid: NDArray[np.bool_], num_samples: int) -> Tally:
    """Count what was read: `index` and `valid` of every slot, in any order, both [slots]."""
    read = index[valid]
    known = (read >= 0) & (read < num_samples)
    times = np.bincount(read[known], minlength=num_samples)
    return Tally(
        samples=int(read.size),
        distinct=int(np.count_nonzero(times)),
        pads=int(valid.size - read.size),
        missing=np.flatnonzero(times == 0),
        repeated=np.flatnonzero(times > 1),
        unknown=np.unique(read[~known]),
    )
