"""How much of a plan is looked at, and which part, where all of it is too much work?

What is looked at is chosen without chance and spread evenly; `Measured` says how much it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardloader.planning.lanes import block

if TYPE_CHECKING:
    from shardloader.order.epoch import Order
    from shardloader.planning.planned import Plan

MOST_RUNS = 200  # batches, or runs of batches, that are looked at
BLOCKS = 3  # of the shuffle that a position needs
GOLDEN = 0.6180339887498949  # its multiples, modulo 1, fall in step with no period

_WORK_A_SAMPLE = 5  # where every pair is looked at
_WORK_A_LANE = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A figure of the plan, the same of a perfect shuffle, and how much was looked at.

    plan: None where it would be too much work; num_looked_at: of num_all batches, runs of steps or
    pairs of neighbours.
    """

    plan: float | None
    perfect: float
    num_looked_at: int
    num_all: int


def spread_evenly(total: int, wanted: int) -> list[int]:
    """Some of the numbers 0 .. total-1, ascending: all if they are few, else spread without chance.

    Multiples of the golden section, which fall in step with no period of the plan (equal distances
    might meet one worker only).

    >>> spread_evenly(3, 5), spread_evenly(100, 4)
    ([0, 1, 2], [0, 23, 61, 85])
    """
    if total <= wanted:
        return list(range(total))
    return sorted({int(number * GOLDEN % 1 * total) for number in range(wanted)})


def cost_of(order: Order, num_positions: int, num_lanes: int) -> int:
    """Words of the shuffle that positions need, which lie close together in each of some lanes."""
    blocks = min(num_positions, num_lanes)
    return num_positions + BLOCKS * blocks * block(order)


def affordable(cost: int, most_work: int) -> int:
    """How many looks of a cost are no more than the most work."""
    return min(MOST_RUNS, most_work // max(1, cost))


def is_small(plan: Plan, most_work: int) -> bool:
    """Whether every sample can be looked at."""
    grid, dealing = plan.schedule.order.grid, plan.dealing
    largest = max(plan.schedule.order.num_samples, dealing.length - dealing.consumed)
    set_up = (grid.ranks * grid.workers + dealing.world_size) * _WORK_A_LANE
    return largest * _WORK_A_SAMPLE + set_up <= most_work
