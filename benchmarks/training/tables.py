"""What was measured, as a table and a picture."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

from benchmarks.feeding.tables import OWN_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

LEAST_RATE: Final = 0.97  # of the synthetic limit, at the step times that have a target
HEAD: Final = (
    "| step | loader | waiting | longest wait, ms | samples/s | MB/s | of the limit | skew, ms |",
    "|---|---|---:|---:|---:|---:|---:|---:|",
)


def rows(runs: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One for each profile and loader: medians over its runs."""
    pairs = {(name, run["loader"]): None for run in runs for name in run["profiles"]}
    for profile, loader in sorted(pairs, key=lambda pair: pair[0]):
        of_it = [
            run["profiles"][profile]
            for run in runs
            if run["loader"] == loader and profile in run["profiles"]
        ]
        fed = [each["fed"] for each in of_it]
        limit = of_it[0]["about"]["wait_limit"]
        row = {
            "profile": profile,
            "loader": loader,
            "wait_limit": limit,
            "of_limit": statistics.median(
                each["fed"]["samples_per_s"] / each["limit"]["samples_per_s"] for each in of_it
            ),
            "longest_ms": max(r["wait_ms"]["most"] for each in fed for r in each["by_rank"]),
        }
        for name in ("wait_share", "samples_per_s", "mb_per_s", "skew_ms"):
            row[name] = statistics.median(each[name] for each in fed)
        engine = [each["copy_engine_share"] for each in of_it if "copy_engine_share" in each]
        row["copy_engine_share"] = statistics.median(engine) if engine else None
        has_target = limit is not None and loader == OWN_NAME
        row["reached"] = (
            bool(row["wait_share"] < limit and row["of_limit"] >= LEAST_RATE)
            if has_target
            else None
        )
        yield row


def markdown(runs: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> str:
    """The note beside the JSON."""
    machine = about["machine"]
    device = runs[0]["device"] if runs else "nothing measured"
    told = (
        f"`{about['command']}`, {about['date']}: {machine['processor']}, {machine['cores']} cores, "
        f"{device}, {about['ranks']} ranks. Load before: {machine['load_before']:.1f}. Medians of "
        f"{about['rounds']} rounds. *Waiting* is the share of a rank's time in which the loop had "
        "no batch, *of the limit* its rate beside a feed that gives one batch from memory over and "
        "over, in the same process. shardloader copies by its own `device=`, which does nothing "
        "where there is no GPU."
    )
    lines = ["# Feeding a training step", "", told, "", *HEAD]
    found = list(rows(runs))
    lines += [
        f"| {row['profile']} | {row['loader']} | {100 * row['wait_share']:.2f}% | "
        f"{row['longest_ms']:.1f} | {row['samples_per_s']:,.0f} | {row['mb_per_s']:,.1f} | "
        f"{row['of_limit']:.3f} | {row['skew_ms']:.2f} |"
        for row in found
    ]
    lines += ["", f"| target | waiting below | of the limit at least {LEAST_RATE} | reached |"]
    lines += ["|---|---:|---:|---|"]
    lines += [
        f"| {row['profile']} | {100 * row['wait_limit']:.1f}% | {row['of_limit']:.3f} | "
        f"{'yes' if row['reached'] else 'no'} |"
        for row in found
        if row["reached"] is not None
    ]
    engines = [row for row in found if row["copy_engine_share"] is not None]
    if engines:
        lines += ["", "| step | loader | copy engine busy |", "|---|---|---:|"]
    lines += [
        f"| {row['profile']} | {row['loader']} | {100 * row['copy_engine_share']:.2f}% |"
        for row in engines
    ]
    lines += [f"\n- {name}: {why}" for name, why in about["failed"].items()]
    return "\n".join(lines) + "\n"


def draw(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the shares of waiting as a picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    found = list(rows(runs))
    names = list(dict.fromkeys(row["profile"] for row in found))
    figure, axes = plt.subplots(
        1, len(names), figsize=(3.2 * len(names), 3.2), layout="constrained", squeeze=False
    )
    for axis, name in zip(axes.flat, names, strict=True):
        of_it = [row for row in found if row["profile"] == name]
        colours = ["#1b6ca8" if row["loader"] == OWN_NAME else "#d9c7a0" for row in of_it]
        shares = [100 * row["wait_share"] for row in of_it]
        axis.barh([row["loader"] for row in of_it], shares, color=colours)
        for place, share in enumerate(shares):
            axis.annotate(f" {share:.2f}", (share, place), va="center", fontsize=8)
        axis.set_xlim(0, max(*shares, 1.0) * 1.3)
        axis.set_title(f"{name}: % waiting", fontsize=10, loc="left")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
