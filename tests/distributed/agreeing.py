"""Ranks that start reading, each in its own way; importable, so that fork finds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import shardloader as sl

PATIENCE_S = 3
OPTIONS = ("batch_size", "num_workers")


def start(rank: int, corpus: str, out: str, cases: list[list[dict[str, Any]]]) -> None:
    """Case by case take one batch in the way of this rank, and write down what came of each."""
    from torch import distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{out}/store", rank=rank, world_size=len(cases[0])
    )
    told = [outcome(corpus, dict(ways[rank])) for ways in cases]
    Path(out, f"rank-{rank}.json").write_text(json.dumps(told))
    # The store lives in a file: nobody has to stay for the others.
    distributed.destroy_process_group()


def outcome(corpus: str, way: dict[str, Any]) -> str:
    """What comes of one way to start."""
    if way.pop("stays_away", False):
        return "did not come"
    if way.pop("comes_late", False):
        barrier()
        told = outcome(corpus, way)
        barrier()
        return told
    then = way.pop("then", None)
    state, epoch = way.pop("state", None), way.pop("epoch", None)
    loader = loader_of(way.pop("corpus", corpus), **way)
    try:
        if state is not None:
            loader.load_state_dict(state)
        if epoch is not None:
            loader.set_epoch(epoch)
        told = f"read {len(next(iter(loader))['__index__'])}"
        if then == "evaluates":
            list(loader)
            next(iter(loader_of(corpus, **way)))
        elif then == "trains on":
            list(loader)
            next(iter(loader))
        elif then == "lets others come":
            barrier()
            barrier()
            next(iter(loader))
    except sl.AgreementError as error:
        return str(error)
    return told


def barrier() -> None:
    """Let all ranks come here."""
    from torch import distributed

    distributed.barrier()


def loader_of(corpus: str, *, window: int = 10, **way: Any) -> Any:
    """A loader with options of either kind."""
    options = {name: way.pop(name) for name in OPTIONS if name in way}
    dataset = sl.ShardDataset(corpus, shuffle=sl.Shuffle(window=window), **way)
    return sl.ShardLoader(dataset, agreement_timeout=PATIENCE_S, **{"batch_size": 2, **options})
