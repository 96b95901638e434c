"""What does an audit find: counts by epoch, and faults?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardloader.order.audit import Tally

BITS_TO_COMPARE = 60  # two orders that could be any of 2**60 are alike by no chance

# What can be wrong with a history: of samples, and of what else a fault may count.
FAULTS: Final = {
    "missing": "never read",
    "repeated": "read as valid more than once",
    "unknown": "read that the dataset does not hold",
    "out_of_place": "not where the plan has them",
    "mask": "valid where the plan has a pad, or the other way round",
    "lost": "in no log, of steps that every rank has passed",
    "same_order": "read in the order of an earlier epoch",
    "no_log": "left no file in a launch whose other ranks did",
    "nothing": "no rank received a batch",
}


class Fault(NamedTuple):
    """One fault of one epoch; kind: a word of FAULTS.

    numbers: the samples' dataset numbers, int64; of "lost" how many they are; of "same_order" the
    earlier epoch; of "no_log" the ranks. launch: of "no_log". is_superseded: it lies in rows that
    were rolled back, so that the final model has not seen it.
    """

    kind: str
    epoch: int
    numbers: NDArray[np.int64]
    launch: int = 0
    is_superseded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochAudit:
    """What the history read in one epoch; with `steps_per_epoch`, in one pass over the data.

    tally: counts, of what the plan has as valid; bad, refused: the samples among these that were
    not given, int64, each as often as it was not: their slots held others, marked invalid; steps:
    steps received; may_lack: samples that need not be there, because
    training skipped them, even="drop" leaves them out, logging began behind them, or an endless
    order has yet to come to them; skipped: those that training skipped; lost: samples of steps
    that every rank has passed and not all ranks logged; out_of_place, mismarked: the samples of
    those faults, int64, empty where nothing was compared with a plan; order: a digest of the valid
    samples in the order of training, rank after rank within a step; order_bits: the number of
    orders that they could have had, as a power of two.
    """

    epoch: int
    tally: Tally
    bad: NDArray[np.int64]
    refused: NDArray[np.int64]
    steps: int
    may_lack: int
    skipped: int
    lost: int
    out_of_place: NDArray[np.int64]
    mismarked: NDArray[np.int64]
    order: bytes
    order_bits: float

    @property
    def num_given(self) -> int:
        """Samples that were given as valid."""
        return self.tally.samples - self.bad.size - self.refused.size

    @property
    def is_comparable(self) -> bool:
        """Whether another epoch in the same order would be no chance."""
        return self.order_bits >= BITS_TO_COMPARE

    def faults(self, *, unfinished: bool = False) -> Iterator[Fault]:
        """What is wrong; in an epoch that is `unfinished` any number may be missing yet."""
        tally = self.tally
        if tally.missing.size > self.may_lack and not unfinished:
            yield Fault("missing", self.epoch, tally.missing)
        elif self.lost:
            yield Fault("lost", self.epoch, np.array([self.lost]))
        for kind, numbers in (
            ("repeated", tally.repeated),
            ("unknown", tally.unknown),
            ("out_of_place", self.out_of_place),
            ("mask", self.mismarked),
        ):
            if numbers.size:
                yield Fault(kind, self.epoch, numbers)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """The audit of a run.

    attempts: launches and loads seen; superseded: batches that were rolled back; is_compared:
    whether every row was compared with the plan; may_be_empty: whether the data make no whole
    step, and "drop" leaves them out; epochs: in order, without a gap; run_faults: those of no
    epoch, or of rows that were rolled back. The last epoch may be one that training has not
    finished.
    """

    attempts: int
    superseded: int
    num_samples: int
    is_compared: bool
    counts_passes: bool
    may_be_empty: bool
    epochs: tuple[EpochAudit, ...]
    run_faults: tuple[Fault, ...]

    def faults(self, *, unfinished: bool = False) -> tuple[Fault, ...]:
        """What is wrong, epoch by epoch; `unfinished` if the last one is still being read."""
        found: list[Fault] = []
        for each in self.epochs:
            found += each.faults(unfinished=unfinished and each is self.epochs[-1])
        found += [
            Fault("same_order", second, np.array([first])) for first, second in self.repeated_orders
        ]
        found += self.run_faults
        if not self.epochs and not self.may_be_empty:
            found.append(Fault("nothing", 0, np.zeros(0, dtype=np.int64)))
        return tuple(found)

    @property
    def repeated_orders(self) -> tuple[tuple[int, int], ...]:
        """Pairs of epochs that read the same samples in the same order, by no chance."""
        seen: dict[bytes, int] = {}
        pairs = []
        for each in self.epochs:
            if each.is_comparable:
                first = seen.setdefault(each.order, each.epoch)
                if first != each.epoch:
                    pairs.append((first, each.epoch))
        return tuple(pairs)

    @property
    def is_exact(self) -> bool:
        """No fault: every sample once in every epoch, and where it was compared, in its place."""
        return not self.faults()
