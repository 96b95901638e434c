"""What else Lightning does to loaders, each way in a Trainer of its own on every rank.

torchrun ... lightning_ways.py CORPUS OUT OPTIONS
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import ModelCheckpoint

import shardloader as sl
from tests.trainers.lightning_train import Bare, Model, Watched, a_trainer
from tests.trainers.task import arguments, tell

if TYPE_CHECKING:
    from pathlib import Path


def fitted(out: Path, log: str | None, corpus: str, **options: Any) -> dict[str, Any]:
    """Train on two ranks; what became of the loader."""
    data = Watched(corpus, 2, 0)
    data.log_to = None if log is None else out / log
    model = Model()
    trainer = a_trainer(out, devices=2, strategy="ddp", enable_checkpointing=False, **options)
    trainer.fit(model, datamodule=data)
    return {
        "untouched": trainer.train_dataloader is data.loader,
        "epoch": data.loader.epoch,
        "validated": model.validated,
        "steps": trainer.global_step,
    }


def resumed_by_lightning(out: Path, log: str, corpus: str, **saves: Any) -> list[str]:
    """Train in steps with loaders whose states Lightning keeps, and again from a checkpoint.

    Gives what shardloader said in the second run, which goes from step 11 or `at` to step 13.
    """
    at = saves.pop("at", 11)
    kept = out / f"{log}-kept"
    for steps, resume in ((11, None), (13, kept / f"step={at}.ckpt")):
        data = Bare(corpus, 2, 0)
        data.log_to = out / log
        keep = ModelCheckpoint(dirpath=kept, filename="{step}", save_top_k=-1, **saves)
        trainer = a_trainer(
            out, devices=2, strategy="ddp", callbacks=[keep], max_steps=steps, limit_val_batches=0
        )
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record, said=said: said.append(record.getMessage())  # type: ignore[method-assign, misc]
        logging.getLogger("shardloader").addHandler(handler)
        trainer.fit(Model(), datamodule=data, ckpt_path=resume)
        logging.getLogger("shardloader").removeHandler(handler)
    return said


def main() -> None:
    """Each way in turn."""
    corpus, out, _ = arguments()
    told = {
        # validation in the middle of an epoch, after a sanity check
        "validation": fitted(out, "validation", corpus, max_epochs=2, val_check_interval=4),
        # the loader asked for again before each epoch
        "reload": fitted(
            out,
            "reload",
            corpus,
            max_epochs=2,
            reload_dataloaders_every_n_epochs=1,
            limit_val_batches=0,
        ),
        # epochs broken off
        "limit": fitted(
            out, "limit", corpus, max_epochs=2, limit_train_batches=3, limit_val_batches=0
        ),
        # the loader built anew, without its class's knowledge
        "overfit": fitted(out, None, corpus, max_epochs=2, overfit_batches=3),
    }
    told["each step"] = {
        "said": resumed_by_lightning(out, "each-step", corpus, every_n_train_steps=1, at=5)
    }
    told["epoch's end"] = {
        "said": resumed_by_lightning(out, "epochs-end", corpus, save_on_train_epoch_end=True)
    }
    trainer = a_trainer(out, devices=2, strategy="ddp")
    loader = sl.ShardLoader(sl.ShardDataset(corpus, shuffle=False), batch_size=2)
    told["predict"] = {"given": trainer.predict(Model(), dataloaders=loader)}
    tell(out, f"rank-{trainer.global_rank}", told)


if __name__ == "__main__":
    main()
