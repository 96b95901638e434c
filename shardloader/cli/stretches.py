"""What does `shardloader plan` say of each stretch of an epoch that one topology reads?

--then cuts the epoch into stretches. Each has its figures, and where it is asked for its quality.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from shardloader.cli import report
from shardloader.errors import UsageError
from shardloader.planning.least_cache import LeastCache, reach_of, readers_a_node
from shardloader.planning.opened import Look, opened
from shardloader.planning.quality import MEASURES, quality
from shardloader.planning.shares import (
    batches_a_rank,
    opened_shares,
    samples_a_rank,
    samples_a_worker,
)
from shardloader.planning.stretches import Change, stretches

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardloader.planning.planned import Plan

_THEN = re.compile(r"([0-9]{1,18}):((?:[a-z-]+=[0-9]{1,18})(?:,[a-z-]+=[0-9]{1,18})*)", re.ASCII)
_CHANGES: Final = ("world-size", "num-workers", "batch-size")

# A table's rows: its name in JSON and in words, and how a figure is told.
_SPREADS: Final = (
    ("batches_a_rank", "batches a rank", report.number),
    ("samples_a_rank", "samples a rank", report.number),
    ("samples_a_worker", "samples a worker", report.number),
    ("read_bytes_a_rank", "sample bytes a rank", report.size),
    ("read_bytes_a_worker", "sample bytes a worker", report.size),
    ("shards_a_rank", "shards a rank", report.number),
    ("shards_a_worker", "shards a worker", report.number),
    ("opened_bytes_a_rank", "shard bytes a rank", report.size),
    ("opened_bytes_a_worker", "shard bytes a worker", report.size),
)
_OPENED: Final = tuple(
    name for name, _, _ in _SPREADS if name.startswith(("read_", "shards_", "opened_"))
)


def stretches_of(plan: Plan, thens: Sequence[str]) -> tuple[Plan, ...]:
    """Cut a plan at the words of --then, whose steps count from the epoch's start."""
    return stretches(plan, [_change(text, plan.first_step) for text in thens])


def _change(text: str, first_step: int) -> Change:
    match = _THEN.fullmatch(text)
    pairs = [pair.split("=") for pair in match[2].split(",")] if match else []
    changes = {name: int(value) for name, value in pairs}
    if match is None or len(changes) < len(pairs) or not changes.keys() <= set(_CHANGES):
        raise UsageError(
            "--then is STEP:NAME=N[,NAME=N...], with the names "
            f"{', '.join(_CHANGES)}, such as 500:world-size=6,batch-size=48, not {text!r}"
        )
    step = int(match[1]) - first_step
    if step < 1:
        raise UsageError(
            f"--then says what changes after the plan's first step, {first_step}, and {text!r} "
            "does not: give a later step, or the topology itself"
        )
    return Change(step, **{name.replace("-", "_"): value for name, value in changes.items()})


def stretch_document(
    plan: Plan, first_step: int, *, is_counted: bool, is_measured: bool
) -> dict[str, Any]:
    """One stretch's figures; is_counted: with shards and bytes; is_measured: with quality."""
    dealing = plan.dealing
    document: dict[str, Any] = {
        "topology": {
            "world_size": dealing.world_size,
            "num_workers": plan.num_workers,
            "batch_size": dealing.batch_size,
            "accumulate": dealing.accumulate,
            "even": dealing.even,
        },
        "first_step": first_step,
        "steps": plan.steps,
        "samples": dealing.length - dealing.consumed - dealing.num_omitted,
        "pads": dealing.num_pads,
        "omitted": dealing.num_omitted,
        "batches_a_rank": batches_a_rank(dealing).to_json(),
        "samples_a_rank": samples_a_rank(dealing).to_json(),
        "samples_a_worker": samples_a_worker(dealing, plan.num_workers).to_json(),
        **dict.fromkeys(_OPENED),
        "shards_opened": None,
        "shards_counted": None,
        "quality": _measured(plan) if is_measured else None,
    }
    look = Look.at(plan) if is_counted else None
    if look is not None:
        document |= _counted(plan, look)
    return document


def cache_document(
    plan: Plan, sizes: NDArray[np.int64] | None, ranks_per_node: int | None
) -> dict[str, Any]:
    """The least cache of a node; sizes: what each shard takes in it, None if that is not known."""
    num_readers = readers_a_node(
        world_size=plan.dealing.world_size,
        num_workers=plan.num_workers,
        ranks_per_node=ranks_per_node,
    )
    reach = reach_of(plan.schedule, num_workers=plan.num_workers, ranks_per_node=ranks_per_node)
    least = None
    if sizes is not None:
        least = LeastCache.of(sizes, plan.schedule.order.counts, reach).least_bytes
    return {"cache": {"readers_a_node": num_readers, "least_bytes": least}}


def _counted(plan: Plan, look: Look) -> dict[str, Any]:
    total = len(look.ranks) * look.num_steps
    with report.progress(total, unit="step", what="counting shards") as bar:
        found = opened(plan, look, bar.update)
    spreads = opened_shares(found)
    return {
        **{name: spread and spread.to_json() for name, spread in spreads.items()},
        "shards_opened": {
            "different": found.num_opened,
            "by_workers_of_a_rank": found.by_workers_of_a_rank,
            "by_several_workers": found.by_several,
        },
        "shards_counted": {
            "is_exact": look.is_exact,
            "ranks": len(look.ranks),
            "steps": look.num_steps,
        },
    }


def _measured(plan: Plan) -> dict[str, Any]:
    with report.progress(MEASURES, unit="measure", what="measuring the shuffle") as bar:
        return asdict(quality(plan, advance=bar.update))


def print_stretch(document: dict[str, Any]) -> None:
    """Print one stretch as facts and tables."""
    report.print_facts(_facts(document))
    report.print_line("")
    rows = [
        [words, *(told(document[name][each]) for each in ("least", "median", "most"))]
        for name, words, told in _SPREADS
        if document[name] is not None
    ]
    _print_table(["", "least", "median", "most"], rows)
    _print_opened(document)
    if document["quality"] is not None:
        report.print_line("")
        _print_quality(document["quality"])


def _facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    topology, first, steps = (document[name] for name in ("topology", "first_step", "steps"))
    step = topology["world_size"] * topology["batch_size"]
    which = f" ({first:,} to {first + steps - 1:,})" if steps else ""
    group = topology["accumulate"]
    grouped = f", {group} steps an optimiser step of {step * group:,}" if group > 1 else ""
    return [
        (
            "topology",
            (
                f"{report.plural(topology['world_size'], 'rank')}, {topology['num_workers']} "
                f"workers each, batch {topology['batch_size']:,} "
                f"({report.plural(step, 'sample')} a step{grouped})"
            ),
        ),
        ("steps", report.number(steps) + which),
        *((name, report.number(document[name])) for name in ("samples", "pads", "omitted")),
        *_cache_facts(document["cache"]),
    ]


def _cache_facts(cache: dict[str, Any]) -> list[tuple[str, str]]:
    if not cache["least_bytes"]:  # not known, or no shard goes through it
        return []
    readers = report.plural(cache["readers_a_node"], "reader")
    told = f"{cache['least_bytes']:,} bytes a node, for {readers}"
    return [("least cache", f"{report.size(cache['least_bytes'])} ({told})")]


def _print_opened(document: dict[str, Any]) -> None:
    counted, found = document["shards_counted"], document["shards_opened"]
    if counted is None:
        report.print_line("shards were not counted")
        return
    if document["read_bytes_a_rank"] is not None:
        report.print_line(
            "sample bytes are an estimate: each sample counts as its shard's size by its samples"
        )
    where = "" if counted["is_exact"] else ", of the readers looked at"
    report.print_line(
        f"of {report.plural(found['different'], 'shard')} opened, "
        f"{found['by_workers_of_a_rank']:,} by more than one worker of a rank, and "
        f"{found['by_several_workers']:,} by more than one worker over all ranks{where}"
    )
    if not counted["is_exact"]:
        report.print_line(
            f"shards were counted on {counted['ranks']:,} of "
            f"{report.plural(document['topology']['world_size'], 'rank')}, in "
            f"{counted['steps']:,} of {report.plural(document['steps'], 'step')}"
        )


def _print_quality(measured: dict[str, Any]) -> None:
    run = report.plural(measured["run_steps"], "step")
    rows = []
    for name, words, unit in (
        ("shards_a_rank_batch", "shards in a rank's batch", "batches"),
        ("shards_a_global_batch", "shards in a global batch", "batches"),
        ("shards_a_run", f"shards in {run} in a row", "runs"),
        ("mean_distance", "mean distance of neighbours", "pairs"),
        ("median_distance", "median distance of neighbours", "pairs"),
        ("same_batch", "neighbours in one global batch", "pairs"),
    ):
        each = measured[name]
        told = _shards if unit != "pairs" else _percent
        looked = f"{each['num_looked_at']:,} of {each['num_all']:,} {unit}"
        rows.append([words, told(each["plan"]), told(each["perfect"]), looked])
    _print_table(["shuffle quality", "plan", "perfect", "looked at"], rows)
    report.print_line(
        "neighbours: samples next to each other in a shard; distances in the order of training, "
        "as shares of a pass over the data"
    )
    if any(row[1] == "-" for row in rows):
        report.print_line("-: there is none, or it is too much work to measure")


def _shards(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.3%}"


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    """Print a table whose columns are set to the right, but for the first."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    padded = [
        [row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in [header, *rows]
    ]
    report.print_table(padded[0], padded[1:])
