"""What processes of the distributed tests run: importable, so that spawn finds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader


def rank_reads(
    rank: int, world_size: int, dataset: Any, out: str, start_method: str | None
) -> None:
    """A rank that a parent spawned: it finds its own topology, and its workers find its."""
    from torch import distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{out}/store", rank=rank, world_size=world_size
    )
    try:
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=None,
            num_workers=1 if start_method else 0,
            multiprocessing_context=start_method,
        )
        numbers = [number for batch in loader for number in batch["__index__"].tolist()]
        topology = dataset.resolve_topology()
        found = {"rank": topology.rank, "world_size": topology.world_size, "numbers": numbers}
        Path(out, f"rank-{rank}.json").write_text(json.dumps(found))
    finally:
        distributed.destroy_process_group()
