"""Training with Lightning, as docs/trainers.md has it, by its own launcher.

python lightning_train.py CORPUS OUT OPTIONS
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import shardloader as sl
from tests.trainers.task import a_model, arguments, die_if, losses

if TYPE_CHECKING:
    from pathlib import Path


class Data(lightning.LightningDataModule):
    def __init__(self, corpus: str, batch_size: int, num_workers: int) -> None:
        super().__init__()
        dataset = sl.ShardDataset(corpus)
        self.loader = sl.ShardLoader(dataset, batch_size=batch_size, num_workers=num_workers)
        self.held_out = sl.ShardDataset(corpus, shuffle=False)

    def train_dataloader(self) -> Any:
        return self.loader

    def val_dataloader(self) -> Any:
        return sl.ShardLoader(self.held_out, batch_size=2)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loader.load_state_dict(state_dict)


class Watched(Data):
    """The same, writing down what is read."""

    log_to: Path | None = None

    def train_dataloader(self) -> Any:
        if self.log_to is not None:
            self.loader.log_samples(self.log_to)
            self.log_to = None
        return super().train_dataloader()


class Bare(Watched):
    """A module that leaves all to Lightning, which keeps loaders' states itself."""

    state_dict = lightning.LightningDataModule.state_dict
    load_state_dict = lightning.LightningDataModule.load_state_dict


class Model(lightning.LightningModule):
    def __init__(self, die_at: int | None = None) -> None:
        super().__init__()
        self.inner = a_model()
        self.die_at = die_at
        self.validated = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        die_if(self.global_step + 1 == self.die_at and self.global_rank == 1)  # for the test
        return (losses(self.inner, batch) * batch["__valid__"]).sum() * sl.loss_scale(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated += int(batch["__valid__"].sum())

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return batch["__index__"][batch["__valid__"]].tolist()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def a_trainer(out: Path, **options: Any) -> Any:
    """Without what has nothing to do with data."""
    return lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=out,
        **options,
    )


def main() -> None:
    """Train two epochs; OPTIONS: devices, batch_size, num_workers, die_at, resume, tag."""
    corpus, out, options = arguments()
    data = Watched(corpus, options["batch_size"], options.get("num_workers", 0))
    data.log_to = out / "log"
    name = f"{options['tag']}-{{step}}"
    keep = ModelCheckpoint(
        dirpath=out / "kept", filename=name, save_top_k=-1, every_n_train_steps=1
    )
    trainer = a_trainer(
        out,
        devices=options["devices"],
        strategy="ddp" if options["devices"] > 1 else "auto",
        callbacks=[keep],
        max_epochs=2,
        val_check_interval=4,
    )
    resume = options.get("resume")
    trainer.fit(
        Model(options.get("die_at")),
        datamodule=data,
        ckpt_path=None if resume is None else out / "kept" / f"{resume}.ckpt",
    )


if __name__ == "__main__":
    main()
