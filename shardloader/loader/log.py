"""What was received, written down: one file a rank, one append a step.

A line is one record of `planning.sample_log` and one unbuffered write, so that a killed rank leaves
whole lines.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardloader.dataset.skipping import REFUSED
from shardloader.distributed.rendezvous import MEETING_TIMEOUT_S, can_meet, meet
from shardloader.errors import UsageError, WorldError
from shardloader.order.integers import checked
from shardloader.planning.sample_log import (
    change_record,
    encoded,
    file_name,
    skip_record,
    step_record,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardloader.dataset.batches import Row
    from shardloader.dataset.skipping import Fault
    from shardloader.order.topology import Topology
    from shardloader.planning.sample_log import Start

log = logging.getLogger("shardloader")


def launch_number(topology: Topology, given: int | None) -> int:
    """A number that is the same on all ranks of a launch, and grows with every launch.

    The given one, or rank 0's clock in nanoseconds. Raises UsageError where ranks can't agree,
    AgreementError where not all of them ask.
    """
    if given is not None:
        return checked("log_samples(attempt=)", given, least=0)
    now = time.time_ns()
    if topology.world_size == 1:
        return now
    if not can_meet(topology):
        raise UsageError(
            "the ranks of one launch log under one number, which they agree on through "
            f"torch.distributed; it is not initialised, and world_size is {topology.world_size}: "
            "give log_samples(..., attempt=) a number that grows with each launch"
        )
    stands = meet(
        topology, now, lambda _: None, timeout_s=MEETING_TIMEOUT_S, subject="log_samples()"
    )
    return int(stands[0])


class SampleLog:
    """Appends one rank's lines to its own file in a folder."""

    def __init__(self, folder: str | os.PathLike[str], topology: Topology, launch: int) -> None:
        self._launch = launch
        self._loads = 0
        self._rolled_back = False
        self._started: int | None = None
        self._about: Start | None = None  # what was said last
        name = file_name(rank=topology.rank, world_size=topology.world_size, launch=launch)
        self.path = Path(folder) / name
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WorldError(f"can't make the folder of the samples' log: {error}") from error
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
            self._file = os.open(self.path, flags, 0o644)
        except FileExistsError:
            # Replicas of a rank (tensor or pipeline parallelism) read the same: one writes it down.
            self._file = -1
            log.warning(
                "%s exists: a replica of this rank logs there, or attempt=%d was used before; this "
                "process logs nothing",
                self.path,
                launch,
            )
        except OSError as error:
            raise WorldError(f"can't write the samples' log {self.path}: {error}") from error

    def rolled_back(self) -> None:
        """A state was loaded: what follows is another attempt."""
        self._rolled_back = True

    def start(self, about: Start) -> None:
        """Say where this attempt starts, once an attempt; later only what is another.

        That is the grid, or the dataset, which had grown since the epoch began that was ended.
        """
        # Counted here, since all ranks start equally often, but may load one state twice.
        self._loads += self._rolled_back
        self._rolled_back = False
        if self._started != self._loads:
            self._started = self._loads
            self._append(replace(about, attempt=(self._launch, self._loads)).to_record())
        elif self._about is not None and _changes(self._about, about):
            self._append(change_record(about, dataset=self._about.dataset))
        self._about = about

    def step(self, *, epoch: int, consumed: int, row: Row, faults: Sequence[Fault] = ()) -> None:
        """Write down one received batch, as it was planned, and which of its slots had faults."""
        self._append(
            step_record(
                epoch=epoch,
                consumed=consumed,
                index=row.index,
                valid=row.valid,
                passes=row.passes,
                bad=[fault.at for fault in faults if fault.kind != REFUSED],
                refused=[fault.at for fault in faults if fault.kind == REFUSED],
            )
        )

    def skip(self, *, epoch: int, consumed: int, count: int) -> None:
        """Write down that training leaves positions out on purpose."""
        self._append(skip_record(epoch=epoch, consumed=consumed, count=count))

    def _append(self, record: dict[str, Any]) -> None:
        if self._file < 0:
            return
        data = encoded(record)
        try:
            written = os.write(self._file, data)
        except OSError as error:
            raise WorldError(f"can't write the samples' log {self.path}: {error}") from error
        if written < len(data):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)  # no half a line
            raise WorldError(f"the disk of the samples' log {self.path} is full")

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            self.close()


def _changes(said: Start, about: Start) -> bool:
    return (said.grid, said.dataset) != (about.grid, about.dataset)
