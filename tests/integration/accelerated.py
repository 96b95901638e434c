"""One rank under Accelerate, which is given a loader to prepare in every way it knows.

torchrun ... accelerated.py CORPUS OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

import shardloader as sl

DISPATCH: tuple[bool | None, ...] = (None, True, False)


def made(what: str, corpus: str) -> Any:
    """What a user would hand to `prepare`."""
    if what in {"loader", "split"}:
        return sl.ShardLoader(sl.ShardDataset(corpus), batch_size=2)
    # Every rank has all samples, for Accelerate to deal, or each has its own already.
    alone = sl.Topology(rank=0, world_size=1) if what == "whole" else None
    dataset = sl.ShardDataset(corpus, topology=alone)
    return DataLoader(dataset, batch_size=2, collate_fn=lists)


def lists(samples: list[Any]) -> dict[str, Any]:
    """Batches with texts of any length; Accelerate looks for a tensor's length."""
    import torch

    batch = {name: [sample[name] for sample in samples] for name in samples[0]}
    return {**batch, "__index__": torch.tensor(batch["__index__"])}


def read(what: str, corpus: str, dispatch: bool | None) -> dict[str, Any]:
    """What this rank gets, or the error."""
    configuration = DataLoaderConfiguration(
        dispatch_batches=dispatch, split_batches=what == "split"
    )
    accelerator = Accelerator(cpu=True, dataloader_config=configuration)
    loader = accelerator.prepare(made(what, corpus))
    try:
        batches = list(loader)
    except sl.UsageError as error:
        return {"error": str(error)}
    rows = [
        (number, bool(valid), text)
        for batch in batches
        for number, valid, text in zip(
            batch["__index__"].tolist(), batch["__valid__"], batch["txt"], strict=True
        )
    ]
    return {"steps": len(batches), "rows": rows, "untouched": isinstance(loader, sl.ShardLoader)}


def main() -> None:
    """Write down what came of each way."""
    corpus, out = sys.argv[1:]
    asked = [(what, d) for what in ("loader", "split", "twice") for d in DISPATCH] + [
        ("whole", False)
    ]
    told = {f"{what} {dispatch}": read(what, corpus, dispatch) for what, dispatch in asked}
    accelerator = Accelerator(cpu=True)
    Path(out, f"rank-{accelerator.process_index}.json").write_text(json.dumps(told))
    accelerator.end_training()


if __name__ == "__main__":
    main()
