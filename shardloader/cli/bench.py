"""`shardloader bench`: how fast does a dataset load here, and with which options?"""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from shardloader.cli import report
from shardloader.cli.info import field_uses
from shardloader.cli.measuring import WORDS_OF_DECODE, measure_all
from shardloader.cli.sources import (
    add_cache,
    add_dataset,
    at_least_one,
    cache_of,
    field_names,
    one_dataset,
)
from shardloader.errors import UsageError
from shardloader.order.window import DEFAULT_WINDOW
from shardloader.planning.recommend import Measured, Setting, recommend
from shardloader.reading.catalog import open_catalog
from shardloader.reading.indexing import index_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardloader.planning.recommend import Figure, Recommendation
    from shardloader.reading.catalog import Catalog

EPILOG = """\
Without --seconds everything takes about half a minute; with it, `shardloader bench corpus/` takes
as many seconds as there are lines in its table, times --rounds, and some for starting.

Each line of the table is one setting. "bytes" is reading alone: fields come as their bytes, nothing
is decoded or transformed. "samples/s" and "MB/s" (of the fields' bytes in the shards) are medians
of the rounds, the spread is their least and most. The first batch is counted from making the
dataset, and so has in it the start of workers, but not Python's imports. Memory is the most that
the process and its workers take together, besides those imports and the page cache. "CPU" is the
time of all threads and workers, "loop's thread" the part of it in the thread that asks for batches.

Your training code is not run, and a function can't be given on a command line: --transform and
--decode name one as MODULE:NAME, whose module is imported from the current folder. What is read
comes from the page cache where it was read before: a slow disk is not measured. One of several
ranks on a node has its share of the cores: `taskset -c 0-7 shardloader bench corpus/` measures with
eight.

example:
  shardloader bench corpus/ --seconds 0.2 --rounds 1
  shardloader bench corpus/ --batch-size 32,64 --num-workers 0 --seconds 0.1 --rounds 1 --json
"""

ALL_S: Final = 12.0  # of reading in all, where --seconds is not given
LEAST_S, MOST_S = 0.2, 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `bench`."""
    add_dataset(parser)
    add_cache(parser)
    _add_what_is_read(parser)
    varied = parser.add_argument_group("what is compared")
    varied.add_argument(
        "--batch-size",
        metavar="N[,N]",
        type=_sizes,
        default=(32,),
        help="samples a batch; several are compared (default: 32)",
    )
    varied.add_argument(
        "--num-workers",
        metavar="N[,N]",
        type=_workers,
        help="worker processes; 0 is always among them (default: 0, 1, half the cores, all)",
    )
    length = parser.add_argument_group("how long")
    length.add_argument(
        "--seconds", metavar="S", type=_seconds, help="of each measurement (default: see below)"
    )
    length.add_argument(
        "--rounds", metavar="N", type=at_least_one, default=3, help="of all (default: 3)"
    )


def _add_what_is_read(parser: argparse.ArgumentParser) -> None:
    reading = parser.add_argument_group("what is read")
    reading.add_argument(
        "--fields", metavar="A,B", type=field_names, help="the fields to read (default: all)"
    )
    reading.add_argument(
        "--decode",
        metavar="HOW",
        type=_decode,
        default="default",
        help=(
            "default: by the fields' extensions; none: bytes; MODULE:NAME: a mapping of yours, as "
            "ShardDataset(decode=) takes it (default: default)"
        ),
    )
    reading.add_argument(
        "--transform",
        metavar="MODULE:NAME",
        help="a function of yours, run on each sample as ShardDataset(transform=) does",
    )
    reading.add_argument(
        "--window",
        type=at_least_one,
        metavar="N",
        default=DEFAULT_WINDOW,
        help=f"samples of the shuffle's window (default: {DEFAULT_WINDOW})",
    )


def run(options: argparse.Namespace) -> int:
    """Measure, and say what comes out."""
    catalog = open_catalog(
        one_dataset(options.source),
        index_dir=options.index_dir,
        cache=cache_of(options),
        storage_options=options.storage_options,
    )
    if catalog.manifest.num_samples == 0:
        raise UsageError(f"{catalog.location} has no samples, and there is nothing to measure")
    cores = len(os.sched_getaffinity(0))
    settings = _settings(options, cores)
    seconds = options.seconds or _seconds_each(len(settings) * options.rounds)
    measured = measure_all(options, settings, seconds)
    document = _document(options, catalog, measured, recommend(measured, cores=cores))
    document["machine"] = {"cores": cores}
    document["options"]["seconds"] = seconds
    if options.json:
        report.print_json(document)
    else:
        _print(document)
    return 0


def _settings(options: argparse.Namespace, cores: int) -> list[Setting]:
    """What is compared: for each batch size the bytes alone, and each number of workers."""
    workers = options.num_workers or tuple(sorted({0, 1, cores // 2, cores}))
    settings = []
    for batch_size in options.batch_size:
        if options.decode != "none" or options.transform is not None:
            settings.append(Setting(batch_size=batch_size, num_workers=0, is_raw=True))
        settings += [Setting(batch_size=batch_size, num_workers=each) for each in workers]
    return settings


def _seconds_each(num_measurements: int) -> float:
    return round(min(MOST_S, max(LEAST_S, ALL_S / num_measurements)), 2)


def _document(
    options: argparse.Namespace,
    catalog: Catalog,
    measured: Sequence[Measured],
    recommended: Recommendation,
) -> dict[str, Any]:
    sample_bytes = _sample_bytes(catalog, options.fields)
    return {
        "dataset": {
            "source": catalog.location,
            "shards": catalog.num_shards,
            "samples": catalog.manifest.num_samples,
            "digest": catalog.manifest.digest,
            "bytes_a_sample": round(sample_bytes, 1),
        },
        "options": {
            "fields": options.fields,
            "decode": options.decode,
            "transform": options.transform,
            "window": options.window,
            "rounds": options.rounds,
        },
        "measured": [
            {
                **asdict(each.setting),
                "samples_per_s": each.rate.to_json(),
                "bytes_per_s": _times(each.rate, sample_bytes),
                "first_batch_s": each.first_batch.to_json(),
                "memory_bytes": None if each.memory is None else each.memory.to_json(),
                "cpu_s_per_1000": _times(each.cpu, 1000),
                "loop_cpu_s_per_1000": _times(each.loop_cpu, 1000),
            }
            for each in measured
        ],
        "recommended": asdict(recommended),
    }


def _sample_bytes(catalog: Catalog, fields: Sequence[str] | None) -> float:
    """The mean bytes of a sample's fields, from some indexes."""
    every = max(1, catalog.num_shards // report.SOME)
    names = catalog.manifest.names[::every]
    indexes = [each for name in names if (each := index_at(catalog.source, name)) is not None]
    total = sum(
        use.mean * use.num_samples
        for use in field_uses(indexes)
        if fields is None or use.name in fields
    )
    return total / max(1, sum(index.num_samples for index in indexes))


def _times(figure: Figure, factor: float) -> dict[str, float]:
    return {name: value * factor for name, value in figure.to_json().items()}


def _print(document: dict[str, Any]) -> None:
    dataset, asked = document["dataset"], document["options"]
    fields = "all" if asked["fields"] is None else ", ".join(map(report.printable, asked["fields"]))
    samples = report.plural(dataset["samples"], "sample")
    shards = report.plural(dataset["shards"], "shard")
    report.print_facts(
        (
            ("dataset", f"{report.printable(dataset['source'])} ({shards}, {samples})"),
            ("fields", f"{fields}, {report.size(dataset['bytes_a_sample'])} a sample"),
            ("decode", report.printable(asked["decode"])),
            ("transform", report.printable(asked["transform"] or "none: yours is not in this")),
            ("cores", report.number(document["machine"]["cores"])),
            (
                "measured",
                f"{report.plural(asked['rounds'], 'round')} of {asked['seconds']} s each",
            ),
        )
    )
    report.print_line("")
    report.print_table(_HEADER, [_cells(each, asked["decode"]) for each in document["measured"]])
    report.print_line("")
    told = document["recommended"]
    options = [f"batch_size={told['batch_size']}", f"num_workers={told['num_workers']}"]
    if told["persistent_workers"]:
        options.append("persistent_workers=True")
    report.print_line(f"recommended: ShardLoader(dataset, {', '.join(options)})")
    for reason in told["reasons"]:
        report.print_line(f"- {reason}")


_HEADER: Final = (
    "batch",
    "workers",
    "gives",
    "samples/s",
    "spread",
    "MB/s",
    "first batch",
    "memory",
    "CPU a 1,000",
    "loop's thread",
)


def _cells(each: dict[str, Any], decode: str) -> list[str]:
    rate, memory = each["samples_per_s"], each["memory_bytes"]
    return [
        report.number(each["batch_size"]),
        report.number(each["num_workers"]),
        "bytes" if each["is_raw"] or decode == "none" else "values",
        f"{rate['median']:,.0f}",
        f"{rate['least']:,.0f} to {rate['most']:,.0f}",
        f"{each['bytes_per_s']['median'] / 1e6:,.1f}",
        f"{each['first_batch_s']['median']:.3f} s",
        "-" if memory is None else report.size(memory["median"]),
        f"{each['cpu_s_per_1000']['median']:.4f} s",
        f"{each['loop_cpu_s_per_1000']['median']:.4f} s",
    ]


def _decode(text: str) -> str:
    """Parse what --decode takes, for argparse."""
    if text not in WORDS_OF_DECODE and ":" not in text:
        raise argparse.ArgumentTypeError(f"default, none or MODULE:NAME, not {text!r}")
    return text


def _sizes(text: str) -> tuple[int, ...]:
    """Parse batch sizes, for argparse."""
    return tuple(sorted({at_least_one(each) for each in text.split(",")}))


def _workers(text: str) -> tuple[int, ...]:
    """Parse numbers of workers, for argparse; 0 is what the others are compared with."""
    counts = {0 if each.strip() == "0" else at_least_one(each) for each in text.split(",")}
    return tuple(sorted({0, *counts}))


def _seconds(text: str) -> float:
    """Parse seconds, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError(f"seconds, above 0 and at most 600, not {text!r}")
    return value
