"""What does a step do? Its batch, its compute and its gradients, as a table.

On a machine without a GPU compute is a timed sleep: it leaves the cores to whoever feeds, as a GPU
would. On a GPU the profiles that name operations multiply matrices instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of step.

    corpus: T, I or K; batch: samples a rank; step_s: seconds of the timed sleep; gradient_mb: what
    is all-reduced; gpu_flops, gpu_gradient_mb: the same on a GPU, where they are not 0; wait_limit:
    the largest share of the time that may be spent waiting for data, where there is a target.
    """

    name: str
    about: str
    corpus: str
    batch: int
    step_s: float
    gradient_mb: float
    gpu_flops: float = 0.0
    gpu_gradient_mb: float = 0.0
    wait_limit: float | None = None


VIT_FLOPS: Final = 3 * 17.6e9  # forward and backward of an image of 224 x 224 in ViT-B/16
LM_FLOPS: Final = 6 * 350e6 * 2048  # of a row of 2,048 tokens in a model of 350 million weights

PROFILES: Final = (
    Profile(
        name="T-10ms",
        about="64 texts, 10 ms",
        corpus="T",
        batch=64,
        step_s=0.01,
        gradient_mb=1,
        wait_limit=0.02,
    ),
    Profile(
        name="K-10ms",
        about="8 rows of tokens, 10 ms",
        corpus="K",
        batch=8,
        step_s=0.01,
        gradient_mb=1,
        wait_limit=0.02,
    ),
    Profile(
        name="T-100ms",
        about="256 texts, 100 ms",
        corpus="T",
        batch=256,
        step_s=0.1,
        gradient_mb=4,
        wait_limit=0.005,
    ),
    Profile(
        name="K-100ms",
        about="8 rows of tokens, 100 ms",
        corpus="K",
        batch=8,
        step_s=0.1,
        gradient_mb=4,
        wait_limit=0.005,
    ),
    Profile(
        name="I-100ms",
        about="32 images, 100 ms",
        corpus="I",
        batch=32,
        step_s=0.1,
        gradient_mb=4,
        wait_limit=0.005,
    ),
    Profile(
        name="vit",
        about="32 images; on a GPU the operations of ViT-B/16, else 250 ms",
        corpus="I",
        batch=32,
        step_s=0.25,
        gradient_mb=8,
        gpu_flops=32 * VIT_FLOPS,
        gpu_gradient_mb=172,
    ),
    Profile(
        name="lm",
        about="8 rows of tokens; on a GPU the operations of 350 million weights, else 250 ms",
        corpus="K",
        batch=8,
        step_s=0.25,
        gradient_mb=8,
        gpu_flops=8 * LM_FLOPS,
        gpu_gradient_mb=700,
    ),
    Profile(
        name="T-fast", about="256 texts, no compute", corpus="T", batch=256, step_s=0, gradient_mb=0
    ),
)


def profile_of(name: str) -> Profile:
    """The profile of that name."""
    return next(profile for profile in PROFILES if profile.name == name)
