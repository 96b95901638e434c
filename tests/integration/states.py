"""Ranks that save a run's state in every way, and ranks that go on from it; spawn finds these."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import shardloader as sl

WAYS = ("dcp", "torch", "json")


def a_loader(corpus: str) -> Any:
    """The loader of every rank, in whatever topology torch.distributed has."""
    dataset = sl.ShardDataset(corpus, shuffle=sl.Shuffle(window=7))
    return sl.ShardLoader(dataset, batch_size=2, agreement_timeout=30)


def valid(batches: Any) -> list[int]:
    """The samples that batches train on."""
    return [
        number for batch in batches for number in batch["__index__"][batch["__valid__"]].tolist()
    ]


def start(rank: int, world_size: int, corpus: str, out: str) -> None:
    """A rank of the first launch, which reads three steps and saves, or of a later one."""
    torch.set_num_threads(1)
    folder = Path(out)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{out}/store-{world_size}",
        rank=rank,
        world_size=world_size,
    )
    saved = folder / "dcp" / ".metadata"
    told = leave(rank, corpus, folder) if not saved.exists() else go_on(corpus, folder)
    (folder / f"read-{world_size}-{rank}.json").write_text(json.dumps(told))
    distributed.barrier()
    distributed.destroy_process_group()


def leave(rank: int, corpus: str, folder: Path) -> list[int]:
    """Read three steps, and leave the state in every way: each of them by another rank."""
    loader = a_loader(corpus)
    read = valid(islice(loader, 3))
    distributed.barrier()  # all have seen that nothing is saved yet
    if rank == 0:
        torch.save({"loader": loader.state_dict()}, folder / "state.pt")
    else:
        (folder / "state.json").write_text(json.dumps({"loader": loader.state_dict()}))
    save({"loader": loader, "weight": torch.ones(3)}, checkpoint_id=folder / "dcp")
    return read


def go_on(corpus: str, folder: Path) -> dict[str, list[int]]:
    """What is left, by the way in which the state came."""
    rest = {}
    for way in WAYS:
        loader = a_loader(corpus)
        if way == "dcp":
            weight = torch.zeros(3)
            load({"loader": loader, "weight": weight}, checkpoint_id=folder / "dcp")
            assert weight.tolist() == [1, 1, 1]
        elif way == "torch":
            loader.load_state_dict(torch.load(folder / "state.pt", weights_only=True)["loader"])
        else:
            state = json.loads((folder / "state.json").read_text())
            loader.load_state_dict(state["loader"])
        rest[way] = valid(loader)
    return rest
