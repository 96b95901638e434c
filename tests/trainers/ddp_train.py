"""A loop of one's own, as docs/trainers.md has it: DDP, one file a checkpoint, written by rank 0.

torchrun ... ddp_train.py CORPUS OUT OPTIONS
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import shardloader as sl
from tests.trainers.task import a_model, arguments, die_if, losses

if TYPE_CHECKING:
    from pathlib import Path


def steps(corpus: str, kept: Path, log: Path, num_workers: int) -> Any:
    """Train two epochs from the checkpoint, if there is one."""
    distributed.init_process_group("gloo")
    loader = sl.ShardLoader(sl.ShardDataset(corpus), global_batch=6, num_workers=num_workers)
    loader.log_samples(log)  # for the test
    model = DistributedDataParallel(a_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if kept.exists():
        state = torch.load(kept, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
    for _epoch in range(loader.epoch, 2):
        for batch in loader:
            yield distributed.get_rank()  # for the test
            loss = (losses(model, batch) * batch["__valid__"]).sum() * sl.loss_scale(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if distributed.get_rank() == 0:
                state = {
                    "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                }
                torch.save(state, kept.with_suffix(".new"))
                kept.with_suffix(".new").replace(kept)
    distributed.destroy_process_group()


def main() -> None:
    """OPTIONS: num_workers, die_at (a step of this launch)."""
    corpus, out, options = arguments()
    loop = steps(corpus, out / "checkpoint.pt", out / "log", options.get("num_workers", 0))
    for step, rank in enumerate(loop, start=1):
        die_if(step == options.get("die_at") and rank == 1)


if __name__ == "__main__":
    main()
