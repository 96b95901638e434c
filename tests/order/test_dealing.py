from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardloader.errors import UsageError
from shardloader.order.dealing import Dealing, checked_even
from shardloader.order.grid import Grid, Lanes


def a_dealing(num_samples: int = 30, **changed: Any) -> Dealing:
    values: dict[str, Any] = {
        "lanes": Lanes(grid=Grid(ranks=2, workers=1, batch=2), num_samples=num_samples),
        "first": 0,
        "length": num_samples,
        "consumed": 0,
        "world_size": 2,
        "batch_size": 2,
        "even": "pad",
    }
    return Dealing(**{**values, **changed})


def dealt(dealing: Dealing, step: int) -> list[list[tuple[int, bool]]]:
    """Position and validity of each rank's slots at a step."""
    found = []
    for rank in range(dealing.world_size):
        slots = dealing.slots(np.array([step]), rank)
        size = int(slots.size[0])
        found.append(
            list(
                zip(slots.position[0, :size].tolist(), slots.valid[0, :size].tolist(), strict=True)
            )
        )
    return found


@pytest.mark.parametrize("even", ["pad", "drop", "join"])
def test_the_three_policies_are_policies(even):
    assert checked_even(even) == even


@pytest.mark.parametrize("even", ["Pad", "", None, True])
def test_any_other_policy_is_refused_with_what_each_one_does(even):
    with pytest.raises(UsageError, match=rf"'pad': .*'drop': .*'join': .* It was {even!r}"):
        a_dealing(even=even)


@pytest.mark.parametrize("name", ["world_size", "batch_size", "accumulate", "consumed"])
@pytest.mark.parametrize("value", [-1, True, 1.0, None, 2**63])
def test_a_dealing_refuses_what_is_no_count_and_says_which(name, value):
    with pytest.raises(UsageError, match=rf"^{name} must be "):
        a_dealing(**{name: value})


@pytest.mark.parametrize("name", ["world_size", "batch_size"])
def test_a_step_holds_at_least_one_slot_and_each_side_fits_in_31_bits(name):
    for value in (0, 2**31):
        with pytest.raises(UsageError, match=rf"^{name} must be "):
            a_dealing(**{name: value})


def test_more_consumed_than_the_epoch_has_is_refused():
    assert a_dealing(consumed=30).num_steps == 0
    with pytest.raises(UsageError, match="epoch of 30 positions can't have 31 consumed"):
        a_dealing(consumed=31)


def test_numpys_integers_are_taken_and_held_as_pythons():
    dealing = a_dealing(world_size=np.int64(3), batch_size=np.uint8(2), consumed=np.int32(1))
    held = (dealing.world_size, dealing.batch_size, dealing.consumed)
    assert held == (3, 2, 1)
    assert all(type(value) is int for value in held)


def test_a_steps_positions_are_dealt_lane_rank_by_lane_rank():
    # On a grid of 2 ranks x 2, one rank of batch 8 takes two canonical batches of each in turn.
    assert dealt(a_dealing(world_size=1, batch_size=8), 0) == [
        [(position, True) for position in (0, 2, 4, 6, 1, 3, 5, 7)]
    ]


def test_the_tail_comes_last_in_its_step():
    # 11 samples: two canonical steps, and a tail of three.
    dealing = a_dealing(11, world_size=1, batch_size=7, consumed=4)
    assert dealt(dealing, 0) == [[(position, True) for position in (4, 6, 5, 7, 8, 9, 10)]]
    dealing = a_dealing(11, world_size=1, batch_size=11)
    wanted = (0, 2, 4, 6, 1, 3, 5, 7, 8, 9, 10)
    assert dealt(dealing, 0) == [[(position, True) for position in wanted]]


def test_a_step_across_passes_takes_them_one_after_another():
    # Passes of 5 samples, of which the last is the tail; an epoch from virtual position 3 on.
    dealing = a_dealing(5, first=3, length=12, world_size=1, batch_size=8)
    slots = dealing.slots(np.array([0]), 0)
    assert slots.number.tolist() == [[0, 0, 1, 1, 1, 1, 1, 2]]
    assert slots.position.tolist() == [[3, 4, 0, 2, 1, 3, 4, 0]]


@pytest.mark.parametrize(
    ("rest", "world_size", "batch_size", "want"),
    [
        # Enough for every rank: each repeats its own in turn, from its first.
        (5, 2, 5, [[0, 1, 2, "0", "1"], [3, 4, "3", "4", "3"]]),
        (2, 2, 3, [[0, "0", "0"], [1, "1", "1"]]),
        # Too few: a rank without any repeats the rest's, in turn.
        (2, 3, 3, [[0, "0", "0"], [1, "1", "1"], ["0", "1", "0"]]),
        (1, 3, 2, [[0, "0"], ["0", "0"], ["0", "0"]]),
        (3, 5, 2, [[0, "0"], [1, "1"], [2, "2"], ["0", "1"], ["0", "1"]]),
    ],
)
def test_pads_repeat_the_ranks_own_samples_and_the_rests_where_it_has_none(
    rest, world_size, batch_size, want
):
    # On a grid of one the positions are dealt as they come; a string is a pad.
    lanes = Lanes(grid=Grid(ranks=1, workers=1, batch=1), num_samples=rest)
    dealing = a_dealing(rest, lanes=lanes, world_size=world_size, batch_size=batch_size)
    got = [
        [position if valid else str(position) for position, valid in batch]
        for batch in dealt(dealing, 0)
    ]
    assert got == want
    assert dealing.num_steps == 1
    assert dealing.num_pads == world_size * batch_size - rest
    assert dealing.global_valid(np.array([0])).tolist() == [rest]
    joined = replace(dealing, even="join")
    assert dealt(joined, 0) == [
        [(slot, True) for slot in batch if isinstance(slot, int)] for batch in want
    ]
    assert joined.num_pads == joined.num_omitted == 0
    dropped = replace(dealing, even="drop")
    assert (dropped.num_steps, dropped.num_omitted, dropped.num_pads) == (0, rest, 0)


def test_batches_under_join_are_one_fewer_on_ranks_without_a_share():
    dealing = a_dealing(14, world_size=4, batch_size=3, even="join")
    assert dealing.num_steps == 2
    assert [dealing.num_batches(rank) for rank in range(4)] == [2, 2, 1, 1]
    assert [dealing.slots(np.array([0, 1]), rank).size.tolist() for rank in range(4)] == [
        [3, 1],
        [3, 1],
        [3, 0],
        [3, 0],
    ]
    for even in ("pad", "drop"):
        other = replace(dealing, even=even)
        assert {other.num_batches(rank) for rank in range(4)} == {other.num_steps}


@pytest.mark.parametrize("even", ["pad", "drop", "join"])
def test_no_policy_matters_when_the_steps_come_out_even(even):
    dealing = a_dealing(24, world_size=2, batch_size=3, even=even)
    assert dealing.num_steps == dealing.num_full == 4
    assert dealing.num_pads == dealing.num_omitted == dealing.rest == 0
    assert dealing.num_batches(1) == 4
    assert dealing.global_valid(np.arange(4)).tolist() == [6] * 4


def test_consumed_counts_whole_steps_and_the_last_one_to_the_end():
    dealing = a_dealing(30, consumed=3, world_size=2, batch_size=5)
    assert [dealing.consumed_after(steps) for steps in range(5)] == [3, 13, 23, 30, 30]
    # What is dropped counts as consumed once the last full step was received.
    dropping = replace(dealing, even="drop")
    assert [dropping.consumed_after(steps) for steps in range(4)] == [3, 13, 30, 30]


def test_an_empty_dataset_has_no_steps_and_no_slots():
    dealing = a_dealing(0)
    assert dealing.num_steps == dealing.num_batches(1) == 0
    slots = dealing.slots(np.zeros(0, dtype=np.int64), 1)
    assert slots.number.shape == slots.position.shape == slots.valid.shape == (0, 2)
    assert slots.size.shape == (0,)


def test_steps_far_into_a_huge_epoch_are_exact():
    grid = Grid(ranks=1024, workers=8, batch=32)
    lanes = Lanes(grid=grid, num_samples=2**60)
    dealing = Dealing(
        lanes=lanes, first=0, length=2**60, consumed=0, world_size=1023, batch_size=32, even="pad"
    )
    step = dealing.num_full - 5
    start = step * dealing.step_size

    def sorts_by(position: int) -> tuple[int, int]:
        element, turn = divmod(position, grid.ranks)
        return int(f"{turn:010b}"[::-1], 2), element

    want = sorted(range(start, start + dealing.step_size), key=sorts_by)
    for rank in (0, 511, 1022):
        slots = dealing.slots(np.array([step]), rank)
        assert slots.position[0].tolist() == want[rank * 32 : rank * 32 + 32]
        assert slots.number.tolist() == [[0] * 32]


@pytest.mark.parametrize("steps", [[-1], [8], [0, 8]])
def test_steps_and_ranks_that_the_dealing_does_not_have_are_refused(steps):
    dealing = a_dealing(30)
    assert dealing.num_steps == 8
    with pytest.raises(UsageError, match=r"steps lie in 0 \.\. 7, and these reach from"):
        dealing.slots(np.array(steps), 0)
    with pytest.raises(UsageError, match=r"^rank must be less than 2"):
        dealing.slots(np.array([0]), 2)


@pytest.mark.parametrize("even", ["pad", "drop"])
@pytest.mark.parametrize("accumulate", [1, 2, 3, 50])
@pytest.mark.parametrize("consumed", [0, 4, 6, 12, 25])
def test_a_group_holds_what_its_steps_hold_counted_from_the_epochs_start(
    even, accumulate, consumed
):
    dealing = a_dealing(27, consumed=consumed, even=even, accumulate=accumulate)
    steps = np.arange(dealing.num_steps)
    groups = (steps + consumed // dealing.step_size) // accumulate
    valid = dealing.global_valid(steps)
    wanted = [int(valid[groups == group].sum()) for group in groups]
    assert dealing.group_valid(steps).tolist() == wanted
    assert dealing.group_valid(steps[::-1]).tolist() == wanted[::-1]


def test_groups_of_several_steps_are_refused_under_join():
    with pytest.raises(UsageError, match=r'its share of the group .* use even="pad" or "drop"'):
        a_dealing(even="join", accumulate=2)
    assert a_dealing(even="join", accumulate=1).num_steps == 8
