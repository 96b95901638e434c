"""Training with Ray Train, as docs/trainers.md has it.

python ray_train.py CORPUS OUT OPTIONS
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model

import shardloader as sl
from tests.trainers.task import a_model, arguments, die_if, losses, tell


def train_loop(options: dict[str, Any]) -> None:
    loader = sl.ShardLoader(sl.ShardDataset(options["corpus"]), batch_size=2)
    loader.log_samples(options["log"])  # for the test
    model = prepare_model(a_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
    for _epoch in range(loader.epoch, 2):
        for batch in loader:
            die_once(loader, **options)  # for the test
            loss = (losses(model, batch) * batch["__valid__"]).sum() * sl.loss_scale(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if loader.step % 4 == 0:  # 0 at the epoch's end
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                }
                report({"epoch": loader.epoch}, state)
    tell_how_far_ahead(**options)  # for the test


def report(metrics: dict[str, Any], state: dict[str, Any]) -> None:
    """All ranks report, and the first one's state is everyone's."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if train.get_context().get_world_rank() == 0:
            torch.save(state, Path(folder, "state.pt"))
            checkpoint = train.Checkpoint.from_directory(folder)
        train.report(metrics, checkpoint=checkpoint)


def tell_how_far_ahead(*, corpus: str, out: str, **_: Any) -> None:
    """Batches that a loader's state counts when Ray's own wrapper has given one."""
    loader = sl.ShardLoader(sl.ShardDataset(corpus), batch_size=2)
    next(iter(prepare_data_loader(loader)))
    if loader.topology.rank == 0:
        tell(Path(out), "ahead", loader.step)


def die_once(loader: Any, *, die_at: int, out: str, **_: Any) -> None:
    """The end of a worker, in the first launch."""
    is_time = loader.topology.rank == 1 and loader.step == die_at
    is_time = is_time and not Path(out, "died.json").exists()
    if is_time:
        tell(Path(out), "died", loader.step)
    die_if(is_time)


def main() -> None:
    """OPTIONS: die_at, a step of the first epoch."""
    corpus, out, options = arguments()
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
    tell(out, "ray", ray.__version__)
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"corpus": corpus, "out": str(out), "log": str(out / "log"), **options},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            storage_path=str(out / "kept"),
            failure_config=train.FailureConfig(max_failures=1),
            checkpoint_config=train.CheckpointConfig(num_to_keep=2),
        ),
    )
    result = trainer.fit()
    tell(out, "result", result.metrics)
    ray.shutdown()


if __name__ == "__main__":
    main()
