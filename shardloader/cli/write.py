"""`shardloader write`: writing what the options say, or foretelling what would come of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from shardloader.cli import report
from shardloader.cli.sources import add_storage_options, at_least_one, json_object
from shardloader.cli.written import document_of, print_document
from shardloader.errors import UsageError
from shardloader.writing.foretell import foretell
from shardloader.writing.job import make_job
from shardloader.writing.selection import Selection, parse_fraction, parse_keys
from shardloader.writing.sources.mapping import parse_choice
from shardloader.writing.sources.opening import KINDS, open_source
from shardloader.writing.write import run as run_job

if TYPE_CHECKING:
    import argparse

    from shardloader.writing.job import Job

_MOST_WORKERS = 8  # that are started unless more are asked for

EPILOG = """\
SRC is a folder of files (001.jpg, 001.cls and 001.seg.png make one sample with the fields jpg, cls
and seg.png), of class folders (--from classes), of tar shards to be written anew, or files of rows:
.jsonl, .jsonl.zst, .csv, .parquet, .arrow, or what Hugging Face's datasets saved. Rows become the
field json, or what --field says. Any of them may be a URL, which fsspec opens.

A write that was broken off is finished by the same command: finished shards are kept, and the
result is the same to the byte. --shuffle is a shuffle of all samples; it needs room in DST for a
second copy meanwhile. --workers changes no byte. A DST that is a URL, such as s3://bucket/corpus,
is written to by way of a local folder, --temporary: a shard appears there when all of it has come.

example:
  shardloader write photos/ corpus/ --shuffle 0
  shardloader write train/ corpus/ --from classes --max-samples 1000 --dry-run
  shardloader write rows.jsonl corpus/ --key id --field txt=text --field json=meta
  shardloader write data/ corpus/ --field jpg=image --field cls=label --workers 8
  shardloader write photos/ corpus/ --field jpg --field jpg=jpeg --field cls
  shardloader write old/ new/ --max-bytes 500MB --compression zstd
  shardloader write more/ corpus/ --append
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `write`."""
    parser.add_argument("source", metavar="SRC", nargs="+", help="folders, files, patterns or URLs")
    parser.add_argument("destination", metavar="DST", help="the folder for the shards, or its URL")
    _add_input(parser)
    _add_shards(parser)
    _add_compression(parser)
    _add_destination(parser)
    parser.add_argument(
        "--workers",
        type=at_least_one,
        default=min(_MOST_WORKERS, len(os.sched_getaffinity(0))),
        metavar="N",
        help="processes (default: one a CPU, at most 8; small inputs take one)",
    )
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="processes here, or tasks on a Ray cluster whose machines share DST (default: local)",
    )
    parser.add_argument(
        "--address", metavar="URL", help="the Ray cluster (default: one that is started here)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be written, and write nothing"
    )


def _add_input(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("input")
    group.add_argument(
        "--from", dest="kind", choices=KINDS, help="what SRC is, where its names don't tell"
    )
    group.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="FIELD[=COLUMN]",
        help="write this field, from that column or field (repeatable, also with one FIELD and "
        "several columns, of which a sample has one; default: see below)",
    )
    group.add_argument("--key", metavar="COLUMN", help="the column that holds the keys of rows")
    group.add_argument(
        "--prefix-keys", action="store_true", help="put the shard's name before keys of shards"
    )
    group.add_argument(
        "--class-map",
        metavar="FILE",
        help="a JSON of class folders and their numbers (default: numbered by name)",
    )
    group.add_argument(
        "--include",
        action="append",
        metavar="GLOB",
        help="files of a folder that match: their names, or with a '/' their paths (repeatable)",
    )
    group.add_argument(
        "--select", action="append", metavar="GLOB", help="samples whose key matches (repeatable)"
    )
    group.add_argument(
        "--keys-from", metavar="FILE", help="samples whose key is a line of this file"
    )
    group.add_argument(
        "--fraction",
        default="0:1",
        metavar="FROM:TO",
        help="a part of the samples, by key: 0:0.9 and 0.9:1 share nothing and are all",
    )
    add_storage_options(group)
    group.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="a bad sample is an error, or is left out with a line in refused.jsonl (default: "
        "raise)",
    )


def _add_shards(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("shards")
    group.add_argument(
        "--pattern",
        default="shard-{:06d}.tar",
        help="the shards' names, such as out-%%06d.tar (default: %(default)s)",
    )
    group.add_argument(
        "--max-samples",
        type=at_least_one,
        default=10_000,
        metavar="N",
        help="samples a shard at most (default: %(default)s)",
    )
    group.add_argument(
        "--max-bytes",
        default="1GB",
        metavar="SIZE",
        help="a shard's size at most, such as 200MB or 1GiB (default: %(default)s)",
    )
    group.add_argument(
        "--shuffle", type=int, metavar="SEED", help="write the samples in an order drawn from SEED"
    )


def _add_compression(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("compression")
    group.add_argument(
        "--compression", choices=("zstd",), help="write .tar.zst shards (default: plain .tar)"
    )
    group.add_argument("--level", type=int, metavar="N", help="zstd's level (default: 3)")
    group.add_argument(
        "--frame-samples",
        type=at_least_one,
        metavar="N",
        help="samples compressed and read together, 16 MiB of them at most (default: 64)",
    )


def _add_destination(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("destination")
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the shards of this pattern that DST holds, once the first new one is whole",
    )
    group.add_argument(
        "--append", action="store_true", help="add shards to the dataset that DST holds"
    )
    group.add_argument(
        "--destination-options",
        type=json_object,
        metavar="JSON",
        help="fsspec's options for a DST that is a URL",
    )
    group.add_argument(
        "--temporary",
        metavar="DIR",
        help="where shards for a DST that is a URL lie until they are there (default: the "
        "system's folder for temporary files)",
    )


def run(options: argparse.Namespace) -> int:
    """Write, or say what writing would do."""
    job, started = _job(options), time.perf_counter()
    with _Bar() as bar:
        done = (foretell if options.dry_run else run_job)(job, progress=bar)
    document = document_of(options, done, time.perf_counter() - started)
    if options.json:
        report.print_json(document)
    else:
        print_document(options, document)
    would_fail = document["refused"] and options.on_error == "raise"
    would_fail |= not document["samples"] and not document["was_done"]
    return 1 if options.dry_run and would_fail else 0


def _job(options: argparse.Namespace) -> Job:
    include = {} if options.include is None else {"include": options.include}
    source = open_source(
        options.source,
        kind=options.kind,
        choice=parse_choice(options.key, options.field),
        class_map=None if options.class_map is None else _class_map(Path(options.class_map)),
        prefix_keys=options.prefix_keys,
        storage_options=options.storage_options,
        **include,
    )
    keys = None
    if options.keys_from is not None:
        keys = parse_keys(Path(options.keys_from).read_bytes(), name=options.keys_from)
    selection = Selection(
        keys=keys,
        patterns=tuple(options.select or ()),
        fraction=parse_fraction(options.fraction),
    )
    return make_job(
        source,
        options.destination,
        pattern=options.pattern,
        max_samples=options.max_samples,
        max_bytes=options.max_bytes,
        **_compression(options),
        selection=selection,
        on_error=options.on_error,
        shuffle=options.shuffle,
        overwrite=options.overwrite,
        append=options.append,
        workers=options.workers,
        engine=options.engine,
        address=options.address,
        storage_options=options.destination_options,
        temporary=options.temporary,
    )


def _compression(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked of the compression; refuses a level, say, of shards that have none."""
    asked = {"compression_level": options.level, "frame_samples": options.frame_samples}
    given = {name: value for name, value in asked.items() if value is not None}
    if given and options.compression is None:
        raise UsageError(
            "--level and --frame-samples say how zstd compresses, and shards are written plain: "
            "give --compression zstd with them, or leave them out"
        )
    return given | {"compression": options.compression}


def _class_map(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"{path}: a class map is JSON: {error}") from None
    if not isinstance(found, dict) or not all(type(number) is int for number in found.values()):
        raise UsageError(f'{path}: a class map is a JSON object such as {{"cat": 0, "dog": 1}}')
    return found


class _Bar:
    """A bar for each pass, with rate and time left; silent where that is no terminal."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._num_samples = 0

    def begin(self, what: str, num_bytes: int) -> None:
        self._close()
        self._num_samples = 0
        self._bar = report.progress(num_bytes, unit="B", what=what)

    def advance(self, num_samples: int, num_bytes: int) -> None:
        self._num_samples += num_samples
        self._bar.set_postfix_str(report.plural(self._num_samples, "sample"), refresh=False)
        self._bar.update(num_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
