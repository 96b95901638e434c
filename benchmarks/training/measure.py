"""One loader under torchrun: its share of waiting in each profile, beside the synthetic limit.

Every rank runs the loop on a batch from memory and on what it feeds itself; rank 0 gathers what all
measured.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed

from benchmarks.feeding.measure import versions_of
from benchmarks.feeding.registry import find
from benchmarks.feeding.work import BATCHES, OWN, Work
from benchmarks.training import loop
from tools.corpora.corpus import corpus_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from benchmarks.training.profiles import Profile

TIMEOUT: Final = timedelta(seconds=180)


def measured(
    name: str, profiles: Sequence[Profile], *, seconds: float, divide: int, work: Path
) -> dict[str, Any]:
    """What rank 0 prints: for each profile the limit and the loader, by rank and in sum."""
    use_gpu = torch.cuda.is_available()
    distributed.init_process_group("nccl" if use_gpu else "gloo", timeout=TIMEOUT)
    rank = distributed.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if use_gpu else None
    if device is not None:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    place = device or torch.device("cpu")
    found: dict[str, Any] = {
        "loader": name,
        "ranks": distributed.get_world_size(),
        "device": torch.cuda.get_device_name(device) if use_gpu else "cpu",
        "versions": versions_of(find(name).packages),
        "profiles": {},
    }
    for profile in profiles:
        found["profiles"][profile.name] = _profile(
            name, profile, place, seconds=seconds, divide=divide, work=work
        )
    distributed.barrier()
    return found


def _profile(
    name: str, profile: Profile, device: torch.device, *, seconds: float, divide: int, work: Path
) -> dict[str, Any]:
    batches = loop.endless(opened(name, profile, device, divide=divide, work=work))
    from_memory = loop.synthetic(batches)
    # half before and half after, so that a drift of the machine falls on both
    limit = loop.run(from_memory, profile, device, seconds=seconds / 2)
    distributed.barrier()
    fed = loop.run(batches, profile, device, seconds=seconds)
    distributed.barrier()
    limit.add(loop.run(from_memory, profile, device, seconds=seconds / 2))
    found: dict[str, Any] = {
        "about": asdict(profile),
        "limit": summed(_gathered(limit), profile),
        "fed": summed(_gathered(fed), profile),
    }
    if device.type == "cuda":
        found["copy_engine_share"] = loop.copy_engine_share(batches, profile, device)
    return found


def opened(
    name: str, profile: Profile, device: torch.device, *, divide: int, work: Path
) -> Iterable[Any]:
    """A loader's batches of a profile, for this rank; on the device, if it copies by itself."""
    loader = find(name)
    corpus = replace(corpus_of(profile.corpus, divide), batch=profile.batch)
    mode = OWN if profile.corpus == "I" and loader.does("I", OWN) else BATCHES
    folder = corpus.folder(work, loader.form).resolve()
    of_rank = Work(corpus=corpus, mode=mode, folder=folder, device=str(device))
    return loader.opens[mode](of_rank).items


def _gathered(times: loop.Times) -> list[loop.Times]:
    """Every rank's times."""
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, times)
    return found


def summed(ranks: Sequence[loop.Times], profile: Profile) -> dict[str, Any]:
    """By rank and in sum; the skew is how far ranks come apart in a step, before the reducing."""
    of_ranks = [_of_rank(times, profile) for times in ranks]
    own = [[sum(parts) for parts in zip(t.waits, t.copies, t.computes, strict=True)] for t in ranks]
    apart = [max(step) - min(step) for step in zip(*own, strict=False)]
    return {
        "samples_per_s": sum(each["samples_per_s"] for each in of_ranks),
        "mb_per_s": sum(each["mb_per_s"] for each in of_ranks),
        "wait_share": statistics.fmean(each["wait_share"] for each in of_ranks),
        "skew_ms": 1000 * statistics.fmean(apart),
        "by_rank": of_ranks,
    }


def _of_rank(times: loop.Times, profile: Profile) -> dict[str, Any]:
    steps, waits = len(times.waits), sorted(times.waits)
    return {
        "steps": steps,
        "seconds": times.seconds,
        "samples_per_s": steps * profile.batch / times.seconds,
        "mb_per_s": steps * times.bytes_a_batch / times.seconds / 1e6,
        "wait_share": sum(waits) / times.seconds,
        "copy_share": sum(times.copies) / times.seconds,
        "reduce_share": sum(times.reduces) / times.seconds,
        "wait_ms": {
            "p50": 1000 * waits[steps // 2],
            "p99": 1000 * waits[min(steps - 1, int(0.99 * steps))],
            "most": 1000 * waits[-1],
        },
        "first_batch_s": times.first_s,
    }
