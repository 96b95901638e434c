"""What does a perfect shuffle give on average?

It is a permutation of all samples of which each is equally likely: a formula for each figure of
`planning.quality`, so that a plan is compared with what is best, and not with another draw.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LARGEST_TABLE = 1 << 22


def distinct_shards(counts: NDArray[np.int64], num_drawn: int) -> float:
    """Different shards that `num_drawn` samples of a perfect shuffle stem from, on average.

    Of N samples, b are drawn, each set of b equally likely. Those that avoid a shard of n samples
    are drawn from the N - n others: C(N-n, b) of C(N, b) sets. So a shard is among them with the
    probability 1 - C(N-n, b) / C(N, b), and the average number of shards is the sum of that over
    the shards. The ratio is the product of 1 - b / (N - i) over i = 0 .. n-1, and as well of
    1 - n / (N - i) over i = 0 .. b-1.
    """
    total = int(counts.sum())
    drawn = min(num_drawn, total)
    if drawn == 0:
        return 0.0
    sizes, times = np.unique(counts, return_counts=True)
    in_table = sizes <= _LARGEST_TABLE
    number = np.arange(int(sizes[in_table].max(initial=0)), dtype=np.float64)
    left = np.maximum(1 - drawn / (total - number), 0) if number.size else number
    avoids = np.concatenate([[1.0], np.cumprod(left)])
    found = float((times[in_table] * (1 - avoids[sizes[in_table]])).sum())
    for size, often in zip(sizes[~in_table].tolist(), times[~in_table].tolist(), strict=True):
        found += often * (1 - _avoided(total, size, drawn))
    return found


def _avoided(total: int, size: int, drawn: int) -> float:
    """C(total - size, drawn) / C(total, drawn), factor by factor of the shorter product."""
    if size + drawn > total:
        return 0.0
    few, many = sorted((size, drawn))
    if few <= _LARGEST_TABLE:
        logarithms = np.log1p(-many / (total - np.arange(few, dtype=np.float64)))
        return math.exp(float(logarithms.sum()))
    # Every factor as the middle one: of so many, these differ only where the product is 0.
    return math.exp(few * math.log1p(-many / (total - few / 2)))


def mean_distance(num_samples: int) -> float:
    """The average distance of two samples in a perfect shuffle of N, in places: (N + 1) / 3.

    Of the N (N - 1) / 2 pairs of places, N - d are d apart; the sum of d (N - d) over d is
    (N - 1) N (N + 1) / 6. Fewer than two samples have no distance; it is 0.
    """
    return (num_samples + 1) / 3 if num_samples > 1 else 0.0


def median_distance(num_samples: int) -> int:
    """The median distance of two samples in a perfect shuffle of N, in places.

    The least d such that half of the N (N - 1) / 2 pairs of places are at most d apart; those are
    d N - d (d + 1) / 2. For large N it is about N (1 - 1 / sqrt(2)).
    """
    low, high = 0, max(0, num_samples - 1)
    while low < high:
        middle = (low + high) // 2
        near = middle * num_samples - middle * (middle + 1) // 2
        if 4 * near >= num_samples * (num_samples - 1):
            high = middle
        else:
            low = middle + 1
    return low


def same_batch(num_samples: int, step_size: int) -> float:
    """The probability that two samples of a perfect shuffle of N come in one global batch.

    The steps hold G samples each and the last what is left; of the N (N - 1) ordered pairs of
    places, k (k - 1) lie in a step of k samples.
    """
    if num_samples < 2:
        return 0.0
    full, rest = divmod(num_samples, step_size)
    pairs = full * step_size * (step_size - 1) + rest * (rest - 1)
    return pairs / (num_samples * (num_samples - 1))
