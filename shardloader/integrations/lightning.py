"""A callback for Lightning that logs how the training loop was fed.

    from shardloader.integrations.lightning import FeedLogger
    trainer = Trainer(callbacks=[FeedLogger()])

Every `log_every_n_steps` batches the trainer's loggers get `feed/wait_share`, `feed/wait_p99_s`,
`feed/samples_per_s` and so on, of the batches since the last time; see docs/feeding.md. They are
those of rank 0, whose logger it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardloader.integrations.feed_log import FeedLines, missing, the_loader_in

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise missing("Lightning", "lightning", error) from error

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from shardloader.loader.loader import ShardLoader


class FeedLogger(Callback):
    """Logs how a ShardLoader feeds.

    loader: by default the one that the trainer trains on. Raises UsageError when training starts,
    if there is not exactly one.
    """

    def __init__(self, loader: ShardLoader | None = None) -> None:
        super().__init__()
        self._loader = loader
        self._lines: FeedLines | None = None
        self._num_batches = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Find the loader."""
        found = self._loader or the_loader_in(trainer.train_dataloader)
        self._lines = FeedLines(found)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Log, as often as the trainer does."""
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by its connector
        self._num_batches += 1
        if self._lines is None or not every or self._num_batches % every:
            return
        line = self._lines.next()
        for logger in trainer.loggers if line else ():
            logger.log_metrics(line, step=trainer.global_step)
