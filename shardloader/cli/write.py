"""`shardloader write`: which files of a folder become which shards, and writing them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardloader.cli import report
from shardloader.cli.sources import at_least_one
from shardloader.errors import UsageError
from shardloader.reading.sizes import parse_bytes
from shardloader.writing.destination import judge
from shardloader.writing.layout import Limits, PlannedShard, lay_out
from shardloader.writing.pack import plan_folder, run_pack
from shardloader.writing.pattern import parse_pattern
from shardloader.writing.writer import ShardWriter

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from shardloader.format.manifest import Manifest
    from shardloader.writing.pack import Entry, PackPlan

EPILOG = """\
Files whose paths are equal up to the first dot of their names make one sample: 001.jpg, 001.cls
and 001.seg.png are one sample with the fields jpg, cls and seg.png. Samples are ordered by key, or
by --shuffle SEED, which training wants where keys are sorted by class, by day or the like.

example:
  shardloader write photos/ corpus/
  shardloader write photos/ corpus/ --dry-run
  shardloader write photos/ corpus/ --shuffle 0 --overwrite
  shardloader write photos/ corpus/ --max-bytes 500MB --include '*.jpg' --include '*.cls'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `write`."""
    parser.add_argument("source", metavar="SRC", help="the folder of files")
    parser.add_argument("destination", metavar="DST", help="the folder for the shards")
    parser.add_argument(
        "--pattern",
        default="shard-{:06d}.tar",
        help="the shards' names, such as out-%%06d.tar (default: %(default)s)",
    )
    parser.add_argument(
        "--max-samples",
        type=at_least_one,
        default=10_000,
        metavar="N",
        help="samples a shard at most (default: %(default)s)",
    )
    parser.add_argument(
        "--max-bytes",
        default="1GB",
        metavar="SIZE",
        help="a shard's size at most, such as 200MB or 1GiB (default: %(default)s)",
    )
    parser.add_argument(
        "--include",
        action="append",
        metavar="GLOB",
        help="pack files that match: their names, or with a '/' their paths (may be repeated)",
    )
    parser.add_argument(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="write the samples in an order drawn from SEED, instead of by key",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="first remove the shards of this pattern that DST holds",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be written, and write nothing"
    )


def run(options: argparse.Namespace) -> int:
    """Pack, or say what packing would do."""
    source, started = Path(options.source), time.perf_counter()
    writer = ShardWriter(
        options.destination,
        pattern=options.pattern,
        max_samples=options.max_samples,
        max_bytes=options.max_bytes,
        overwrite=options.overwrite,
    )
    plan = plan_folder(source, writer.folder, include=options.include or ["*"], watch=_counted)
    if options.shuffle is not None:
        plan = plan.shuffled(options.shuffle)
    if options.dry_run:
        _check_free(options, writer.folder)
        limits = Limits(max_samples=options.max_samples, max_bytes=parse_bytes(options.max_bytes))
        shards = list(lay_out(plan.samples, parse_pattern(options.pattern), limits))
    else:
        shards = _lines(_written(plan, source, writer))
    document = _document(options, plan, shards, time.perf_counter() - started)
    if options.json:
        report.print_json(document)
    else:
        _print(options, document)
    return 0


def _counted(entries: Iterable[Entry]) -> Iterator[Entry]:
    with report.progress(None, unit="path", what="looking") as bar:
        for entry in entries:
            yield entry
            bar.update()


def _check_free(options: argparse.Namespace, folder: Path) -> None:
    """Refuse, before a dry run, what the writer would refuse."""
    if not folder.is_dir():
        if folder.exists():
            raise UsageError(f"a destination is a folder, and {str(folder)!r} is none")
        return
    names = [item.name for item in folder.iterdir()]
    verdict = judge(names, parse_pattern(options.pattern), overwrite=options.overwrite)
    if verdict.refusal is not None:
        raise UsageError(f"can't write to {str(folder)!r}: {verdict.refusal}")


def _written(plan: PackPlan, source: Path, writer: ShardWriter) -> Manifest:
    with report.progress(plan.total_bytes, unit="B", what="writing") as bar:

        def packed(samples: int, num_bytes: int) -> None:
            del samples
            bar.update(num_bytes)

        return run_pack(plan, source, writer, progress=packed)


def _lines(manifest: Manifest) -> list[PlannedShard]:
    columns = zip(manifest.names, manifest.counts.tolist(), manifest.sizes.tolist(), strict=True)
    return [PlannedShard(name=name, num_samples=n, num_bytes=size) for name, n, size in columns]


def _document(
    options: argparse.Namespace, plan: PackPlan, shards: list[PlannedShard], seconds: float
) -> dict[str, Any]:
    return {
        "source": options.source,
        "destination": options.destination,
        "dry_run": options.dry_run,
        "samples": len(plan.samples),
        "bytes": sum(shard.num_bytes for shard in shards),
        "file_bytes": plan.total_bytes,
        "seconds": round(seconds, 3),
        "shards": [
            {"name": shard.name, "samples": shard.num_samples, "bytes": shard.num_bytes}
            for shard in shards
        ],
        "skipped": [{"path": path, "reason": reason} for path, reason in plan.skipped],
        "not_included": plan.num_not_included,
    }


def _print(options: argparse.Namespace, document: dict[str, Any]) -> None:
    shards, seconds = document["shards"], max(document["seconds"], 1e-3)
    if options.dry_run:
        shown = shards if options.verbose else shards[: 2 * report.SOME]
        rows = [
            [each["name"], report.number(each["samples"]), report.size(each["bytes"])]
            for each in shown
        ]
        report.print_table(["shard", "samples", "bytes"], rows)
        if len(shown) < len(shards):
            report.print_line(f"and {report.plural(len(shards) - len(shown), 'shard')} more")
        report.print_line("")
    facts = [
        ("dry run of" if options.dry_run else "wrote", report.printable(options.destination)),
        ("samples", report.number(document["samples"])),
        ("shards", report.number(len(shards))),
        ("bytes", report.size(document["bytes"])),
    ]
    if not options.dry_run:
        rate = document["samples"] / seconds
        facts += [
            ("seconds", f"{document['seconds']:.2f}"),
            ("rate", f"{rate:,.0f} samples/s, {report.size(document['bytes'] / seconds)}/s"),
        ]
    facts.append(("skipped", report.plural(len(document["skipped"]), "path")))
    if document["not_included"]:
        facts.append(("not included", report.plural(document["not_included"], "file")))
    report.print_facts(facts)
    _print_skipped(document["skipped"], everything=options.verbose)


def _print_skipped(skipped: list[dict[str, str]], *, everything: bool) -> None:
    by_reason: dict[str, list[str]] = {}
    for each in skipped:
        by_reason.setdefault(each["reason"], []).append(each["path"])
    for reason, paths in by_reason.items():
        if everything:
            report.print_line(f"  {report.printable(reason)}:")
            for path in paths:
                report.print_line(f"    {report.printable(path)}")
        else:
            report.print_line(f"  {report.printable(reason)}: {report.some(paths)}")
