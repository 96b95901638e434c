"""What each rank runs under torchrun: gradients by DDP and loss_scale, step by step.

    torchrun --nproc-per-node 2 gradients.py OUT CORPUS BATCH_SIZE EVEN

Rank 0 writes, for every step, the samples of all ranks that were valid and the gradient of each
parameter after DDP's averaging.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import shardloader as sl
from tests.integration.models import a_model, losses


def main() -> None:
    """Read one epoch without a step of the optimiser."""
    out, corpus, batch_size, even = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    model = DistributedDataParallel(a_model())
    dataset = sl.ShardDataset(corpus, shuffle=sl.Shuffle(window=5), even=even)
    loader: Any = sl.ShardLoader(dataset, batch_size=int(batch_size))
    steps = []
    for batch in loader:
        model.zero_grad()
        loss = (losses(model, batch["__index__"]) * batch["__valid__"]).sum() * sl.loss_scale(batch)
        loss.backward()
        valid: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(valid, batch["__index__"][batch["__valid__"]].tolist())
        gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
        steps.append((valid, gradients))
    if distributed.get_rank() == 0:
        torch.save(steps, Path(out))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
