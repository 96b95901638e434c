"""`shardloader audit`: do the logs add up to every sample once, each where the plan has it?"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from shardloader.cli import report
from shardloader.cli.sources import (
    HELP,
    add_dataset,
    one_dataset,
)
from shardloader.errors import UsageError
from shardloader.planning.audit import audit_logs
from shardloader.planning.history import FAULTS
from shardloader.reading.catalog import open_catalog

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shardloader.planning.history import EpochAudit, Fault, History
    from shardloader.reading.catalog import Catalog

EPILOG = """\
LOGS is the folder that was given to loader.log_samples(folder): one file a rank and launch. With
SRC, the dataset that was read, every logged row is compared with the plan for its rank and step;
the manifest is enough, no shard is read. Where shards were appended meanwhile, an epoch is compared
with the dataset that it was read from, whose manifest was kept. What an attempt read at or after
the place where a later attempt starts was rolled back with the model; it is superseded, and counts
no more. Exit code 1 if a sample is missing, was repeated as valid, is unknown or not where the plan
has it, if a rank left no log, or if two epochs were read in the same order. What even="drop" leaves
out or loader.skip skipped is no fault, nor is a sample that was bad, under on_error="skip", or
refused by the transform: it was come to, and it is counted. With steps_per_epoch it counts passes
over the data, the last of which need not be whole.

example:
  shardloader audit logs/ corpus/
  shardloader audit logs/
  shardloader audit logs/ corpus/ --unfinished
  shardloader audit logs/ --json
"""

NUM_SHOWN = 10

_KINDS: Final = {"bad": "were bad", "refused": "were refused by the transform"}

_UNCOMPARED: Final = "rows were not compared with it: name the dataset too, shardloader audit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `audit`."""
    parser.add_argument("logs", metavar="LOGS", help="the folder that ranks logged to")
    add_dataset(parser, help_text=f"the dataset that was read: {HELP}", is_optional=True)
    parser.add_argument(
        "--unfinished",
        action="store_true",
        help="the last epoch is still running: what is missing in it is yet to come",
    )


def run(options: argparse.Namespace) -> int:
    """Audit, and return 1 if there is a fault."""
    history = audit_logs(options.logs, _dataset(options), watch=_bar)
    faults = history.faults(unfinished=options.unfinished)
    if options.json:
        report.print_json(_document(history, faults))
    else:
        _print(options, history, faults)
    return 1 if faults else 0


def _dataset(options: argparse.Namespace) -> Catalog | None:
    if options.source:
        source = one_dataset(options.source)
        return open_catalog(
            source,
            index_dir=options.index_dir,
            may_index=False,
            storage_options=options.storage_options,
        )
    if options.index_dir is not None:
        raise UsageError("--index-dir says where a dataset's manifest lies: give SRC with it")
    return None


@contextmanager
def _bar(what: str, unit: str, total: int) -> Iterator[Callable[[int], Any]]:
    with report.progress(total, unit=unit, what=what) as bar:
        yield bar.update


def _message(fault: Fault) -> str:
    """Say a fault in words."""
    numbers = fault.numbers
    if fault.kind == "nothing":
        return FAULTS[fault.kind]
    if fault.kind == "lost":
        samples = report.plural(int(numbers[0]), "sample")
        return f"epoch {fault.epoch}: {samples} {FAULTS[fault.kind]}"
    if fault.kind == "same_order":
        return f"epochs {numbers[0]} and {fault.epoch} were read in the same order"
    some = report.some(numbers[: report.SOME].tolist(), numbers.size)
    if fault.kind == "no_log":
        return (
            f"launch {fault.launch}, which read from epoch {fault.epoch} on: "
            f"{report.plural(numbers.size, 'rank')} without a log: {some} (every rank calls "
            "log_samples; bring all their files to one folder)"
        )
    where = ", in steps that were rolled back" if fault.is_superseded else ""
    samples = report.plural(numbers.size, "sample")
    return f"epoch {fault.epoch}{where}: {samples} {FAULTS[fault.kind]}: {some}"


def _counted(numbers: NDArray[Any]) -> dict[str, Any]:
    return {"count": int(numbers.size), "first": numbers[:NUM_SHOWN].tolist()}


def _document(history: History, faults: tuple[Fault, ...]) -> dict[str, Any]:
    return {
        "is_exact": not faults,
        "is_compared": history.is_compared,
        "attempts": history.attempts,
        "superseded_batches": history.superseded,
        "dataset_samples": history.num_samples,
        "counts_passes": history.counts_passes,
        "epochs": [_epoch_document(history, each) for each in history.epochs],
        "repeated_orders": [list(pair) for pair in history.repeated_orders],
        "faults": [
            {"kind": each.kind, "epoch": each.epoch, "message": _message(each)} for each in faults
        ],
    }


def _epoch_document(history: History, epoch: EpochAudit) -> dict[str, Any]:
    compared = {"out_of_place": epoch.out_of_place, "mask": epoch.mismarked}
    return {
        "epoch": epoch.epoch,
        "steps": epoch.steps,
        "samples": epoch.num_given,
        "distinct": epoch.tally.distinct,
        "bad": _counted(epoch.bad),
        "refused": _counted(epoch.refused),
        "may_lack": epoch.may_lack,
        "skipped": epoch.skipped,
        "pads": epoch.tally.pads,
        "missing": _counted(epoch.tally.missing),
        "repeated": _counted(epoch.tally.repeated),
        "unknown": _counted(epoch.tally.unknown),
        **{
            name: _counted(numbers) if history.is_compared else None
            for name, numbers in compared.items()
        },
    }


def _print(options: argparse.Namespace, history: History, faults: tuple[Fault, ...]) -> None:
    report.print_facts(
        (
            ("logs", report.printable(options.logs)),
            ("dataset", report.plural(history.num_samples, "sample")),
            ("attempts", report.number(history.attempts)),
            ("superseded", report.plural(history.superseded, "batch", "es")),
            ("plan", _plan(options, history)),
            ("orders", _orders(history)),
        )
    )
    report.print_line("")
    columns = (
        "steps",
        "samples",
        *_faulty(history),
        "pads",
        "missing",
        "repeated",
        "unknown",
        "out of place",
    )
    rows = [
        [
            str(each.epoch),
            report.number(each.steps),
            report.number(each.num_given),
            *(report.number(getattr(each, name).size) for name in _faulty(history)),
            report.number(each.tally.pads),
            report.number(each.tally.missing.size),
            report.number(each.tally.repeated.size),
            report.number(each.tally.unknown.size),
            report.number(each.out_of_place.size) if history.is_compared else "-",
            report.number(each.skipped),
        ]
        for each in history.epochs
    ]
    report.print_table(["pass" if history.counts_passes else "epoch", *columns, "skipped"], rows)
    report.print_line("")
    for fault in faults:
        report.print_line(f"FAULT  {_message(fault)}")
    if any(fault.kind == "missing" and fault.epoch == history.epochs[-1].epoch for fault in faults):
        report.print_line("(if the last epoch is still being read: --unfinished)")
    if not faults:
        report.print_line(_verdict(options, history))


def _faulty(history: History) -> tuple[str, ...]:
    """The kinds of samples that some epoch came to and did not give: columns of the table."""
    return tuple(
        kind for kind in _KINDS if any(getattr(each, kind).size for each in history.epochs)
    )


def _plan(options: argparse.Namespace, history: History) -> str:
    if not history.is_compared:
        return f"{_UNCOMPARED} {report.printable(options.logs)} SRC"
    differ = sum(each.out_of_place.size + each.mismarked.size for each in history.epochs)
    differ += sum(fault.numbers.size for fault in history.run_faults if fault.is_superseded)
    if differ:
        return f"{report.plural(differ, 'slot')} other than the plan has them"
    return "every row is what the plan has for its rank and step"


def _orders(history: History) -> str:
    if len(history.epochs) < 2:
        return "of one epoch: nothing to compare"
    if sum(each.is_comparable for each in history.epochs) < 2:
        return "not compared: the shuffle, or what was read, is too small to tell them apart"
    if history.repeated_orders:
        pairs = report.some([f"{first} and {second}" for first, second in history.repeated_orders])
        return f"the same in epochs {pairs}"
    return "no two epochs alike"


def _verdict(options: argparse.Namespace, history: History) -> str:
    text = _exactness(options, history)
    counts = {kind: sum(getattr(each, kind).size for each in history.epochs) for kind in _KINDS}
    told = [f"{counts[kind]:,} {words}" for kind, words in _KINDS.items() if counts[kind]]
    return (
        f"{text}; of them {' and '.join(told)}, and others in their slots, invalid"
        if told
        else text
    )


def _exactness(options: argparse.Namespace, history: History) -> str:
    in_place = ", in its place" if history.is_compared else ""
    to_come = history.epochs[-1].tally.missing.size if history.epochs else 0
    if options.unfinished and to_come:
        epoch = history.epochs[-1].epoch
        return (
            f"exact so far: every sample once{in_place}, {to_come:,} of epoch {epoch} yet to come"
        )
    lacking = [each for each in history.epochs if each.tally.missing.size]
    if lacking:
        most = max(each.may_lack for each in lacking)
        twice = "no sample twice, each in its place" if in_place else "no sample twice"
        return f"exact: {twice}, and no more than {most:,} left out, as was asked for"
    return f"exact: every sample once in every epoch{in_place}"
