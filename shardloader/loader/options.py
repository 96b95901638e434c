"""What may be asked of a loader: checked and frozen, each option as it is used.

Known here are the loader's own options and which of torch's DataLoader are passed on to it; those
that would decide what is read are refused, with what to use instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardloader.dataset.recipe import checked_meta
from shardloader.errors import UsageError
from shardloader.loader.device import checked_device
from shardloader.loader.stall import checked_stall
from shardloader.order.batching import Batching
from shardloader.order.integers import checked

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import torch

    from shardloader.dataset.recipe import Collate
    from shardloader.dataset.shard_dataset import ShardDataset

DEFAULT: Final = "default"

# Options of DataLoader that would decide what is read, with the values that decide nothing and
# what to use instead.
REFUSED: Final = {
    "sampler": ((None,), "the dataset's order is the sampler: use ShardDataset(shuffle=, seed=)"),
    "batch_sampler": ((None,), "use batch_size= and ShardDataset(shuffle=, seed=)"),
    "shuffle": ((None, False), "use ShardDataset(shuffle=Shuffle(window=...))"),
    "drop_last": ((None, False), 'use ShardDataset(even="drop")'),
    "in_order": ((None, True), "the order is what a checkpoint resumes: leave it out"),
    "snapshot_every_n_steps": ((None, 1), "the state counts every batch, at no cost: leave it out"),
}
# Options that are DataLoader's own affair.
PASSED_ON: Final = (
    "pin_memory",
    "pin_memory_device",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoaderOptions:
    """What was asked for. See `ShardLoader` for the meanings.

    batch_size: "default" where it was left out, and None afterwards where it follows from
    global_batch; named: what `device` names, not yet looked for; passed_on: what DataLoader gets,
    made of all that is no option of ours. Raises UsageError for options that make no sense, alone,
    together or for this dataset.
    """

    source: ShardDataset
    batch_size: int | str | None
    num_workers: int
    collate_fn: Collate | None
    meta: str
    accumulate: int | None
    global_batch: int | None
    agreement_timeout: float
    decode_threads: int | None
    quarantine: str | os.PathLike[str] | None
    device: str | torch.device | None
    device_prefetch: int
    stall_s: float | None
    passed_on: Mapping[str, Any]

    def __post_init__(self) -> None:
        self._take("batch_size", self._own_batch_size())
        batching = self.batching
        for name in ("batch_size", "accumulate", "global_batch"):
            self._take(name, getattr(batching, name))
        self._take("num_workers", checked("num_workers", self.num_workers, least=0, below=2**16))
        if self.decode_threads is not None:
            threads = checked("decode_threads", self.decode_threads, least=0, below=2**10)
            self._take("decode_threads", threads)
        ahead = checked("device_prefetch", self.device_prefetch, least=1, below=2**10)
        self._take("device_prefetch", ahead)
        self._take("stall_s", checked_stall(self.stall_s))
        self._take("agreement_timeout", float(self.agreement_timeout))
        self._take("passed_on", _passed_on(self.passed_on))
        checked_meta(self.meta)
        _check_pins(self.named, self.passed_on)
        _check_quarantine(self.source, self.quarantine)
        _check_reseeds(self.source, self.num_workers)

    def _take(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _own_batch_size(self) -> Any:
        """The size that was asked for; None where global_batch= says it. Refuses torch's None."""
        if self.batch_size == DEFAULT:
            return 1 if self.global_batch is None else None
        if self.batch_size is None and self.global_batch is None:
            raise UsageError(
                "batch_size=None means samples without batches, as in torch's DataLoader, and a "
                "ShardLoader gives batches: give a number, or, for samples one by one, iterate the "
                "ShardDataset itself or StatefulDataLoader(dataset, batch_size=None)"
            )
        return self.batch_size

    @property
    def batching(self) -> Batching:
        """What was asked of batches, of which some may be left to the topology."""
        return Batching(
            batch_size=self.batch_size,  # type: ignore[arg-type]  # which checks it
            accumulate=self.accumulate,
            global_batch=self.global_batch,
        )

    @property
    def named(self) -> torch.device | None:
        """The device that is named."""
        return checked_device(self.device)

    @property
    def for_trainers(self) -> dict[str, Any]:
        """What a loader is built anew with, by those who look at its attributes."""
        names = ("batch_size", "accumulate", "global_batch", "quarantine", "device")
        return {name: getattr(self, name) for name in (*names, "device_prefetch", "stall_s")}


def _check_pins(device: torch.device | None, options: Mapping[str, Any]) -> None:
    """Raise UsageError for options of DataLoader that contradict device=."""
    if device is None or device.type == "cpu":
        return
    if options.get("pin_memory", True) is not True:
        raise UsageError(
            f"device='{device}' copies from pinned memory, and pin_memory="
            f"{options['pin_memory']!r} was given: leave pin_memory= out, or leave out device= and "
            "move the batches yourself"
        )
    if options.get("pin_memory_device"):
        raise UsageError(
            f"device='{device}' says for which device memory is pinned: leave out pin_memory_device"
        )


def _check_reseeds(source: ShardDataset, num_workers: int) -> None:
    """Raise UsageError if reseed=True would seed the training loop's own generators."""
    if source.options.reseed and num_workers == 0:
        raise UsageError(
            "reseed=True seeds the global generators, which in the main process belong to the "
            "training loop: use num_workers >= 1, or a transform that takes rng"
        )


def _check_quarantine(source: ShardDataset, quarantine: Any) -> None:
    """Raise UsageError for a quarantine into which nothing would come."""
    if quarantine is not None and source.options.skip is None:
        raise UsageError(
            "quarantine= lists the bad samples that are skipped, and this dataset stops at the "
            'first: give ShardDataset on_error="skip", or leave it out'
        )
    if quarantine is not None and Path(quarantine).exists() and not Path(quarantine).is_dir():
        raise UsageError(f"quarantine= is a folder, made when needed, and {quarantine} is a file")


def _passed_on(options: Mapping[str, Any]) -> dict[str, Any]:
    """What to pass on to DataLoader; raises UsageError for what can't be taken."""
    passed_on = {}
    for name, value in options.items():
        if name in PASSED_ON:
            passed_on[name] = value
        elif name in REFUSED:
            accepted, instead = REFUSED[name]
            if not any(value is each for each in accepted):
                raise UsageError(f"ShardLoader does not take {name}={value!r}: {instead}")
        else:
            raise UsageError(
                f"ShardLoader has no option {name}=: its own are dataset, batch_size, "
                "num_workers, collate_fn, meta, accumulate, global_batch, agreement_timeout, "
                "decode_threads, quarantine, device, device_prefetch and stall_s, "
                f"and of DataLoader's {', '.join(PASSED_ON)}"
            )
    return passed_on
