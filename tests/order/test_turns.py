from __future__ import annotations

import numpy as np
import pytest

from shardloader.order.turns import Counts, turns


def test_lane_ranks_come_by_their_reversed_bits():
    assert turns(1).rank.tolist() == [0]
    assert turns(2).rank.tolist() == [0, 1]
    assert turns(6).rank.tolist() == [0, 4, 2, 1, 5, 3]
    assert turns(8).rank.tolist() == [0, 4, 2, 6, 1, 5, 3, 7]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 16, 100, 1024])
def test_the_turn_of_a_lane_rank_undoes_the_lane_rank_of_a_turn(ranks):
    rank, turn = turns(ranks)
    assert sorted(rank.tolist()) == list(range(ranks))
    assert turn[rank].tolist() == list(range(ranks))
    with pytest.raises(ValueError, match="read-only"):
        rank[0] = 1


@pytest.mark.parametrize("ranks", [1, 3, 8, 13])
def test_positions_below_are_counted_as_a_loop_would(ranks):
    positions = np.arange(4 * ranks).reshape(2, -1)
    counts = Counts(positions, ranks)
    rank_of = turns(ranks).rank.tolist() * 4
    for rank in range(ranks + 1):
        want = [sum(q < rank for q in rank_of[:position]) for position in range(4 * ranks)]
        assert counts.below(np.array(rank)).ravel().tolist() == want


@pytest.mark.parametrize("ranks", [16, 100, 1000])
def test_any_run_of_turns_is_spread_evenly_over_the_lane_ranks(ranks):
    rank, _ = turns(ranks)
    bits = (ranks - 1).bit_length()
    for start in range(0, ranks, 7):
        for length in (1, ranks // 3, ranks // 2, ranks - 1):
            run = np.sort(rank[(start + np.arange(length)) % ranks])
            before = np.searchsorted(run, np.arange(ranks + 1))
            share = length * np.arange(ranks + 1) / ranks
            assert np.abs(before - share).max() <= bits
