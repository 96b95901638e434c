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
