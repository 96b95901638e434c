from __future__ import annotations

import numpy as np
import pytest

from shardloader.order.search import FEW, edges_at_most


@pytest.mark.parametrize("num_edges", [0, 1, 2, FEW, FEW + 1, 100])
def test_few_edges_are_counted_as_many_are(num_edges):
    edges = np.cumsum(np.arange(num_edges) % 3)  # some are equal
    numbers = np.arange(-2, num_edges + 3).reshape(-1, 1)
    expected = [[sum(int(edge) <= number for edge in edges)] for (number,) in numbers.tolist()]
    assert edges_at_most(edges, numbers).tolist() == expected
