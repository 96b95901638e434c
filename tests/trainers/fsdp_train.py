"""A loop of one's own, as docs/trainers.md has it: FSDP2 and torch.distributed.checkpoint.

torchrun ... fsdp_train.py CORPUS OUT OPTIONS
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import shardloader as sl
from tests.trainers.task import a_model, arguments, die_if, losses

if TYPE_CHECKING:
    from pathlib import Path


class Training:
    """Model and optimiser as `dcp` takes them, whole or in parts."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def steps(corpus: str, kept: Path, log: Path, num_workers: int) -> Any:
    """Train two epochs from the last whole checkpoint, if there is one."""
    loader = sl.ShardLoader(sl.ShardDataset(corpus), global_batch=6, num_workers=num_workers)
    loader.log_samples(log)  # for the test
    model: Any = a_model()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    state = {"training": Training(model, optimizer), "loader": loader}
    # `.metadata` is written last, by one rank.
    whole = [int(path.parent.name) for path in kept.glob("*/.metadata")]
    update = max(whole, default=0)
    if whole:
        dcp.load(state, checkpoint_id=kept / str(update))  # type: ignore[attr-defined]
    for _epoch in range(loader.epoch, 2):
        for batch in loader:
            loss = (losses(model, batch) * batch["__valid__"]).sum() * sl.loss_scale(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            update += 1
            dcp.save(state, checkpoint_id=kept / str(update))  # type: ignore[attr-defined]
            yield distributed.get_rank()  # for the test


def main() -> None:
    """OPTIONS: num_workers, die_at (a step of this launch)."""
    corpus, out, options = arguments()
    distributed.init_process_group("gloo")
    loop = steps(corpus, out / "kept", out / "log", options.get("num_workers", 0))
    for step, rank in enumerate(loop, start=1):
        die_if(step == options.get("die_at") and rank == 1)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
