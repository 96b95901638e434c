"""A small model whose loss depends on the sample alone, the same in every process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

FEATURES = 7


def a_model() -> nn.Module:
    """Two layers, always of the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 1))


def losses(model: Any, index: Tensor) -> Tensor:
    """Loss of each sample by its number, float32 [batch]."""
    place = index[:, None].to(torch.float32)
    inputs = torch.sin(place * torch.arange(1.0, FEATURES + 1))
    out: Tensor = model(inputs)
    return (out.squeeze(1) - torch.cos(place.squeeze(1))) ** 2


def an_optimizer(model: Any) -> torch.optim.Optimizer:
    """One with a memory, in which a step that a rank did not make leaves its mark."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def classes(index: Tensor) -> Tensor:
    """Class that a classifier says of each sample, int64 [batch]: wrong for every third."""
    return (index + (index % 3 == 2)) % 10


def scores(index: Tensor) -> Tensor:
    """Probability that a classifier of two says of each sample, float32 [batch], no two alike."""
    return torch.sigmoid(torch.sin(index.to(torch.float32)))


def token_losses(model: Any, index: Tensor) -> tuple[Tensor, Tensor]:
    """Of each sample the sum of its tokens' losses and their number, float32 and int64 [batch].

    Sample n has 1 + n % 5 tokens, each with a loss of its own.
    """
    num_tokens = 1 + index % 5
    of = torch.repeat_interleave(torch.arange(len(index)), num_tokens)
    first = torch.cumsum(num_tokens, 0) - num_tokens
    token = torch.arange(len(of)) - first[of]
    by_token = losses(model, 10 * index[of] + token)
    return torch.zeros(len(index), dtype=by_token.dtype).index_add(0, of, by_token), num_tokens
