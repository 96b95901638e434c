"""What does a batch weigh in the mean over all ranks?

The gradient of a mean over a global batch is the sum of all ranks' gradients of sums, over the
denominator. DDP and FSDP average over the ranks of their group instead of summing, which
`group size / denominator` makes up for. The denominator is known from the plan, or counted with
one all-reduce where only the ranks know it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from shardloader.dataset.recipe import GROUP_VALID
from shardloader.errors import UsageError

Batch = Mapping[str, Any]


def loss_scale(
    batch: Batch | Sequence[Batch],
    *,
    weight: float | Tensor | None = None,
    sync: bool = False,
    group: Any = None,
) -> Any:
    """World size over the number of valid samples of this step, 0 if there is none.

    A rank's *sum* of per-sample losses over its valid samples, times this, gives after DDP's
    averaging exactly the gradient of the mean over the global batch, also when ranks hold
    different numbers of valid samples. Known with no communication. With
    `ShardLoader(accumulate=)` the number is that of the batch's whole group of steps, so that the
    gradients which the group's backward passes add up are those of the mean over the group.

    sync: count what is really valid now, in `batch["__valid__"]`, with one all-reduce, where the
    loop or a transform refuses samples; of a group of several steps give the list of its batches.
    weight: count this instead, with one all-reduce: this rank's part of another denominator, such
    as its valid tokens (of the whole group of steps with accumulate=), a number or a tensor of one
    element. group: the process group over which gradients are averaged, the default one for None;
    every rank of it calls this at the same time (inside DDP's `Join` a rank that has joined would
    not).

    Returns a float, or for a weight that is a tensor a float64 tensor of no dimensions on its
    device. Raises UsageError for a batch without the loader's entries.
    """
    batches = [batch] if isinstance(batch, Mapping) else _listed(batch)
    world_size = _entry(batches, "__world_size__")
    if weight is None and not sync:
        planned = sum(_entry([each], "__global_valid__") for each in batches)
        valid = batches[0].get(GROUP_VALID, planned)
        return float(world_size) / float(valid) if valid else 0.0
    if weight is None:
        _check_whole_group(batches)
        weight = sum(int(each["__valid__"].sum()) for each in batches)
    ranks, total = _summed(weight, world_size, group)
    scale = torch.where(total == 0, 0.0, ranks / total)
    return scale if isinstance(weight, Tensor) else float(scale)


def _listed(batches: Any) -> list[Batch]:
    return list(batches) if isinstance(batches, list | tuple) else []


def _entry(batches: Sequence[Batch], name: str) -> Any:
    try:
        return batches[0][name]
    except (KeyError, TypeError, IndexError):
        raise UsageError(
            "loss_scale takes a batch of ShardLoader with its entries __global_valid__ and "
            '__world_size__, and this batch lacks them: leave meta= at "all" or "mask"'
        ) from None


def _check_whole_group(batches: Sequence[Batch]) -> None:
    """Refuse a part of a group, whose valid samples nobody has counted yet."""
    planned = sum(each["__global_valid__"] for each in batches)
    wanted = batches[0].get(GROUP_VALID, planned)
    if planned != wanted:
        raise UsageError(
            f"sync=True counts the valid samples of a whole group of steps, {wanted} by the plan, "
            f"and {len(batches)} of its batches hold {planned}: fetch the group's batches first "
            "and give their list, or give weight="
        )


def _summed(weight: float | Tensor, world_size: int, group: Any) -> tuple[int, Tensor]:
    """The ranks of the group, and the sum of their weights.

    Replicas of a data-parallel rank count as often as they average, which cancels.
    """
    try:
        total = torch.as_tensor(weight).detach().to(torch.float64).reshape(()).clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"weight= is a number, or a tensor of one element, and was {weight!r}: give this "
            "rank's part of the denominator"
        ) from error
    if not (distributed.is_available() and distributed.is_initialized()):
        if world_size > 1:
            raise UsageError(
                f"the {world_size} ranks count together through torch.distributed, and it is not "
                "initialised: call init_process_group first"
            )
        return 1, total
    ranks = distributed.get_world_size(group)
    if ranks < 1 or ranks % world_size:  # -1 for a process outside the group
        raise UsageError(
            f"gradients are averaged over a group of the {world_size} data-parallel ranks, and "
            f"this one has {max(ranks, 0)} that this process knows of: give group= that group"
        )
    total = total.to(_device(group, total))
    distributed.all_reduce(total, group=group)
    return ranks, total.to(weight.device) if isinstance(weight, Tensor) else total


def _device(group: Any, total: Tensor) -> torch.device:
    """Where the group's backend can reduce: where the tensor is, or else on its own device."""
    backends = str(distributed.get_backend_config(group)).split(",")  # "cpu:gloo,cuda:nccl"
    kinds = [backend.partition(":")[0] for backend in backends]
    return total.device if total.device.type in kinds else torch.device(kinds[0])
