"""Training with Hugging Face's Trainer, as docs/trainers.md has it.

torchrun ... hf_train.py CORPUS OUT OPTIONS
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import PartialState

import shardloader as sl
from tests.trainers.task import a_model, arguments, die_if, losses, tell


class Trainer(transformers.Trainer):
    loss_is_scaled_for_ga = True

    def __init__(self, *args: Any, loader: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.loader = loader
        self.add_callback(KeepLoader(loader))

    def get_train_dataloader(self) -> Any:
        return self.loader

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        return (losses(model, inputs) * inputs["__valid__"]).sum() * sl.loss_scale(inputs)


class KeepLoader(transformers.TrainerCallback):
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if state.is_world_process_zero:
            (folder / "loader.json").write_text(json.dumps(self.loader.state_dict()))


class Deadly(transformers.TrainerCallback):
    """The end of rank 1 in the update of this number, which the others can't end without it."""

    def __init__(self, die_at: int | None) -> None:
        self.die_at = die_at

    def on_step_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        die_if(state.global_step + 1 == self.die_at and args.process_index == 1)


def train(out: str, loader: Any, model: Any, die_at: int | None, **options: Any) -> Any:
    """Train from the last checkpoint, if there is one."""
    args = transformers.TrainingArguments(
        out, ignore_data_skip=True, save_steps=1, use_cpu=True, report_to="none", **options
    )
    trainer = Trainer(model, args, loader=loader)
    trainer.add_callback(Deadly(die_at))  # for the test
    loader.log_samples(Path(out).parent / "log")  # for the test
    # The loader's state is written last: a checkpoint that has it is whole.
    kept = [path.parent for path in Path(out).glob("checkpoint-*/loader.json")]
    last = max(kept, key=lambda folder: int(folder.name.split("-")[1]), default=None)
    if last is not None:
        loader.load_state_dict(json.loads((last / "loader.json").read_text()))
    trainer.train(resume_from_checkpoint=None if last is None else str(last))
    return trainer


def said(kind: Any, out: Path, resume: str | None = None, **more: Any) -> str:
    """What is said where a Trainer is given data in another way."""
    args = transformers.TrainingArguments(
        str(out / "refused"), max_steps=3, save_strategy="no", use_cpu=True, report_to="none"
    )
    try:
        kind(a_model(), args, **more).train(resume_from_checkpoint=resume)
    except sl.UsageError as error:
        return str(error)
    return ""


def lists(samples: list[Any]) -> dict[str, Any]:
    """A batch of a loader that Trainer builds."""
    return {"cls": torch.tensor([sample["cls"] for sample in samples])}


def main() -> None:
    """OPTIONS: name, batch_size, num_workers, die_at, length (Trainer's), ways."""
    corpus, out, options = arguments()
    told: dict[str, Any] = {}
    options = {"batch_size": 2, "num_workers": 0, "ways": [], **options}
    rank = PartialState(cpu=True).process_index
    if "dataset" in options["ways"]:
        told["dataset"] = said(
            transformers.Trainer,
            out,
            train_dataset=sl.ShardDataset(corpus),
            data_collator=lists,
        )
    if "skip" in options["ways"]:
        loader = sl.ShardLoader(sl.ShardDataset(corpus), batch_size=4)
        told["skip"] = said(Trainer, out, str(out / "kept" / "checkpoint-6"), loader=loader)
    tell(out, f"{options['name']}-{rank}-ways", told)
    loader = sl.ShardLoader(
        sl.ShardDataset(corpus),
        batch_size=options["batch_size"],
        num_workers=options["num_workers"],
    )
    trainer = train(
        str(out / "kept"), loader, a_model(), options.get("die_at"), **options["length"]
    )
    result = {"steps": trainer.state.global_step, "state": loader.state_dict()}
    tell(out, f"{options['name']}-{rank}", result)


if __name__ == "__main__":
    main()
