"""What does `shardloader write` say of what it wrote, or would write?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardloader.cli import report
from shardloader.format.urls import without_secrets
from shardloader.writing.appended import APPENDED_NAME
from shardloader.writing.destination import REFUSED_NAME
from shardloader.writing.foretell import Foretold, PlannedShard
from shardloader.writing.sources.files import is_remote

if TYPE_CHECKING:
    import argparse

    from shardloader.writing.write import Written


def document_of(
    options: argparse.Namespace, done: Written | Foretold, seconds: float
) -> dict[str, Any]:
    """The document that --json prints, of a write or of a dry run that took so many seconds."""
    shards, sources = _shards(done), options.source
    of_its_own = _of_dry_run(done) if isinstance(done, Foretold) else _of_write(done)
    return {
        "source": without_secrets(sources[0])
        if len(sources) == 1
        else [*map(without_secrets, sources)],
        "destination": without_secrets(options.destination),
        "dry_run": options.dry_run,
        "samples": sum(shard.num_samples for shard in shards),
        "bytes": sum(shard.num_bytes for shard in shards),
        "file_bytes": done.survey.num_bytes,
        "temporary_bytes": done.num_temporary_bytes,
        "seconds": round(seconds, 3),
        "shards": [
            {"name": shard.name, "samples": shard.num_samples, "bytes": shard.num_bytes}
            for shard in shards
        ],
        "skipped": [{"path": path, "reason": reason} for path, reason in done.survey.skipped],
        "not_included": done.survey.num_not_included,
        "not_selected": done.num_left_out,
        "was_done": done.was_done,
        **of_its_own,
    }


def _shards(done: Written | Foretold) -> list[PlannedShard]:
    if isinstance(done, Foretold):
        return done.shards
    return [
        PlannedShard(name=each.name, num_samples=each.num_samples, num_bytes=each.size_bytes)
        for each in done.shards
    ]


def _of_dry_run(told: Foretold) -> dict[str, Any]:
    return {
        "exact": told.is_exact,
        "refused": len(told.refused),
        "refused_samples": [each._asdict() for each in told.refused],
    }


def _of_write(written: Written) -> dict[str, Any]:
    return {
        "refused": written.num_refused,
        "kept_shards": written.num_kept,
        "digest": written.manifest.digest,
    }


def print_document(options: argparse.Namespace, document: dict[str, Any]) -> None:
    """Say the same to people."""
    if document["was_done"]:
        report.print_line(
            f"nothing to do: this input was appended to {_shown(options.destination)} with these "
            f"options before (to do it once more, remove {APPENDED_NAME} there)"
        )
        return
    shards = document["shards"]
    if options.dry_run:
        _print_shards(shards, everything=options.verbose)
    report.print_facts(_facts(options, document))
    if not shards:
        report.print_line("nothing is left to write: writing would be an error")
    if not document.get("exact", True):
        report.print_line("compressed and shuffled: sizes are about right, not exact")
    _print_skipped(document["skipped"], everything=options.verbose)
    refused = document.get("refused_samples", [])
    for each in refused if options.verbose else refused[: report.SOME]:
        report.print_line(f"  {report.printable(each['reason'])}")
    if document["refused"] and not options.dry_run:
        report.print_line(
            f"refused samples are listed in {_shown(options.destination)}/{REFUSED_NAME}"
        )


def _facts(options: argparse.Namespace, document: dict[str, Any]) -> list[tuple[str, str]]:
    shards = document["shards"]
    facts = [
        ("dry run of" if options.dry_run else "wrote", _shown(options.destination)),
        ("samples", report.number(document["samples"])),
        ("shards", report.number(len(shards))),
        ("bytes", report.size(document["bytes"])),
    ]
    if shards:
        sizes = [shard["bytes"] for shard in shards]
        facts.append(
            ("a shard", f"{report.size(min(sizes))} to {report.size(max(sizes))}"),
        )
    if options.shuffle is not None:
        where = "--temporary" if is_remote(options.destination) else "DST"
        facts.append(("temporary", f"{report.size(document['temporary_bytes'])}, in {where}"))
    if not options.dry_run:
        facts += _facts_of_write(document)
    facts.append(("skipped", report.plural(len(document["skipped"]), "path")))
    for name, what in (("not_included", "file"), ("not_selected", "sample"), ("refused", "sample")):
        if document[name]:
            facts.append((name.replace("_", " "), report.plural(document[name], what)))
    return facts


def _shown(destination: str) -> str:
    return report.printable(without_secrets(destination))


def _print_shards(shards: list[dict[str, Any]], *, everything: bool) -> None:
    shown = shards if everything else shards[: 2 * report.SOME]
    rows = [
        [each["name"], report.number(each["samples"]), report.size(each["bytes"])] for each in shown
    ]
    report.print_table(["shard", "samples", "bytes"], rows)
    if len(shown) < len(shards):
        report.print_line(f"and {report.plural(len(shards) - len(shown), 'shard')} more")
    report.print_line("")


def _facts_of_write(document: dict[str, Any]) -> list[tuple[str, str]]:
    seconds = max(document["seconds"], 1e-3)
    rate = document["samples"] / seconds
    facts = [
        ("seconds", f"{document['seconds']:.2f}"),
        ("rate", f"{rate:,.0f} samples/s, {report.size(document['bytes'] / seconds)}/s"),
        ("digest", document["digest"]),
    ]
    if document["kept_shards"]:
        kept = report.plural(document["kept_shards"], "shard")
        facts.append(("kept", f"{kept} of a write that was broken off"))
    return facts


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
