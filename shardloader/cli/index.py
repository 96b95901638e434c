"""`shardloader index`: making the indexes and the manifest of shards, and what was odd in them."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardloader.cli import report
from shardloader.cli.sources import (
    add_cache,
    add_dataset,
    at_least_one,
    cache_of,
    datasets,
)
from shardloader.format.notices import NOTICE_KINDS, Notice
from shardloader.reading.indexing import index_dataset
from shardloader.reading.patterns import is_remote
from shardloader.reading.remote_indexing import index_remote
from shardloader.reading.remote_source import place_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from shardloader.format.manifest import Manifest

EPILOG = """\
Several folders are several datasets; shards, as a shell gives them for corpus/*.tar, are one
dataset, which has indexes but no manifest on disk. A shard whose index is current is not read
again. A shard that is no sound tar archive ends it with exit code 1. Compressed shards (.tar.gz,
.tgz, .tar.zst) are unpacked into the node's cache, where training finds them.

Shards on a store are read from there, each once, into a temporary file, --workers of them at a
time; their indexes and the manifest are put beside them, or into --index-dir, a local folder:
`shardloader index s3://bucket/corpus --index-dir indexes/`.

example:
  shardloader index corpus/
  shardloader index corpus/ --index-dir indexes/ --workers 8
  shardloader index corpus/ --digest
  shardloader index corpus/ --force --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `index`."""
    add_dataset(parser)
    parser.add_argument(
        "--workers",
        type=at_least_one,
        metavar="N",
        help="shards that are indexed at a time, each in a process (default: one a CPU)",
    )
    parser.add_argument("--force", action="store_true", help="make all indexes anew")
    parser.add_argument(
        "--digest",
        action="store_true",
        help="put digests of the shards' bytes into the manifest, for verify; reads all of them",
    )
    add_cache(parser)


def run(options: argparse.Namespace) -> int:
    """Index every dataset, then say what is there."""
    with _no_logged_notices():
        documents = [_indexed(source, options) for source in datasets(options)]
    if options.json:
        report.print_json({"datasets": documents})
    else:
        for document in documents:
            _print(document, everything=options.verbose)
    return 0


def _indexed(source: str | list[str], options: argparse.Namespace) -> dict[str, Any]:
    place = place_of(source, index_dir=options.index_dir, storage_options=options.storage_options)
    manifest, notices = _index(source, options)
    return {
        "source": place.location,
        "shards": manifest.num_shards,
        "samples": manifest.num_samples,
        "bytes": int(manifest.sizes.sum()),
        "digest": manifest.digest,
        "has_content_digests": manifest.content_digests is not None,
        "manifest": place.manifest_path,
        "notices": [
            {
                "kind": notice.kind,
                "shard": name,
                "offset": notice.offset,
                "times": notice.count,
                "detail": notice.detail,
                "is_warning": notice.is_warning,
            }
            for name, of_shard in notices.items()
            for notice in of_shard
        ],
    }


def _index(
    source: str | list[str], options: argparse.Namespace
) -> tuple[Manifest, dict[str, tuple[Notice, ...]]]:
    """Index a dataset where it lies."""
    if not is_remote(source):
        return index_dataset(
            source,
            index_dir=options.index_dir,
            num_workers=options.workers,
            force=options.force,
            digest=options.digest,
            cache=cache_of(options),
        )
    return index_remote(
        source,
        index_dir=options.index_dir,
        storage_options=options.storage_options,
        num_workers=options.workers,
        force=options.force,
        digest=options.digest,
        limits=cache_of(options).limits,
    )


@contextmanager
def _no_logged_notices() -> Iterator[None]:
    """Keep the library from logging the notices, which this command lists by kind."""

    def is_none(record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else ()
        return not any(isinstance(each, Notice) for each in arguments)

    logger = logging.getLogger("shardloader")
    logger.addFilter(is_none)
    try:
        yield
    finally:
        logger.removeFilter(is_none)


def _print(document: dict[str, Any], *, everything: bool) -> None:
    report.print_facts(
        (
            ("dataset", report.printable(document["source"])),
            ("shards", report.number(document["shards"])),
            ("samples", report.number(document["samples"])),
            ("bytes", report.size(document["bytes"])),
            ("digest", document["digest"]),
            ("manifest", report.printable(document["manifest"] or "none: shards, not a folder")),
            ("notices", f"{report.number(len(document['notices']))} (of what was indexed now)"),
        )
    )
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for notice in document["notices"]:
        by_kind.setdefault(notice["kind"], []).append(notice)
    for kind, notices in by_kind.items():
        report.print_line(f"  {kind}: {NOTICE_KINDS[kind]}")
        shown = notices if everything else notices[: report.SOME]
        for notice in shown:
            times = f", {report.number(notice['times'])} times" if notice["times"] > 1 else ""
            detail = f": {report.printable(notice['detail'])}" if notice["detail"] else ""
            shard = report.printable(notice["shard"])
            report.print_line(f"    {shard} at byte {notice['offset']}{times}{detail}")
        if len(shown) < len(notices):
            report.print_line(f"    and {report.plural(len(notices) - len(shown), 'shard')} more")
