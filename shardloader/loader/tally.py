"""What did reading take, in all processes of one loader?

Each worker has a row of its own in shared memory, which it adds to when something happens: nothing
travels with batches, so that the counts are there also for batches that nobody received, and when
a worker has ended.
"""

from __future__ import annotations

import torch

from shardloader.reading.counts import NUM_COUNTS, CountRow, Counts


class Tally:
    """The counts of a loader's processes, since it was made. It travels to its workers.

    own: of this process.
    """

    def __init__(self, num_workers: int) -> None:
        rows = torch.zeros((num_workers, NUM_COUNTS), dtype=torch.int64)
        self._rows = rows.share_memory_()  # type: ignore[no-untyped-call]
        self.own = CountRow()

    def of_worker(self, worker: int) -> CountRow:
        """A worker's row, for that worker alone."""
        return CountRow(self._rows[worker].numpy())

    @property
    def counts(self) -> Counts:
        """The sum of all rows."""
        return self.own.now.plus(Counts._make(self._rows.sum(dim=0).tolist()))
