"""Between which edges do numbers lie, where the edges are mostly few?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEW = 12  # so many comparisons of whole arrays cost less than a bisection for each number


def edges_at_most(edges: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the sorted edges are at most each number: int64, the numbers' shape."""
    if len(edges) > FEW:
        return np.searchsorted(edges, numbers, side="right")
    count = np.zeros(numbers.shape, dtype=np.int64)
    for edge in edges:
        count += numbers >= edge
    return count
