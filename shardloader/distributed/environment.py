"""What does the environment say about ranks?

The one module that reads environment variables. Two launchers speak through them: torchrun, and
Slurm's steps (a script run by hand inside an allocation is no step: it has no number of tasks).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from shardloader.errors import TopologyError
from shardloader.order.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

# Launcher, the variable of the rank, the variable of the number of ranks, whether the rank alone
# says nothing.
SOURCES: Final = (
    ("torchrun", "RANK", "WORLD_SIZE", False),
    ("a Slurm step", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", True),
)


def from_environment(
    environment: Mapping[str, str] = os.environ,  # noqa: TID251 - this is the one module
) -> tuple[Topology, str] | None:
    """The topology that the launcher set, with its source in words; None where none did.

    Raises TopologyError for half a source, or for what is no number.
    """
    for launcher, rank_name, size_name, rank_may_stand_alone in SOURCES:
        rank, size = environment.get(rank_name), environment.get(size_name)
        if size is None and (rank is None or rank_may_stand_alone):
            continue
        if rank is None or size is None:
            present, absent = (rank_name, size_name) if size is None else (size_name, rank_name)
            raise TopologyError(
                f"the environment of {launcher} sets {rank_name} and {size_name}, and here "
                f"{present} is set and {absent} is not: set both or neither, initialise "
                "torch.distributed first, or give topology=Topology(rank=..., world_size=...)"
            )
        topology = Topology(rank=_number(rank_name, rank), world_size=_number(size_name, size))
        return topology, f"{rank_name} and {size_name} of {launcher}"
    return None


def known_local_ranks(
    environment: Mapping[str, str] = os.environ,  # noqa: TID251 - this is the one module
) -> int | None:
    """How many ranks share this node, as torchrun or Slurm's step says; None where neither does."""
    for name in ("LOCAL_WORLD_SIZE", "SLURM_STEP_TASKS_PER_NODE"):
        value = re.match(r"[0-9]+", environment.get(name, ""))  # Slurm's is such as "8(x2),4"
        if value:
            return max(1, int(value[0]))
    return None


def local_ranks(
    environment: Mapping[str, str] = os.environ,  # noqa: TID251 - this is the one module
) -> int:
    """How many ranks share this node, as far as is known; 1 where nobody says."""
    return known_local_ranks(environment) or 1


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise TopologyError(
            f"{name} must be a whole number, and the environment sets it to {value!r}"
        ) from None
