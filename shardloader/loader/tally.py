"""How does the main process know what its workers have asked of a store?

Each worker adds to a row of its own in shared memory, batch by batch, so that the counts are there
also for batches that nobody received, and when a worker has ended.
"""

from __future__ import annotations

import torch

from shardloader.reading.traffic import Traffic


class Tally:
    """The traffic of all workers of a loader, since it was made. It travels to them."""

    def __init__(self, num_workers: int) -> None:
        # requests, received bytes
        rows = torch.zeros((num_workers, 2), dtype=torch.int64)
        self._rows = rows.share_memory_()  # type: ignore[no-untyped-call]

    def add(self, worker: int, traffic: Traffic) -> None:
        """Called by that worker alone."""
        row = self._rows[worker]
        row += torch.tensor([traffic.requests, traffic.received_bytes])

    @property
    def traffic(self) -> Traffic:
        """The sum of all rows."""
        requests, received_bytes = self._rows.sum(dim=0).tolist()
        return Traffic(requests=requests, received_bytes=received_bytes)
