"""One rank's loop: wait for a batch, copy it, compute, all-reduce. What took how long?

Knows nothing of loaders: a feed is whatever `iter` makes batches of, on the host or on the device
already: then the copy is what is still to be waited for. The first batches, with the
start of workers and the first touch of files, are taken before the clock starts; the ends of epochs
are within it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.training.profiles import Profile

WARMING_STEPS: Final = 5
MATRIX: Final = 4096  # the side of what is multiplied on a GPU
PROFILED_STEPS: Final = 20


@dataclass(slots=True, kw_only=True)
class Times:
    """Seconds of each step: waiting for the batch, copying it, computing, reducing."""

    first_s: float = 0.0
    seconds: float = 0.0
    bytes_a_batch: int = 0
    waits: list[float] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)
    computes: list[float] = field(default_factory=list)
    reduces: list[float] = field(default_factory=list)

    def add(self, later: Times) -> None:
        """Go on with the steps of a later run."""
        self.seconds += later.seconds
        self.waits += later.waits
        self.copies += later.copies
        self.computes += later.computes
        self.reduces += later.reduces


class Step:
    """The compute and the gradients of a profile, on a device."""

    def __init__(self, profile: Profile, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._seconds = profile.step_s
        self._products = 0
        if on_gpu and profile.gpu_flops:
            self._seconds = 0.0
            self._products = max(1, round(profile.gpu_flops / (2 * MATRIX**3)))
            self._matrix = torch.randn(MATRIX, MATRIX, device=device, dtype=torch.bfloat16)
        megabytes = (on_gpu and profile.gpu_gradient_mb) or profile.gradient_mb
        self._gradients = torch.zeros(max(1, int(megabytes * 250_000)), device=device)

    def compute(self) -> None:
        """Take the time, or do the work, of forward and backward."""
        for _ in range(self._products):
            torch.mm(self._matrix, self._matrix)
        if self._products:
            torch.cuda.current_stream().synchronize()  # copies ahead, on others, go on
        if self._seconds:
            time.sleep(self._seconds)

    def reduce(self, *, is_last: bool) -> bool:
        """All-reduce the gradients; whether a rank has said that this step is the last."""
        self._gradients[0] = float(is_last)
        distributed.all_reduce(self._gradients)
        return bool(self._gradients[0].item() > 0)


def endless(feed: Iterable[Any]) -> Iterator[Any]:
    """The feed's batches, epoch after epoch."""
    while True:
        yield from feed


def synthetic(batches: Iterator[Any]) -> Iterator[Any]:
    """The limit: the feed's first batch, over and over, from the host's memory."""
    first = next(batches)
    return repeat({name: _on_host(value) for name, value in first.items()})


def _on_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


def run(batches: Iterator[Any], profile: Profile, device: torch.device, *, seconds: float) -> Times:
    """Train for so many seconds; all ranks stop after the same step."""
    step, times = Step(profile, device), Times()
    began = time.perf_counter()
    batch = next(batches)
    times.first_s = time.perf_counter() - began
    times.bytes_a_batch = bytes_of(batch)
    for _ in range(WARMING_STEPS):
        moved(next(batches), device)
        step.compute()
        step.reduce(is_last=False)
    is_over, start = False, time.perf_counter()
    while not is_over:
        began = time.perf_counter()
        coming = next(batches)
        arrived = time.perf_counter()
        batch = coming  # only now the one before it goes, which is no waiting
        moved(batch, device)
        there = time.perf_counter()
        step.compute()
        computed = time.perf_counter()
        is_over = step.reduce(is_last=computed - start > seconds)
        times.waits.append(arrived - began)
        times.copies.append(there - arrived)
        times.computes.append(computed - there)
        times.reduces.append(time.perf_counter() - computed)
    times.seconds = time.perf_counter() - start
    return times


def moved(batch: Any, device: torch.device) -> list[torch.Tensor]:
    """The batch's tensors on the device, for what is done there now."""
    found = [value for value in batch.values() if isinstance(value, torch.Tensor)]
    there = [value.to(device, non_blocking=True) for value in found]
    if device.type == "cuda":
        torch.cuda.current_stream().synchronize()  # copies ahead, on others, go on
    return there


def bytes_of(batch: Any) -> int:
    """Bytes of a batch's tensors and texts."""
    total = 0
    for name, value in batch.items():
        if name.startswith("__"):
            continue
        if isinstance(value, torch.Tensor):
            total += value.numel() * value.element_size()
        else:
            total += sum(len(each) for each in value if isinstance(each, str | bytes))
    return total


def copy_engine_share(batches: Iterator[Any], profile: Profile, device: torch.device) -> float:
    """The share of the time in which the GPU copies from the host, by torch's profiler."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    step = Step(profile, device)
    began = time.perf_counter()
    with profiler(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(PROFILED_STEPS):
            moved(next(batches), device)
            step.compute()
            step.reduce(is_last=False)
    seconds = time.perf_counter() - began
    copies = [each for each in profiled.key_averages() if "Memcpy HtoD" in each.key]
    return float(sum(each.device_time_total for each in copies)) / 1e6 / seconds
