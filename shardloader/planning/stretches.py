"""Where does a plan go on in another topology?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardloader.errors import UsageError
from shardloader.order.integers import checked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardloader.planning.planned import Plan


class Change(NamedTuple):
    """Another topology from `step` on; None where nothing changes."""

    step: int
    world_size: int | None = None
    num_workers: int | None = None
    batch_size: int | None = None


def stretches(plan: Plan, changes: Sequence[Change]) -> tuple[Plan, ...]:
    """The plan, cut where its topology changes: one plan a topology, in order.

    The changes' steps count from the plan's position, over all stretches, as a training loop
    counts its steps; they ascend. Together the stretches read what is left of the epoch. Raises
    UsageError for steps that do not ascend, or that lie behind the epoch's end.
    """
    parts: list[Plan] = []
    begun = 0
    for change in changes:
        step = checked("the step of a change", change.step, least=1)
        if not begun < step < begun + plan.steps:
            where = f"after step {begun}, where the change before it is, and " if begun else ""
            raise UsageError(
                f"a topology changes {where}before the epoch's end at step {begun + plan.steps}, "
                f"and a change at step {step} does not: give the changes in the order of their "
                "steps"
            )
        parts.append(plan.before(step - begun))
        plan = plan.change(**change._replace(step=step - begun)._asdict())
        begun = step
    return (*parts, plan)
