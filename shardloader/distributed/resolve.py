"""Which topology holds, of all that speak?

The argument, then torch.distributed when it is initialised, then the environment, then 0 of 1.
Asked in the main process at the first iter, len or state_dict, never in a constructor.
"""

from __future__ import annotations

import logging

from shardloader.distributed.environment import from_environment
from shardloader.order.topology import Topology

log = logging.getLogger("shardloader")


def resolve_topology(given: Topology | None) -> Topology:
    """The data-parallel rank and world size of this process; raises TopologyError."""
    if given is not None:
        return given
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return Topology(rank=distributed.get_rank(), world_size=distributed.get_world_size())
    found = from_environment()
    if found is None:
        return Topology(rank=0, world_size=1)
    topology, source = found
    log.info("rank %d of %d, from %s", topology.rank, topology.world_size, source)
    return topology
