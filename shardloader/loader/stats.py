"""What did the training loop receive on this rank, by kind?

Counted when a batch is handed over, from the plan and the faults that travelled with it: batches
that workers hold count nothing. What reading took is counted elsewhere, by whoever reads. It lives
as long as the loader, and is no part of its state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from shardloader.dataset.skipping import BAD_KINDS, REFUSED, Watch
from shardloader.loader.meter import Feed, Meter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardloader.dataset.skipping import Fault, Skip
    from shardloader.format.manifest import Manifest
    from shardloader.loader.making import Making
    from shardloader.loader.quarantine import Quarantine
    from shardloader.order.schedule import Schedule
    from shardloader.reading.counts import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counts of what this rank's loop received, since the loader was made.

    batches; slots: places in them, of which each is one of the next four: valid; padded: filled
    up at an epoch's end; refused: the transform returned None; bad: skipped, by kind: "decode",
    "field", "transform", "shard". damaged_shards: shards of the dataset that were damaged when
    they were indexed, by kind of damage (words of `shardloader.format.notices.ERROR_KINDS` and
    "unreadable"): what lies behind the damage is in no count.
    feed: how the loop was fed, a `Feed`. reading: what reading took in all processes of this rank
    since the loader was made, also for batches that nobody received, and what opening the dataset
    asked of its store: `shardloader.reading.counts.Counts`. These two do not matter to whether two
    values are equal.
    """

    batches: int
    slots: int
    valid: int
    padded: int
    refused: int
    bad: Mapping[str, int]
    damaged_shards: Mapping[str, int]
    feed: Feed = field(compare=False)
    reading: Counts = field(compare=False)

    @property
    def num_bad(self) -> int:
        """Bad samples of all kinds."""
        return sum(self.bad.values())

    def to_dict(self) -> dict[str, float]:
        """The same as one mapping of numbers, for a log: "bad_decode", "wait_p99_s"."""
        plain = ("batches", "slots", "valid", "padded", "refused")
        return {
            **{name: getattr(self, name) for name in plain},
            **{f"bad_{kind}": count for kind, count in self.bad.items()},
            **{f"damaged_shards_{kind}": count for kind, count in self.damaged_shards.items()},
            **self.feed.to_dict(),
            **self.reading._asdict(),
        }


@dataclass(slots=True, kw_only=True, eq=False)
class _Counts:
    batches: int = 0
    slots: int = 0
    planned: int = 0  # valid by the plan
    refused: int = 0
    bad: Counter[str] = field(default_factory=Counter)


class Leg:
    """What one iterator received: `given` batches of a schedule, from its first step on.

    Counting them is one addition a batch; what they held follows from the plan.
    """

    __slots__ = ("_counted", "_rank", "_schedule", "given")

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self.given = 0
        self._counted = 0
        self._schedule = schedule
        self._rank = rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._schedule.dealing.world_size

    @property
    def rank(self) -> int:
        """The rank that received them."""
        return self._rank

    def settle(self, counts: _Counts) -> None:
        """Add to `counts` what was planned for the batches given since the last call."""
        dealing, first, stop = self._schedule.dealing, self._counted, self.given
        num_full = max(0, min(stop, dealing.num_full) - first)
        counts.batches += stop - first
        counts.slots += num_full * dealing.batch_size
        counts.planned += num_full * dealing.batch_size
        if stop > max(first, dealing.num_full):  # the last step, which may be short or padded
            slots = dealing.slots(np.array([stop - 1], dtype=np.int64), self._rank)
            size = int(slots.size[0])
            counts.slots += size
            counts.planned += int(np.count_nonzero(slots.valid[0, :size]))
        self._counted = stop


class Account:
    """Keeps the counts of one loader, and writes bad samples into its quarantine, if it has one.

    meter: where the iterators measure their waits; making: what is being made for the last one.
    """

    def __init__(self, skip: Skip | None, quarantine: Quarantine | None) -> None:
        self.meter = Meter()
        self.making: Making | None = None
        self._skip = skip
        self._quarantine = quarantine
        self._counts = _Counts()
        self._leg: Leg | None = None
        self._watch: Watch | None = None
        self._watched = 0  # planned samples that the watch knows of

    def begin(self, schedule: Schedule, rank: int) -> Leg:
        """The leg of an iterator that starts; those before it give nothing more."""
        self._settle()
        self._leg = Leg(schedule, rank)
        return self._leg

    @property
    def is_waiting(self) -> bool:
        """Whether batches without a fault have to be taken as well, since bad ones came before."""
        return self._watch is not None and self._watch.is_waiting

    def take(self, leg: Leg, faults: Sequence[Fault], *, epoch: int, manifest: Manifest) -> None:
        """Count the faults of the batch that the leg was given last.

        Raises DataError where too much is bad, WorldError if the quarantine can't be written.
        """
        self._settle()
        counts = self._counts
        for fault in faults:
            if fault.kind == REFUSED:
                counts.refused += 1
            else:
                counts.bad[fault.kind] += 1
        if self._skip is None:
            return
        if self._quarantine is not None:
            self._quarantine.take(
                faults,
                epoch=epoch,
                rank=leg.rank,
                world_size=leg.world_size,
                names=manifest.names,
            )
        if self._watch is None:
            self._watch = Watch(self._skip, manifest.names)
        new, self._watched = counts.planned - self._watched, counts.planned
        self._watch.take(new, faults)

    def _settle(self) -> None:
        if self._leg is not None:
            self._leg.settle(self._counts)

    def stats(self, manifest: Manifest, reading: Counts) -> Stats:
        """The counts now; reading: of all processes of this rank."""
        self._settle()
        counts = self._counts
        num_bad = counts.bad.total()
        damaged = Counter(damage.kind for _, damage in manifest.damage)
        return Stats(
            batches=counts.batches,
            slots=counts.slots,
            valid=counts.planned - counts.refused - num_bad,
            padded=counts.slots - counts.planned,
            refused=counts.refused,
            bad=MappingProxyType({kind: counts.bad[kind] for kind in BAD_KINDS}),
            damaged_shards=MappingProxyType(dict(damaged)),
            feed=self.meter.feed(
                samples=counts.slots, field_bytes=reading.field_bytes, num_ready=self._num_ready()
            ),
            reading=reading,
        )

    def _num_ready(self) -> int:
        given = 0 if self._leg is None else self._leg.given
        return 0 if self.making is None else max(0, self.making.num_made() - given)
