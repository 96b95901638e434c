"""A launch of real ranks: training that logs its samples, saves its state and goes on from it.

Ranks say "ready" before the first step and "step" after each, for whoever wants to kill them. A
process that gets SIGUSR1, and a launcher that lives too long, write their stacks to stderr.

A corpus on a store (`store`) is read through a cache, and then ranks note which processes there
are and what they hold open, and rank 0 what the store was asked for by an epoch's end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import torch
from torch import distributed
from torch.multiprocessing.spawn import start_processes

import shardloader as sl
from shardloader.reading import remote

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
        options["corpus"],
        seed=7,
        shuffle=shuffle,
        even=options["even"],
        steps_per_epoch=steps,
        **_store_options(options["store"]),
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
        epoch, has_begun = loader.epoch, False
        iterator = iter(loader)
        while _together(next(iterator, None)):
            if not has_begun:
                _note(options, rank, "begins", epoch=epoch)
                has_begun = True
            num_steps += 1
            if num_steps % options["save_every"] == rank:  # any rank's copy is everyone's
                _save(loader, state, rank)
            _say("step")
        _save(loader, state, rank)
        _note(options, rank, "ended", epoch=epoch)
        distributed.barrier()
    distributed.destroy_process_group()


def _together(batch: Any) -> bool:
    """Stay in step with the other ranks, as training does; whether any has a batch."""
    valid = 0 if batch is None else int(batch["__valid__"].sum())
    total = torch.tensor([valid, batch is not None])
    distributed.all_reduce(total)
    if batch is not None:
        assert batch["__global_valid__"] == int(total[0])
        assert [int(text.split()[1]) for text in batch["txt"]] == batch["__index__"].tolist()
    return int(total[1]) > 0


def _store_options(store: dict[str, Any] | None) -> dict[str, Any]:
    """Options of the dataset; shards are small here, and so are the pieces that they come in."""
    if store is None:
        return {}
    remote.PIECE_BYTES = store["piece_bytes"]  # type: ignore[misc]
    cache = sl.Cache(store["cache"], max_bytes=store["max_bytes"])
    return {"cache": cache, "storage_options": store["storage_options"]}


def _note(options: dict[str, Any], rank: int, what: str, **more: Any) -> None:
    """Append what there is at an epoch's first step, or its end."""
    store = options["store"]
    if store is None:
        return
    here = psutil.Process()
    family = {here.pid: here.num_fds()}
    for child in here.children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            family[child.pid] = child.num_fds()
    note = {"what": what, "rank": rank, "launch": options["launch"], "open": family, **more}
    if rank == 0 and what == "ended":
        with urlopen(f"{store['proxy']}/-/counts", timeout=MEETING_S) as answer:  # noqa: S310
            note["counts"] = json.load(answer)
    with Path(options["out"], f"notes-{rank}.jsonl").open("a") as file:
        file.write(json.dumps(note) + "\n")


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
    faulthandler.dump_traceback_later(options["lifetime_s"], exit=True, file=2)
    context = start_processes(
        train, (options,), nprocs=options["world_size"], join=False, start_method="fork"
    )
    while not context.join():
        pass
