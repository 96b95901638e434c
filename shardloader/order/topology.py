"""Which of the data-parallel readers is this one?

A value and its checks; where the numbers come from is the affair of `shardloader.distributed`.
`from_group` and `from_mesh` only ask the object that they are handed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardloader.errors import TopologyError, UsageError
from shardloader.order.integers import checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """This process's rank in the data-parallel group, and the group's size.

    All ranks of one tensor- or pipeline-parallel replica share a data-parallel rank, and get the
    same batches. Raises TopologyError unless 0 <= rank < world_size.
    """

    rank: int
    world_size: int

    def __post_init__(self) -> None:
        try:
            world_size = checked("world_size", self.world_size, least=1, below=2**31)
            rank = checked("rank", self.rank, least=0, below=2**31)
        except UsageError as error:
            raise TopologyError(str(error)) from None
        if rank >= world_size:
            raise TopologyError(
                f"a rank lies in 0 .. world_size - 1, and rank={rank} with world_size={world_size} "
                "does not: ranks count from 0, within the data-parallel group"
            )
        object.__setattr__(self, "world_size", world_size)
        object.__setattr__(self, "rank", rank)

    @classmethod
    def from_group(cls, group: Any) -> Topology:
        """The topology of a `torch.distributed` process group that this process belongs to."""
        if not (hasattr(group, "rank") and hasattr(group, "size")):
            raise TopologyError(
                f"Topology.from_group takes a process group that this rank belongs to, and got "
                f"{group!r}: a rank outside of a group has no data-parallel rank in it"
            )
        return cls(rank=group.rank(), world_size=group.size())

    @classmethod
    def from_mesh(cls, mesh: Any, dim: str | int | None = None) -> Topology:
        """The topology along one dimension of a `DeviceMesh`, the data-parallel one."""
        names = tuple(mesh.mesh_dim_names or ())
        if isinstance(dim, str):
            if dim not in names:
                raise TopologyError(
                    f"the mesh has the dimensions {names}, and {dim!r} is none of them"
                )
            dim = names.index(dim)
        if dim is None and mesh.ndim != 1:
            raise TopologyError(
                f"a mesh of {mesh.ndim} dimensions {names} needs the name of its data-parallel "
                'one: Topology.from_mesh(mesh, "dp")'
            )
        dim = dim or 0
        return cls(rank=mesh.get_local_rank(dim), world_size=mesh.size(dim))
