"""A callback for Hugging Face's Trainer that logs how the training loop was fed.

    from shardloader.integrations.transformers import FeedLogger
    trainer.add_callback(FeedLogger(trainer))

Each `logging_steps` the trainer logs `feed/wait_share`, `feed/wait_p99_s`, `feed/samples_per_s` and
so on, of the batches since the last time, as it logs the loss: to `state.log_history` and to all
of `report_to`. See docs/feeding.md. They are those of this rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardloader.integrations.feed_log import FeedLines, missing, the_loader_in

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise missing("Hugging Face's Trainer", "'transformers[torch]'", error) from error

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

    from shardloader.loader.loader import ShardLoader


class FeedLogger(TrainerCallback):
    """Logs how a ShardLoader feeds.

    trainer: which logs; loader: by default the one that it trains on. Raises UsageError when
    training starts, if that is no ShardLoader.
    """

    def __init__(self, trainer: Trainer, loader: ShardLoader | None = None) -> None:
        self._trainer = trainer
        self._loader = loader
        self._lines: FeedLines | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,  # noqa: ARG002
        train_dataloader: Any = None,
        **_: Any,
    ) -> None:
        """Find the loader."""
        self._lines = FeedLines(self._loader or the_loader_in(train_dataloader))

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """Log, where the trainer does."""
        if self._lines is None or not control.should_log:
            return
        line = self._lines.next()
        if line:
            self._trainer.log(line)
