"""What each rank runs under torchrun: the loops of docs/uneven.md, on uneven data.

    torchrun --nproc-per-node 2 uneven.py OUT SHORTER EMPTY OF_ONE EVALUATED...

SHORTER and EMPTY are corpora in whose last step a rank has fewer samples, or none, with batches of
BATCH_SIZE. Each rank writes to OUT what it saw in training: at each step its valid samples, its
whole gradients and its loader's state; and its parameters at the end. OF_ONE and EVALUATED are for
`evaluation.figures`, and what it found is written too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import shardloader as sl
from tests.integration.evaluation import figures
from tests.integration.models import a_model, an_optimizer, losses

BATCH_SIZE = 2
EPOCHS = 2
SHUFFLE = sl.Shuffle(window=5)


def a_loader(corpus: str, even: str, **options: Any) -> Any:
    """The loader of every case, of the rank that torch.distributed knows."""
    dataset = sl.ShardDataset(corpus, shuffle=SHUFFLE, even=even)
    return sl.ShardLoader(dataset, batch_size=BATCH_SIZE, **options)


def per_sample_loss(model: Any, batch: Any) -> Tensor:
    """Loss of each sample, float32 [batch]."""
    return losses(model, batch["__index__"])


def ddp() -> Any:
    """The model, replicated."""
    return DistributedDataParallel(a_model())


def fsdp() -> Any:
    """The model, each layer of it sharded over all ranks."""
    model: Any = a_model()
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(tensor: Any) -> Tensor:
    """All of a tensor, which under FSDP is sharded; called on every rank."""
    found: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found.detach().clone()


class Seen:
    """The batches of a loader, each written down when the optimiser is about to step with it."""

    def __init__(self, loader: Any, model: Any, optimizer: Any) -> None:
        self.loader = loader
        self._model = model
        self.steps: list[dict[str, Any]] = []
        self._batch: Any = None
        optimizer.register_step_pre_hook(self._write_down)

    def __iter__(self) -> Any:
        for batch in self.loader:
            self._batch = batch
            yield batch

    def _write_down(self, *_: Any) -> None:
        batch = self._batch
        self.steps.append(
            {
                "epoch": len(self.steps) // len(self.loader),
                "valid": batch["__index__"][batch["__valid__"]].tolist(),
                "gradients": [whole(each.grad) for each in self._model.parameters()],
                "state": self.loader.state_dict(),
            }
        )

    def told(self, **more: Any) -> dict[str, Any]:
        """What this rank tells of a run."""
        parameters = [whole(each) for each in self._model.parameters()]
        return {"steps": self.steps, "parameters": parameters, **more}


def padded(corpus: str, model: Any) -> dict[str, Any]:
    """The loop for DDP and for FSDP."""
    optimizer = an_optimizer(model)
    loader = Seen(a_loader(corpus, "pad"), model, optimizer)
    for _ in range(EPOCHS):
        for batch in loader:
            loss = (per_sample_loss(model, batch) * batch["__valid__"]).sum() * sl.loss_scale(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return loader.told()


def joined(corpus: str, model: Any) -> dict[str, Any]:
    """The loop for DDP's Join."""
    optimizer = an_optimizer(model)
    loader = Seen(a_loader(corpus, "join"), model, optimizer)
    apart = []
    for _ in range(EPOCHS):
        with Join([model]):
            for batch in loader:
                loss = per_sample_loss(model, batch).sum() * sl.loss_scale(batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        apart.append(momenta(optimizer))
        state = [optimizer.state_dict()]
        distributed.broadcast_object_list(state, src=0)
        optimizer.load_state_dict(state[0])
    return loader.told(apart=apart, ended=loader.loader.state_dict())


def joined_by_those_who_are_left(corpus: str, model: Any) -> dict[str, Any]:
    """One epoch with the divisor that shrinks as ranks join: wrong with loss_scale."""
    optimizer = an_optimizer(model)
    loader = Seen(a_loader(corpus, "join"), model, optimizer)
    with Join([model], divide_by_initial_world_size=False):
        for batch in loader:
            loss = per_sample_loss(model, batch).sum() * sl.loss_scale(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return loader.told()


def momenta(optimizer: Any) -> list[Tensor]:
    """What the optimiser remembers of each parameter."""
    return [of["momentum_buffer"].clone() for of in optimizer.state.values()]


def resumed(corpus: str, state: Any, rank: int) -> list[list[list[int]]]:
    """What this rank reads in two passes, when every rank has loaded `rank`'s state."""
    copies = [state]
    distributed.broadcast_object_list(copies, src=rank)
    loader = a_loader(corpus, "join")
    loader.load_state_dict(copies[0])
    return [[batch["__index__"].tolist() for batch in loader] for _ in range(EPOCHS)]


def resumed_from_its_own(corpus: str, state: Any) -> str:
    """What becomes of it, when each rank has loaded its own state."""
    loader = a_loader(corpus, "join", agreement_timeout=30)
    loader.load_state_dict(state)
    try:
        next(iter(loader))
    except sl.AgreementError as error:
        return str(error)
    return "read"


def main() -> None:
    """Run every case in one launch."""
    out, shorter, empty, of_one, *evaluated = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    told: dict[str, Any] = {}
    for name, corpus in (("shorter", shorter), ("empty", empty)):
        told[f"ddp, {name}"] = padded(corpus, ddp())
        told[f"fsdp, {name}"] = padded(corpus, fsdp())
        told[f"join, {name}"] = joined(corpus, ddp())
        told[f"join by the left, {name}"] = joined_by_those_who_are_left(corpus, ddp())
    of_first_epoch = [step for step in told["join, empty"]["steps"] if step["epoch"] == 0]
    last = of_first_epoch[-1]["state"]
    told["resumed"] = [resumed(empty, last, rank) for rank in range(2)]
    told["resumed from its own"] = resumed_from_its_own(empty, last)
    told["figures"] = figures(evaluated, of_one)
    torch.save(told, Path(out, f"rank-{distributed.get_rank()}.pt"))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
