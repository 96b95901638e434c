"""Training with Accelerate, as docs/trainers.md has it.

torchrun ... accelerate_train.py CORPUS OUT OPTIONS
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, skip_first_batches

import shardloader as sl
from tests.trainers.task import a_model, arguments, die_if, losses, tell

if TYPE_CHECKING:
    from pathlib import Path


def steps(corpus: str, kept: Path, resume: int | None, **options: int) -> Any:
    """Train two epochs from checkpoint `resume`, giving what stands after each step."""
    batch_size, num_workers = options["batch_size"], options["num_workers"]
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    dataset = sl.ShardDataset(corpus)
    loader = sl.ShardLoader(dataset, batch_size=batch_size, num_workers=num_workers, accumulate=2)
    model: Any = a_model()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    loader.log_samples(kept.parent / "log")  # for the test
    if resume is not None:
        accelerator.load_state(kept / str(resume))
    updates = resume or 0
    for _epoch in range(loader.epoch, 2):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = (losses(model, batch) * batch["__valid__"]).sum() * sl.loss_scale(batch)
                accelerator.backward(loss * accelerator.gradient_accumulation_steps)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                updates += 1
                accelerator.save_state(kept / str(updates))
                accelerator.wait_for_everyone()  # all of it is there
            yield accelerator, loader  # for the test


def main() -> None:
    """OPTIONS: batch_size, num_workers, resume, die_at (a step of this launch), name, skips."""
    corpus, out, options = arguments()
    die_at, name = options.get("die_at"), options["name"]
    synced = []
    options = {"batch_size": 2, "num_workers": 0, "resume": None, **options}
    sizes = {key: options[key] for key in ("batch_size", "num_workers", "resume")}
    loop = steps(corpus, out / "kept", **sizes)
    for step, (accelerator, loader) in enumerate(loop, start=1):  # noqa: B007 - used below
        synced.append(accelerator.sync_gradients)
        # A checkpoint is made with the even steps, so that what comes after it is rolled back.
        die_if(step == die_at and accelerator.process_index == 1)
    told: dict[str, Any] = {"synced": synced, "state": loader.state_dict()}
    if options.get("skips"):
        try:
            list(skip_first_batches(loader, 2))
        except sl.UsageError as error:
            told["skipped"] = str(error)
    tell(out, f"{name}-{accelerator.process_index}", told)
    accelerator.end_training()


if __name__ == "__main__":
    main()
