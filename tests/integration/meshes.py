"""Ranks of a device mesh that each write down what they read; importable, so that fork finds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

import shardloader as sl


def start(rank: int, shape: dict[str, int], corpus: str, out: str) -> None:
    """Read one epoch with the topology of the mesh, and one with that of its group."""
    torch.set_num_threads(1)
    world_size = 1
    for size in shape.values():
        world_size *= size
    distributed.init_process_group(
        "gloo", init_method=f"file://{out}/store", rank=rank, world_size=world_size
    )
    mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    of_mesh = sl.Topology.from_mesh(mesh, "dp")
    of_submesh = sl.Topology.from_mesh(mesh["dp"])
    of_group = sl.Topology.from_group(mesh.get_group("dp"))
    assert of_mesh == of_group == of_submesh
    place = {name: mesh.get_local_rank(name) for name in shape}
    told = {
        "place": place,
        "by mesh": epoch(corpus, of_mesh, num_workers=0),
        "by group": epoch(corpus, of_group, num_workers=1 if len(shape) == 2 else 0),
    }
    Path(out, f"rank-{rank}.json").write_text(json.dumps(told))
    distributed.barrier()
    distributed.destroy_process_group()


def epoch(corpus: str, topology: sl.Topology, *, num_workers: int) -> list[Any]:
    """The batches of one epoch, each as its samples and which of them are valid."""
    dataset = sl.ShardDataset(corpus, shuffle=sl.Shuffle(window=7), topology=topology)
    loader: Any = sl.ShardLoader(
        dataset, batch_size=2, num_workers=num_workers, agreement_timeout=30
    )
    return [
        [batch["__index__"].tolist(), batch["__valid__"].tolist(), batch["txt"]] for batch in loader
    ]
