from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardloader.errors import TopologyError, UsageError
from shardloader.order.topology import Topology


class FakeGroup:
    """What is asked of a process group: this rank in it, and its size."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


class FakeMesh:
    """What is asked of a DeviceMesh: its dimensions, and this rank along each of them."""

    def __init__(
        self, shape: tuple[int, ...], at: tuple[int, ...], names: tuple[str, ...] | None
    ) -> None:
        self._shape, self._at, self.mesh_dim_names = shape, at, names
        self.ndim = len(shape)

    def size(self, dim: int) -> int:
        return self._shape[dim]

    def get_local_rank(self, dim: int) -> int:
        return self._at[dim]


def test_a_topology_takes_any_integers_and_holds_pythons():
    given: dict[str, Any] = {"rank": np.int64(2), "world_size": np.int32(3)}
    topology = Topology(**given)
    assert topology == Topology(rank=2, world_size=3)
    assert type(topology.rank) is type(topology.world_size) is int


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 2**31])
@pytest.mark.parametrize("name", ["rank", "world_size"])
def test_a_topology_refuses_what_is_no_rank_or_size_and_says_which(name, value):
    values = {"rank": 0, "world_size": 1, name: value}
    with pytest.raises(TopologyError, match=rf"^{name} must be .*, and is "):
        Topology(**values)


def test_a_world_of_nobody_is_refused():
    with pytest.raises(TopologyError, match=r"^world_size must be at least 1, and is 0$"):
        Topology(rank=0, world_size=0)


@pytest.mark.parametrize("rank", [4, 5])
def test_a_rank_outside_the_world_is_refused_with_both_numbers(rank):
    with pytest.raises(
        TopologyError,
        match=rf"rank lies in 0 \.\. world_size - 1, and rank={rank} with world_size=4 does not: ",
    ):
        Topology(rank=rank, world_size=4)
    assert issubclass(TopologyError, UsageError)


def test_a_groups_topology_is_what_the_group_says():
    assert Topology.from_group(FakeGroup(1, 4)) == Topology(rank=1, world_size=4)


def test_a_group_that_this_rank_is_not_in_is_refused():
    # torch.distributed gives ranks outside of a new group a plain object, NON_GROUP_MEMBER.
    for outside in (object(), None, -100):
        with pytest.raises(TopologyError, match="takes a process group that this rank belongs to"):
            Topology.from_group(outside)
    with pytest.raises(TopologyError, match=r"^rank must be at least 0, and is -1$"):
        Topology.from_group(FakeGroup(-1, 4))


@pytest.mark.parametrize(
    ("dim", "want"), [("dp", (2, 3)), (0, (2, 3)), ("tp", (1, 5)), (1, (1, 5))]
)
def test_a_meshs_topology_is_that_of_the_dimension_named(dim, want):
    mesh = FakeMesh((3, 5), (2, 1), ("dp", "tp"))
    rank, world_size = want
    assert Topology.from_mesh(mesh, dim) == Topology(rank=rank, world_size=world_size)


@pytest.mark.parametrize("names", [None, ("dp",)])
def test_a_mesh_of_one_dimension_needs_no_name(names):
    mesh = FakeMesh((3,), (2,), names)
    assert Topology.from_mesh(mesh) == Topology(rank=2, world_size=3)


def test_a_mesh_of_several_dimensions_needs_the_name():
    mesh = FakeMesh((3, 5), (2, 1), ("dp", "tp"))
    with pytest.raises(TopologyError, match=r"2 dimensions \('dp', 'tp'\) needs the name"):
        Topology.from_mesh(mesh)


@pytest.mark.parametrize("names", [("dp", "tp"), None])
def test_a_dimension_that_the_mesh_lacks_is_refused_with_those_it_has(names):
    mesh = FakeMesh((3, 5), (2, 1), names)
    with pytest.raises(TopologyError, match=r"the mesh has the dimensions .* and 'pp' is none"):
        Topology.from_mesh(mesh, "pp")
