"""`shardloader cache`: what the node's cache holds, and making it empty."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardloader.cli import report
from shardloader.errors import UsageError
from shardloader.reading.cache import Cache, default_cache

if TYPE_CHECKING:
    import argparse

EPILOG = """\
The cache holds the tars of compressed and remote shards, one file each, and is shared by all
processes of a node that name its folder. What is in use by any of them is not cleared. Everything
in it can be had again from the shards. A reader is a worker, or a rank without any, that fetches
ahead.

example:
  shardloader cache info
  shardloader cache info cache/ --json
  shardloader cache clear cache/
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `cache`."""
    parser.add_argument("action", choices=("info", "clear"), help="what to do")
    parser.add_argument(
        "folder", metavar="DIR", nargs="?", help="the cache (default: ~/.cache/shardloader)"
    )


def run(options: argparse.Namespace) -> int:
    """Say what the cache holds, or remove what is not in use."""
    cache = _cache(options.folder)
    document: dict[str, Any] = {"folder": str(cache.folder)}
    if options.action == "clear":
        removed, removed_bytes = cache.clear()
        document |= {"removed": removed, "removed_bytes": removed_bytes}
    document |= asdict(cache.use())
    if options.json:
        report.print_json(document)
    else:
        _print(document)
    return 0


def _cache(folder: str | None) -> Cache:
    if folder is None:
        return default_cache()
    if not Path(folder).expanduser().is_dir():
        raise UsageError(f"a cache is a folder, and there is none at {folder!r}")
    return Cache(folder)


def _print(document: dict[str, Any]) -> None:
    facts = [("cache", report.printable(document["folder"]))]
    if "removed" in document:
        facts.append(("removed", _amount(document["removed"], document["removed_bytes"])))
    report.print_facts(
        (
            *facts,
            ("holds", _amount(document["tars"], document["tar_bytes"])),
            ("of them in use", _amount(document["used"], document["used_bytes"])),
            ("being written", _amount(document["parts"], document["part_bytes"])),
            ("needed next", _needed(document)),
        )
    )


def _needed(document: dict[str, Any]) -> str:
    readers = report.plural(document["readers"], "reader")
    return f"{_amount(document['needed'], document['needed_bytes'])}, by {readers}"


def _amount(count: int, num_bytes: int) -> str:
    return f"{report.plural(count, 'tar')}, {report.size(num_bytes)}"
