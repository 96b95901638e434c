"""`shardloader verify`: is every shard whole, and what its index and the manifest say?"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shardloader.cli import report
from shardloader.cli.sources import (
    add_dataset,
    add_limits,
    at_least_one,
    datasets,
    limits_of,
)
from shardloader.errors import UsageError
from shardloader.format.findings import FAULT, LEVELS, REMARK, WARNING
from shardloader.reading.verifying import verify_dataset

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from shardloader.format.findings import Finding
    from shardloader.reading.decode import DecodeTable
    from shardloader.reading.verifying import Verification

EPILOG = """\
Reads every shard's headers and compares them with its index and with the manifest: names, sizes,
counts and digests; and its bytes where the manifest has their digests (shards of `write`, or after
`index --digest`). It changes nothing and does not stop at the first fault. Each row says what was
expected, where, and which command mends it. A fault means that samples are lost, cut or not those
that were indexed, a warning that they may be; a remark is about a shard that reads as it should.
Several folders are several datasets; shards, as a shell gives them for corpus/*.tar, are one,
which has no manifest. Of a remote dataset every shard that is listed is fetched, a process at a
time one, into a temporary file.

Exit codes: 0 no fault (with --strict: no warning either), 1 a fault, 2 wrong use, 130 interrupted;
what was found until then is printed.

example:
  shardloader verify corpus/
  shardloader verify corpus/ --decode --workers 8
  shardloader verify corpus/ --strict --json
"""

INTERRUPTED: Final = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `verify`."""
    add_dataset(parser)
    parser.add_argument(
        "--workers",
        "--jobs",
        type=at_least_one,
        metavar="N",
        help="shards that are checked at a time, each in a process (default: one a CPU)",
    )
    parser.add_argument(
        "--decode",
        action="store_true",
        help="decode every field too, as ShardDataset does by default",
    )
    parser.add_argument(
        "--max-pixels",
        type=at_least_one,
        metavar="N",
        help="with --decode: images that claim more are faults (default: 89,478,485)",
    )
    add_limits(parser)
    parser.add_argument("--strict", action="store_true", help="fail on warnings as well")


def run(options: argparse.Namespace) -> int:
    """Verify every dataset, say what was found, and return how it ended."""
    sources = datasets(options)
    found: list[Verification] = []
    with _terminated_as_interrupted():
        for source in sources:
            found.append(_verified(source, options))
            if found[-1].is_interrupted:
                break
    is_interrupted = found[-1].is_interrupted
    if options.json:
        report.print_json(_document(found, num_sources=len(sources)))
    else:
        for each in found:
            _print(each)
    if is_interrupted:
        return INTERRUPTED
    failing = {FAULT, WARNING} if options.strict else {FAULT}
    return int(any(finding.level in failing for each in found for finding in each.findings))


def _verified(source: str | list[str], options: argparse.Namespace) -> Verification:
    with report.progress(None, unit="shard", what="verifying") as bar:

        def watch(total: int) -> Callable[[], object]:
            bar.reset(total)
            return partial(bar.update, 1)

        return verify_dataset(
            source,
            index_dir=options.index_dir,
            storage_options=options.storage_options,
            num_processes=options.workers,
            decode=_decoders(options),
            limits=limits_of(options),
            watch=watch,
        )


def _decoders(options: argparse.Namespace) -> DecodeTable | None:
    if not options.decode:
        if options.max_pixels is not None:
            raise UsageError("--max-pixels is a limit for --decode: give both")
        return None
    from shardloader.reading.decode import resolve
    from shardloader.reading.images import Jpeg, Png

    if options.max_pixels is None:
        return resolve("default")
    jpeg = Jpeg(max_pixels=options.max_pixels)
    png, mask = (Png(kind, max_pixels=options.max_pixels) for kind in ("png", "mask"))
    return resolve({"jpg": jpeg, "jpeg": jpeg, "png": png, "seg.png": mask, "mask.png": mask})


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end the work as Ctrl-C does, so that what was found is told."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _document(found: list[Verification], *, num_sources: int) -> dict[str, Any]:
    return {
        "is_sound": all(each.is_sound for each in found),
        "is_interrupted": found[-1].is_interrupted,
        "datasets_left": num_sources - len(found),
        "datasets": [
            {
                "source": each.location,
                "digest": each.digest,
                "shards": each.num_shards,
                "checked": each.num_checked,
                "samples": each.num_samples,
                "members": each.num_members,
                "bytes": each.num_bytes,
                "has_content_digests": each.has_content_digests,
                "is_sound": each.is_sound,
                **{f"{level}s": each.num_of(level) for level in LEVELS},
                "findings": [_row(finding) for finding in each.findings],
            }
            for each in found
        ],
    }


def _row(finding: Finding) -> dict[str, Any]:
    return {
        "level": finding.level,
        "kind": finding.kind,
        "shard": finding.shard,
        "place": finding.place,
        "offset": finding.offset,
        "times": finding.times,
        "told": finding.told,
        "mend": finding.mend,
    }


def _print(found: Verification) -> None:
    of_all = "" if found.num_checked == found.num_shards else f" of {found.num_shards:,}"
    report.print_facts(
        (
            ("dataset", report.printable(found.location)),
            ("digest", found.digest or "none: there is no manifest that can be read"),
            ("checked", f"{report.number(found.num_checked)}{of_all} shards"),
            ("samples", report.number(found.num_samples)),
            ("bytes", f"{report.size(found.num_bytes)}{_how(found)}"),
            ("found", ", ".join(report.plural(found.num_of(level), level) for level in LEVELS)),
        )
    )
    for level in (FAULT, WARNING, REMARK):
        _print_rows([each for each in found.findings if each.level == level])
    if found.is_interrupted:
        report.print_line("")
        report.print_line(
            f"interrupted: {report.plural(found.num_shards - found.num_checked, 'shard')} not "
            "checked"
        )


def _how(found: Verification) -> str:
    return ", compared with their digests" if found.has_content_digests else ""


def _print_rows(findings: list[Finding]) -> None:
    """Print findings as a table, each with what was expected and what mends it below its row."""
    if not findings:
        return
    report.print_line("")
    header = ("level", "kind", "shard", "byte", "times", "where")
    rows = [
        (
            finding.level,
            finding.kind,
            report.printable(finding.shard or "-"),
            "-" if finding.offset is None else str(finding.offset),
            report.number(finding.times),
            report.printable(finding.place or ""),
        )
        for finding in findings
    ]
    notes = [(report.printable(finding.told), f"mend: {finding.mend}") for finding in findings]
    report.print_table(header, rows, notes=notes)
