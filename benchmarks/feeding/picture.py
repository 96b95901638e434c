"""The same figures as a picture: a bar a loader, with its spread, one panel a table and corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.feeding.tables import MORE_IS_BETTER, OWN_NAME, number, spread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.feeding.rounds import Series

TITLES: Final = {
    "raw": "raw bytes, one process",
    "batches": "batches, two workers",
    "own": "batches, own decoder",
    "first": "start to first batch, seconds",
    "memory": "peak memory, MB",
}
LIMITS: Final = ("cat", "floor", "idle")
OURS, LIMIT, OTHER = "#1b6ca8", "#9a9a9a", "#d9c7a0"
COLUMNS: Final = 3


def draw(series: Sequence[Series], path: Path) -> None:
    """Write the picture as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = _panels(series)
    rows = -(-len(panels) // COLUMNS)
    figure, axes = plt.subplots(
        rows, COLUMNS, figsize=(5.6 * COLUMNS, 4.2 * rows), layout="constrained", squeeze=False
    )
    for place, axis in enumerate(axes.flat):
        if place < len(panels):
            _panel(axis, *panels[place])
        else:
            axis.axis("off")
    figure.suptitle("Median of the rounds; lines from the least to the most", fontsize=12)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panels(series: Sequence[Series]) -> list[tuple[str, list[Series]]]:
    """A title, and what is drawn under it."""
    found: dict[tuple[str, str], list[Series]] = {}
    for each in series:
        if each.values and not each.failed:
            found.setdefault((each.measurement, each.corpus), []).append(each)
    return [
        (f"{corpus}: {TITLES[measurement]}", found[measurement, corpus])
        for measurement in TITLES
        for corpus in ("T", "I", "K")
        if (measurement, corpus) in found
    ]


def _panel(axis: Any, title: str, chosen: list[Series]) -> None:
    best_last = chosen[0].measurement in MORE_IS_BETTER
    chosen = sorted(chosen, key=lambda each: spread(each.values)[0], reverse=not best_last)
    middles, leasts, mosts = zip(*(spread(each.values) for each in chosen), strict=True)
    below = [middle - least for middle, least in zip(middles, leasts, strict=True)]
    above = [most - middle for middle, most in zip(middles, mosts, strict=True)]
    axis.barh(
        [each.loader for each in chosen],
        middles,
        color=[_colour(each.loader) for each in chosen],
        xerr=[below, above],
        error_kw={"ecolor": "#333333", "capsize": 2},
    )
    if best_last:  # three orders of magnitude lie between some
        axis.set_xscale("log")
        axis.set_xlim(min(leasts) / 3, max(mosts) * 8)
        title += ", samples a second"
    else:
        axis.set_xlim(0, max(mosts) * 1.2)
    for place, (middle, most) in enumerate(zip(middles, mosts, strict=True)):
        axis.annotate(
            f" {number(middle)}", (most, place), va="center", fontsize=8, annotation_clip=False
        )
    axis.set_title(title, fontsize=10, loc="left")
    axis.tick_params(labelsize=8)
    axis.tick_params(which="minor", labelbottom=False)
    axis.spines[["top", "right"]].set_visible(False)


def _colour(loader: str) -> str:
    if loader in LIMITS:
        return LIMIT
    return OURS if loader.startswith(OWN_NAME) else OTHER
