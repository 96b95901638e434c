"""Ranks that start reading, each in its own way; importable, so that spawn finds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def start(rank: int, corpus: str, out: str, ways: list[dict[str, Any]]) -> None:
    """Take one batch in the way of this rank, and write down what came of it."""
    from torch import distributed

    import shardloader as sl

    distributed.init_process_group(
        "gloo", init_method=f"file://{out}/store", rank=rank, world_size=len(ways)
    )
    way = dict(ways[rank])
    told = "did not come"
    if not way.pop("stays_away", False):
        state, epoch = way.pop("state", None), way.pop("epoch", None)
        options = {name: way.pop(name) for name in ("batch_size", "num_workers") if name in way}
        window = way.pop("window", 10)
        dataset = sl.ShardDataset(
            way.pop("corpus", corpus), shuffle=sl.Shuffle(window=window), **way
        )
        loader: Any = sl.ShardLoader(dataset, agreement_timeout=3, **{"batch_size": 2, **options})
        try:
            if state is not None:
                loader.load_state_dict(state)
            if epoch is not None:
                loader.set_epoch(epoch)
            batch = next(iter(loader))
            told = f"read {len(batch['__index__'])}"
        except sl.AgreementError as error:
            told = str(error)
    Path(out, f"rank-{rank}.json").write_text(json.dumps(told))
    # The store lives in a file: nobody has to stay for the others.
    distributed.destroy_process_group()
