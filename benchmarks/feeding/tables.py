"""What do the rounds say? Medians, spreads, and the ratios of the targets; then Markdown.

The targets are those of the issue: at least so many times the rate of the named loader, in the
same run. A ratio is one of medians.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.feeding.rounds import Series

OWN_NAME: Final = "shardloader"
CORPORA: Final = ("T", "I", "K")
NO_FIGURE: Final = "-"


@dataclass(frozen=True, slots=True)
class Target:
    """One entry of the targets: a ratio to reach, in a measurement, against a loader.

    against: the measurement that the other loader is taken from, where it has no own.
    """

    measurement: str
    corpus: str
    other: str
    ratio: float
    against: str = ""


TARGETS: Final = (
    *(Target("raw", c, "webdataset", r) for c, r in zip(CORPORA, (40, 9, 22), strict=True)),
    *(Target("raw", c, "LitData", r) for c, r in zip(CORPORA, (2, 1.8, 2.8), strict=True)),
    *(Target("raw", c, "floor", r) for c, r in zip(CORPORA, (0.8, 0.9, 0.9), strict=True)),
    *(Target("batches", c, "webdataset", r) for c, r in zip(CORPORA, (15, 1.2, 40), strict=True)),
    Target("own", "I", "webdataset", 2, against="batches"),
    *(Target("batches", c, "LitData", r) for c, r in zip(CORPORA, (3, 1.0, 30), strict=True)),
    Target("own", "I", "LitData", 1.5, against="batches"),
)
# What the headings of the tables say; the order in which they come.
MEASUREMENTS: Final[Mapping[str, str]] = {
    "raw": "Raw bytes, one process, samples a second",
    "batches": "Batches through two worker processes, samples a second (images by Pillow)",
    "own": "Images by each loader's own best decoder, samples a second",
    "first": "Process start to first batch on T, seconds",
    "memory": "Peak of anonymous and shared memory on T, all processes, MB",
}
MORE_IS_BETTER: Final = frozenset({"raw", "batches", "own"})


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, the least and the most."""
    return statistics.median(values), min(values), max(values)


def medians(series: Iterable[Series]) -> dict[tuple[str, str, str], float]:
    """By measurement, corpus and loader; what failed has none."""
    return {
        (each.measurement, each.corpus, each.loader): statistics.median(each.values)
        for each in series
        if each.values and not each.failed
    }


def reached(series: Iterable[Series]) -> list[dict[str, Any]]:
    """Every target, with the ratio reached, or None where one side was not measured."""
    known = medians(series)
    rows = []
    for target in TARGETS:
        ours = known.get((target.measurement, target.corpus, OWN_NAME))
        theirs = known.get((target.against or target.measurement, target.corpus, target.other))
        ratio = ours / theirs if ours is not None and theirs else None
        rows.append(
            {
                "measurement": target.measurement,
                "corpus": target.corpus,
                "against": target.other,
                "target": target.ratio,
                "reached": ratio,
            }
        )
    return rows


def number(value: float) -> str:
    """A figure with as many digits as its size deserves."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def markdown(series: Sequence[Series], about: Mapping[str, Any]) -> str:
    """The whole note."""
    machine = about["machine"]
    lines = [
        "# How fast each loader feeds",
        "",
        f"Made by `{about['command']}`, {about['date']}.",
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, Linux",
        f"{machine['kernel']}, Python {machine['python']}; load before it began",
        f"{machine['load_before']:.1f}.",
        "",
        METHOD,
    ]
    for measurement, title in MEASUREMENTS.items():
        chosen = [each for each in series if each.measurement == measurement]
        if chosen:
            lines += ["", f"## {title}", "", *_table(chosen, measurement)]
    lines += ["", "## Targets", "", *_targets(series)]
    lines += ["", "## What was left out or failed", "", *_failures(series, about["left_out"])]
    lines += ["", "## Versions", "", *_versions(about["versions"])]
    lines += ["", "## Commands", "", "One measurement each; from the repository's root.", ""]
    lines += ["| | | | |", "|---|---|---|---|"]
    lines += [
        f"| {each.measurement} | {each.corpus} | {each.loader} | `{each.command}` |"
        for each in series
    ]
    return "\n".join(lines) + "\n"


METHOD: Final = """\
Every figure is the median of the rounds, with the least and the most. Each measurement is a process
of its own; rounds are interleaved. The clock runs from the call of `iter` (imports and opening lie
before, workers are started after) to the corpus's end; a loader that takes longer than the limit is
stopped there, and its figure is of what came until then. Page cache warm, Python's byte code made
before. Before the first round
all that a loader gives in one pass over a tenth of the corpus was compared with it, by a digest
that does not depend on the order; a loader whose digest differs is listed as failed.

The work: all fields of all samples. T: 256 texts as str, with the JSON. I: 64 images, the largest
middle square resized bilinearly to 224x224 by Pillow, and the class. K: 8 rows as a uint16 tensor,
from .npy files whose header is skipped. Loaders without decoders of their own share these functions
in their collate. Raw: shardloader and the floor give batches (256; I: 64), all others samples.

Shuffled: shardloader and MDS over four shards, LitData over chunks of 64 MB, Grain and loose files
over all; webdataset, Energon and HF datasets with a buffer of 1,000; tarfile and SPDL not at all.
"""


def _table(chosen: Sequence[Series], measurement: str) -> list[str]:
    corpora = [c for c in CORPORA if any(each.corpus == c for each in chosen)]
    cells: dict[str, dict[str, str]] = {}
    order: dict[str, float] = {}
    for each in chosen:
        cells.setdefault(each.loader, {})[each.corpus] = _cell(each)
        if each.values and not each.failed:
            order.setdefault(each.loader, statistics.median(each.values))
    extra = " | the largest worker" if measurement == "memory" else ""
    lines = [f"| | {' | '.join(corpora)}{extra} |", "|---" * (1 + len(corpora)) + "|"]
    if extra:
        lines[1] += "---|"
    best_first = measurement in MORE_IS_BETTER
    worst = float("-inf") if best_first else float("inf")
    for loader in sorted(cells, key=lambda name: order.get(name, worst), reverse=best_first):
        row = [cells[loader].get(corpus, NO_FIGURE) for corpus in corpora]
        if extra:
            row += [_workers(each) for each in chosen if each.loader == loader]
        lines.append(f"| {loader} | {' | '.join(row)} |")
    return lines


def _cell(series: Series) -> str:
    if series.failed or not series.values:
        return "failed"
    middle, least, most = spread(series.values)
    stopped = "" if all(series.whole) else " *"
    return f"{number(middle)} ({number(least)} to {number(most)}){stopped}"


def _workers(series: Series) -> str:
    if series.failed or not series.workers_mb:
        return NO_FIGURE
    middle, least, most = spread(series.workers_mb)
    return f"{number(middle)} ({number(least)} to {number(most)})"


def _targets(series: Sequence[Series]) -> list[str]:
    lines = ["| | corpus | against | target | reached | |", "|---|---|---|---|---|---|"]
    for row in reached(series):
        ratio = row["reached"]
        verdict = NO_FIGURE if ratio is None else "yes" if ratio >= row["target"] else "**missed**"
        shown = NO_FIGURE if ratio is None else f"{ratio:.2f}"
        lines.append(
            f"| {row['measurement']} | {row['corpus']} | {row['against']} | {row['target']:g} | "
            f"{shown} | {verdict} |"
        )
    return lines


def _failures(series: Sequence[Series], left_out: Mapping[str, str]) -> list[str]:
    lines = [f"- {package}: not installed: {reason}" for package, reason in left_out.items()]
    lines += [
        f"- {each.loader}, {each.measurement}, {each.corpus}: {each.failed}"
        for each in series
        if each.failed
    ]
    if any(not all(each.whole) for each in series):
        lines.append("- * stopped at the limit before the corpus's end")
    return lines or ["Nothing."]


def _versions(versions: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [
        f"- {loader}: {', '.join(f'{name} {version}' for name, version in found.items())}"
        for loader, found in sorted(versions.items())
        if found
    ]
