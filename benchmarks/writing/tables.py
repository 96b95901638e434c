"""What do the rounds say? Medians, spreads, and the ratios of the targets; then Markdown.

A target is at least so many times the rate of another writer in the same run. The ratio is the
median of the rounds' ratios, since in a round both were measured within a minute or two.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.feeding.tables import NO_FIGURE, number, spread
from benchmarks.writing.rounds import ACCESS, TIME
from benchmarks.writing.writers import (
    BARE,
    CORPORA,
    FLOOR,
    MDS,
    MDS_ZSTD,
    ONE_WORKER,
    OWN,
    OWN_ZSTD,
    TWO_WORKERS,
    WEBDATASET,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.writing.rounds import Series


class Target(NamedTuple):
    """One entry of the targets: of this writer's rate to that of another, on a corpus."""

    corpus: str
    writer: str
    against: str
    ratio: float


TARGETS: Final = (
    Target("T", OWN, WEBDATASET, 25),
    Target("T", OWN, MDS, 1),
    Target("I", OWN, WEBDATASET, 6),
    Target("I", OWN, MDS, 2.5),
    *(Target(corpus, OWN, FLOOR, 0.6) for corpus in CORPORA),
    *(Target(corpus, OWN, BARE, 0.9) for corpus in CORPORA),
    Target("T", OWN_ZSTD, MDS_ZSTD, 1),
    Target("T", TWO_WORKERS, ONE_WORKER, 1.7),
)

METHOD: Final = """\
Every figure is the median of the rounds, with the least and the most; a target's ratio is the
median of the ratios in each round. Each measurement is a process
of its own; rounds are interleaved. Samples are in memory, their fields as bytes, before the clock
starts; `shardloader write` reads the corpus's shards instead, from the page cache. Before that each
writes 64 samples, so that everything is imported, and a file as long as the corpus is written and
removed, so that nobody waits for memory that a virtual machine's host took back. The clock runs
from the first sample to the closed dataset; CPU is user and system time of all threads and
processes. shardloader brings every shard to disk (fsync) before it has its name, and makes digest
and index; no other writer here does. webdataset, tarfile and
those that compress are given a quarter of the samples.
The template loop builds ustar headers from a template, and nothing else. Before the first round
what each writer wrote of a tenth of the corpus was read back, by tarfile or by MDS itself, and keys
and fields compared by a digest; a writer whose digest differs is listed as failed.
"""


def reached(series: Iterable[Series]) -> list[dict[str, Any]]:
    """Every target with the ratios reached, or None where one side was not measured."""
    timed = [each for each in series if each.measurement == TIME and not each.failed]
    known = {(each.corpus, each.writer): each for each in timed if each.rates}
    rows = []
    for target in TARGETS:
        pair = [known.get((target.corpus, name)) for name in (target.writer, target.against)]
        both = [each for each in pair if each is not None]
        rows.append(
            {
                **target._asdict(),
                "reached": _ratio([each.rates for each in both]),
                "reached_of_cpu": _ratio([each.cpu_rates for each in both]),
            }
        )
    return rows


def _ratio(rates: Sequence[list[float]]) -> float | None:
    if len(rates) != 2:
        return None
    ratios = [ours / theirs for ours, theirs in zip(*rates, strict=True)]
    return float(statistics.median(ratios))


def markdown(series: Sequence[Series], about: Mapping[str, Any]) -> str:
    """The whole note."""
    machine = about["machine"]
    lines = [
        "# How fast each writer is",
        "",
        f"Made by `{about['command']}`, {about['date']}.",
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, Linux",
        f"{machine['kernel']}, Python {machine['python']}; load before it began",
        f"{machine['load_before']:.1f}. {about['rounds']} rounds.",
        "",
        METHOD,
        "## Samples a second",
        "",
        *_table(series),
        "",
        "## Targets",
        "",
        "| corpus | | against | target | reached | of CPU time | |",
        "|---|---|---|---|---|---|---|",
        *(_target(row) for row in reached(series)),
        "",
        "## A sample from the middle of a zstd shard",
        "",
        *_accesses(series),
        "",
        "## What was left out or failed",
        "",
        *_failures(series, about["left_out"]),
        "",
        "## Versions",
        "",
        *_versions(about["versions"]),
        "",
        "## Commands",
        "",
        "One measurement each; from the repository's root.",
        "",
        "| | | | |",
        "|---|---|---|---|",
        *(f"| {s.measurement} | {s.corpus} | {s.writer} | `{s.command}` |" for s in series),
    ]
    return "\n".join(lines) + "\n"


def _table(series: Sequence[Series]) -> list[str]:
    corpora = [name for name in CORPORA if any(each.corpus == name for each in series)]
    heads = [f"{name} | {name}: a CPU second | {name}: bytes a sample" for name in corpora]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + 3 * len(corpora)) + "|"]
    rows: dict[str, dict[str, str]] = {}
    for each in series:
        if each.measurement == TIME:
            rows.setdefault(each.writer, {})[each.corpus] = _cells(each)
    none = " | ".join([NO_FIGURE] * 3)
    for writer, cells in rows.items():
        lines.append(f"| {writer} | {' | '.join(cells.get(name, none) for name in corpora)} |")
    return lines


def _cells(series: Series) -> str:
    if series.failed or not series.rates:
        return "failed | | "
    rates = []
    for values in (series.rates, series.cpu_rates):
        middle, least, most = spread(values)
        rates.append(f"{number(middle)} ({number(least)} to {number(most)})")
    return " | ".join([*rates, number(series.bytes_a_sample)])


def _target(row: Mapping[str, Any]) -> str:
    ratio, of_cpu = row["reached"], row["reached_of_cpu"]
    verdict = NO_FIGURE if ratio is None else "yes" if ratio >= row["ratio"] else "**missed**"
    shown = [NO_FIGURE if each is None else f"{each:.2f}" for each in (ratio, of_cpu)]
    cells = [row["corpus"], row["writer"], row["against"], f"{row['ratio']:g}", *shown, verdict]
    return f"| {' | '.join(cells)} |"


def _accesses(series: Sequence[Series]) -> list[str]:
    return [
        f"- {each.corpus}: at most {each.access['most_frames']} frame unpacked for a sample, "
        f"{number(each.access['unpacked_bytes'])} bytes on average; "
        f"{number(statistics.median(each.rates))} samples a second"
        for each in series
        if each.measurement == ACCESS and each.access
    ] or ["Not measured."]


def _failures(series: Sequence[Series], left_out: Mapping[str, str]) -> list[str]:
    lines = [f"- {package}: not installed: {reason}" for package, reason in left_out.items()]
    lines += [
        f"- {each.writer}, {each.measurement}, {each.corpus}: {each.failed}"
        for each in series
        if each.failed
    ]
    return lines or ["Nothing."]


def _versions(versions: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [
        f"- {writer}: {', '.join(f'{name} {version}' for name, version in found.items())}"
        for writer, found in sorted(versions.items())
        if found
    ]
