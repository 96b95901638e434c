"""What each rank runs under torchrun: gradients by DDP and loss_scale, one optimiser step each.

    torchrun --nproc-per-node 2 gradients.py OUT CORPORA SCENARIOS

CORPORA is a JSON list of folders, SCENARIOS of `Scenario`s. Rank 0 writes, for every scenario and
optimiser step, the samples of all ranks that were valid and the gradient of each parameter after
DDP's averaging.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import shardloader as sl
from tests.integration.models import a_model, losses, token_losses
from tests.troubled import FailAtSome, RefuseSome

TRANSFORMS: dict[str, Any] = {"loop": lambda _: None, "transform": RefuseSome, "error": FailAtSome}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """How to train.

    counts: samples of each shard; by: what the denominator is known from, "plan", "sync" (the
    samples of `refused` are left out by `how`: the "loop", a "transform" that returns None, or an
    "error" of one that is skipped) or "tokens"; bf16: under autocast.
    """

    counts: tuple[int, ...]
    batch_size: int = 2
    even: str = "pad"
    accumulate: int | None = None
    epochs: int = 1
    by: str = "plan"
    refused: tuple[int, ...] = ()
    how: str = "loop"
    bf16: bool = False


def loss_of(model: Any, batch: Any, group: list[Any], scenario: Scenario) -> Any:
    """The loss that this rank's backward pass starts from."""
    valid = batch["__valid__"]
    if scenario.by == "tokens":
        index = batch["__index__"]
        by_sample, _ = token_losses(model, index)
        num_tokens = sum(
            token_losses(model, each["__index__"])[1][each["__valid__"]].sum() for each in group
        )
        return (by_sample * valid).sum() * sl.loss_scale(batch, weight=num_tokens)
    scale = sl.loss_scale(group, sync=True) if scenario.by == "sync" else sl.loss_scale(batch)
    return (losses(model, batch["__index__"]) * valid).sum() * scale


def groups(loader: Any, refused: tuple[int, ...]) -> Any:
    """The batches of each optimiser step."""
    group = []
    for batch in loader:
        batch["__valid__"] &= ~torch.isin(
            batch["__index__"], torch.tensor(refused, dtype=torch.int64)
        )
        group.append(batch)
        if loader.step % loader.accumulate == 0:
            yield group
            group = []
    assert not group


def train(scenario: Scenario, corpus: str) -> list[Any]:
    """Valid samples by rank, and gradients, of each optimiser step."""
    model = DistributedDataParallel(a_model())
    dataset = sl.ShardDataset(
        corpus,
        shuffle=sl.Shuffle(window=5),
        even=scenario.even,
        transform=TRANSFORMS[scenario.how](scenario.refused),
        on_error=sl.Skip(max_share=1.0) if scenario.how == "error" else "raise",
    )
    loader: Any = sl.ShardLoader(
        dataset, batch_size=scenario.batch_size, accumulate=scenario.accumulate
    )
    steps = []
    while loader.epoch < scenario.epochs:
        for group in groups(loader, scenario.refused if scenario.how == "loop" else ()):
            model.zero_grad()
            for number, batch in enumerate(group, start=1):
                is_last = number == len(group)
                with nullcontext() if is_last else model.no_sync():
                    with torch.autocast("cpu", torch.bfloat16, enabled=scenario.bf16):
                        loss = loss_of(model, batch, group, scenario)
                    loss.backward()
            mine = torch.cat([batch["__index__"][batch["__valid__"]] for batch in group]).tolist()
            valid: list[Any] = [None] * distributed.get_world_size()
            distributed.all_gather_object(valid, mine)
            steps.append(
                (valid, [each.grad.clone() for each in model.parameters() if each.grad is not None])
            )
    return steps


def main() -> None:
    """Train each scenario without a step of the optimiser."""
    out, corpora, scenarios = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    trained = [
        train(Scenario(**scenario), corpus)
        for corpus, scenario in zip(corpora, scenarios, strict=True)
    ]
    if distributed.get_rank() == 0:
        torch.save(trained, out)
    distributed.barrier()  # none ends while another still talks to it
    distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads may still run when C++ takes down what they use, and abort then


if __name__ == "__main__":
    main()
