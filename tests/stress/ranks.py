"""A launch of real ranks: training that logs its samples, saves its state and goes on from it.

Ranks say "ready" before the first step and "step" after each, for whoever wants to kill them. A
process that gets SIGUSR1, and a launcher that lives too long, write their stacks to stderr.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.multiprocessing.spawn import start_processes

import shardloader as sl

LIFETIME_S = 120
MEETING_S = 20


def train(rank: int, options: dict[str, Any]) -> None:
    """One rank's process: read on from the saved state until the epochs are over."""
    out = Path(options["out"])
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{out}/store-{options['launch']}",
        rank=rank,
        world_size=options["world_size"],
    )
    shuffle = sl.Shuffle(window=options["window"])
    steps = options["steps_per_epoch"]
    dataset = sl.ShardDataset(
        options["corpus"], seed=7, shuffle=shuffle, even=options["even"], steps_per_epoch=steps
    )
    more: dict[str, Any] = {"persistent_workers": True} if options["persistent"] else {}
    loader: Any = sl.ShardLoader(
        dataset,
        batch_size=options["batch_size"],
        num_workers=options["num_workers"],
        agreement_timeout=MEETING_S,
        **more,
    )
    loader.log_samples(out / "samples")
    state = out / "state.json"
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    _say("ready")
    num_steps = 0
    while loader.epoch < options["epochs"]:
        iterator = iter(loader)
        while _together(next(iterator, None)):
            num_steps += 1
            if num_steps % options["save_every"] == rank:  # any rank's copy is everyone's
                _save(loader, state, rank)
            _say("step")
        _save(loader, state, rank)
    distributed.destroy_process_group()


def _together(batch: Any) -> bool:
    """Stay in step with the other ranks, as training does; whether any has a batch."""
    valid = 0 if batch is None else int(batch["__valid__"].sum())
    total = torch.tensor([valid, batch is not None])
    distributed.all_reduce(total)
    assert batch is None or batch["__global_valid__"] == int(total[0])
    return int(total[1]) > 0


def _save(loader: Any, path: Path, rank: int) -> None:
    temporary = path.with_suffix(f".{rank}")
    temporary.write_text(json.dumps(loader.state_dict()))
    temporary.replace(path)


def _say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


def launch(options: dict[str, Any], pipe: int, log: int) -> None:
    """Be the launcher, in a session of one's own: start the ranks, and end with them.

    pipe, log: file descriptors for what ranks say, and for stderr.
    """
    os.setsid()
    os.dup2(pipe, 1)
    os.dup2(log, 2)
    faulthandler.enable(2)
    faulthandler.register(signal.SIGUSR1, 2)
    faulthandler.dump_traceback_later(LIFETIME_S, exit=True, file=2)
    context = start_processes(
        train, (options,), nprocs=options["world_size"], join=False, start_method="fork"
    )
    while not context.join():
        pass
