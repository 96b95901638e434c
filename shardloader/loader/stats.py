"""What did the training loop receive on this rank, by kind?

Counted when a batch is handed over, from what travelled with it: batches that workers hold count
nothing. It lives as long as the loader, and is no part of its state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from shardloader.dataset.skipping import BAD_KINDS, REFUSED, Watch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardloader.dataset.skipping import Fault, Skip
    from shardloader.format.manifest import Manifest
    from shardloader.loader.quarantine import Quarantine
    from shardloader.order.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counts of what this rank's loop received, since the loader was made.

    batches; slots: places in them, of which each is one of the next four: valid; padded: filled
    up at an epoch's end; refused: the transform returned None; bad: skipped, by kind: "decode",
    "field", "transform", "shard". damaged_shards: shards of the dataset that were damaged when
    they were indexed, by kind of damage (words of `shardloader.format.notices.ERROR_KINDS` and
    "unreadable"): what lies behind the damage is in no count.
    """

    batches: int
    slots: int
    valid: int
    padded: int
    refused: int
    bad: Mapping[str, int]
    damaged_shards: Mapping[str, int]

    @property
    def num_bad(self) -> int:
        """Bad samples of all kinds."""
        return sum(self.bad.values())

    def to_dict(self) -> dict[str, int]:
        """The same as one mapping of ints, for a log: "bad_decode", "damaged_shards_truncated"."""
        plain = ("batches", "slots", "valid", "padded", "refused")
        return {
            **{name: getattr(self, name) for name in plain},
            **{f"bad_{kind}": count for kind, count in self.bad.items()},
            **{f"damaged_shards_{kind}": count for kind, count in self.damaged_shards.items()},
        }


@dataclass(slots=True, kw_only=True, eq=False)
class _Counts:
    batches: int = 0
    slots: int = 0
    valid: int = 0
    padded: int = 0
    refused: int = 0
    bad: Counter[str] = field(default_factory=Counter)


class Account:
    """Keeps the counts of one loader, and writes bad samples into its quarantine, if it has one."""

    def __init__(self, skip: Skip | None, quarantine: Quarantine | None) -> None:
        self._skip = skip
        self._quarantine = quarantine
        self._counts = _Counts()
        self._watch: Watch | None = None

    def receive(
        self,
        *,
        schedule: Schedule,
        rank: int,
        step: int,
        epoch: int,
        manifest: Manifest,
        faults: tuple[Fault, ...],
    ) -> None:
        """Count the batch of `step` of a schedule; raises DataError where too much is bad.

        WorldError if the quarantine can't be written.
        """
        slots, planned = _planned(schedule, rank, step)
        counts = self._counts
        counts.batches += 1
        counts.slots += slots
        counts.padded += slots - planned
        counts.valid += planned - len(faults)
        for fault in faults:
            if fault.kind == REFUSED:
                counts.refused += 1
            else:
                counts.bad[fault.kind] += 1
        if self._skip is None:
            return
        if faults and self._quarantine is not None:
            self._quarantine.take(
                faults,
                epoch=epoch,
                rank=rank,
                world_size=schedule.dealing.world_size,
                names=manifest.names,
            )
        if self._watch is None:
            self._watch = Watch(self._skip, manifest.names)
        self._watch.take(planned, faults)

    def stats(self, manifest: Manifest) -> Stats:
        """The counts now."""
        counts = self._counts
        damaged = Counter(damage.kind for _, damage in manifest.damage)
        return Stats(
            batches=counts.batches,
            slots=counts.slots,
            valid=counts.valid,
            padded=counts.padded,
            refused=counts.refused,
            bad=MappingProxyType({kind: counts.bad[kind] for kind in BAD_KINDS}),
            damaged_shards=MappingProxyType(dict(damaged)),
        )


def _planned(schedule: Schedule, rank: int, step: int) -> tuple[int, int]:
    """The slots of a rank's batch at a step, and how many of them are valid by the plan."""
    dealing = schedule.dealing
    if step < dealing.num_full:
        return dealing.batch_size, dealing.batch_size
    slots = dealing.slots(np.array([step], dtype=np.int64), rank)
    size = int(slots.size[0])
    return size, int(np.count_nonzero(slots.valid[0, :size]))
