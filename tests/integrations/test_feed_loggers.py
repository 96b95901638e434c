"""Trainers of other libraries log how they were fed, in their own logs, through their callbacks."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import shardloader as sl
from shardloader.integrations.feed_log import FeedLines, the_loader_in
from tests.corpora import kept_corpus, loader_of

COUNTS = (8, 8, 8)
NAMES = {
    "feed/wait_share",
    "feed/wait_p50_s",
    "feed/wait_p99_s",
    "feed/samples_per_s",
    "feed/bytes_per_s",
    "feed/ready",
    "feed/cache_misses",
    "feed/retries",
    "feed/bad",
}


def make(**options):
    options = {"batch_size": 2, "shuffle": False, "fields": ("cls",), **options}
    return loader_of(kept_corpus(COUNTS), **options)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, cls):
        return {"loss": (self.layer(cls.float()[:, None]) ** 2).mean()}


@pytest.mark.filterwarnings("ignore")  # of Lightning's own
def test_lightning_logs_how_it_was_fed(tmp_path):
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import CSVLogger

    from shardloader.integrations.lightning import FeedLogger

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(batch["cls"])["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    logger = CSVLogger(tmp_path)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=logger,
        callbacks=[FeedLogger()],
        log_every_n_steps=4,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), make())
    with Path(logger.log_dir, "metrics.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [int(line["step"]) for line in lines] == [4, 8, 12]
    assert all(line.keys() >= NAMES for line in lines)
    assert all(0 < float(line["feed/wait_share"]) <= 1 for line in lines)


@pytest.mark.filterwarnings("ignore")  # of transformers' own
def test_hugging_faces_trainer_logs_how_it_was_fed(tmp_path):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from shardloader.integrations.transformers import FeedLogger

    reported = []

    class Reporter(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            reported.append(logs)

    class Fed(Trainer):
        def get_train_dataloader(self) -> Any:
            return make(meta="none")

    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=8,
        logging_steps=4,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Fed(model=Model(), args=arguments, callbacks=[Reporter()])
    trainer.add_callback(FeedLogger(trainer))
    trainer.train()
    for lines in (reported, trainer.state.log_history):
        found = [line for line in lines if "feed/wait_share" in line]
        assert len(found) == 2
        assert all(line.keys() >= NAMES for line in found)
    steps = [line["step"] for line in trainer.state.log_history if "feed/ready" in line]
    assert steps == [4, 8]


def test_a_line_is_of_the_batches_since_the_last_one():
    loader = make()
    lines = FeedLines(loader)
    assert lines.next() == {}
    list(loader)
    first = lines.next()
    assert first.keys() >= NAMES
    assert lines.next() == {}


def test_the_loader_is_found_in_what_trainers_train_on():
    loader = make()
    assert the_loader_in([{"a": loader}]) is loader
    for none_or_two in (None, [loader, make()]):
        with pytest.raises(sl.UsageError, match=r"FeedLogger\(loader=\)"):
            the_loader_in(none_or_two)


@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_a_library_that_is_missing_is_named_with_how_to_install_it(library):
    code = f"""
import sys
sys.modules[{library!r}] = None
import shardloader
try:
    import shardloader.integrations.{library}
except shardloader.MissingExtraError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert "pip install" in done.stdout
    assert library in done.stdout
