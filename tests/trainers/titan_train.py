"""What torchtitan does with a loader, without the package: its per-rank states, its endless loop.

Known of torchtitan here (`components/dataloader.py`, `train.py`): a loader is handed to
`torch.distributed.checkpoint` as it is. Its own keeps, for each data-parallel rank, its torchdata
state, pickled, as `dp_rank_N`, beside `world_size`, and refuses another number of ranks. The loop
takes `next` from one iterator until it has made its steps; a loader's end is an error.

torchrun ... titan_train.py CORPUS OUT OPTIONS
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import torch.distributed.checkpoint as dcp
from torch import distributed
from torch.distributed.checkpoint.api import CheckpointException

import shardloader as sl
from tests.trainers.task import arguments, die_if, tell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Feed(sl.ShardLoader):
    """Epoch after epoch, without an end."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from super().__iter__()


class PerRank(Feed):
    """The same, keeping its state as torchtitan's own loader does."""

    def state_dict(self) -> dict[str, Any]:
        """This rank's entry, and the number of ranks."""
        topology = self.topology
        mine = pickle.dumps(super().state_dict())
        return {f"dp_rank_{topology.rank}": mine, "world_size": topology.world_size}

    def load_state_dict(self, state_dict: Any) -> None:
        """Only for as many ranks as there were."""
        if state_dict["world_size"] != self.topology.world_size:
            raise AssertionError("dp_degree is inconsistent before and after checkpoint")
        super().load_state_dict(pickle.loads(state_dict[f"dp_rank_{self.topology.rank}"]))


class Shared:
    """The state of a loader that is kept once for all ranks."""

    def __init__(self, loader: Feed) -> None:
        self.loader = loader

    def state_dict(self) -> dict[str, Any]:
        """What `ShardLoader` says, whatever its heir does."""
        return sl.ShardLoader.state_dict(self.loader)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The same."""
        sl.ShardLoader.load_state_dict(self.loader, state_dict)


def train(loader: Feed, kept: Path, steps: int, *, resume: str, die_at: int | None) -> str:
    """Make steps until there are so many; gives what was said to a per-rank state, if anything."""
    state = {"dataloader": loader, "shared": Shared(loader)}
    step, said = max((int(path.parent.name) for path in kept.glob("*/.metadata")), default=0), ""
    if step:
        folder = kept / str(step)
        try:
            dcp.load({"dataloader": state["dataloader"]}, checkpoint_id=folder)  # type: ignore[attr-defined]
        except CheckpointException as error:
            said = str(error)
        if resume == "shared":
            dcp.load({"shared": state["shared"]}, checkpoint_id=folder)  # type: ignore[attr-defined]
    batches = iter(loader)
    while step < steps:
        next(batches)
        step += 1
        dcp.save(state, checkpoint_id=kept / str(step))  # type: ignore[attr-defined]
        die_if(step == die_at and distributed.get_rank() == 1)
    return said


def main() -> None:
    """OPTIONS: name, steps, resume ("per rank" or "shared"), die_at (a step of the run)."""
    corpus, out, options = arguments()
    distributed.init_process_group("gloo")
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    loader = PerRank(sl.ShardDataset(corpus), batch_size=6 // world_size)
    loader.log_samples(out / "log")
    said = train(
        loader,
        out / "kept",
        options["steps"],
        resume=options["resume"],
        die_at=options.get("die_at"),
    )
    told = {"said": said, "epoch": loader.epoch}
    tell(out, f"{options['name']}-{rank}", told)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
