"""`shardloader audit`: does what ranks logged add up to every sample once in every epoch?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardloader.cli import report
from shardloader.planning.audit import audit_logs

if TYPE_CHECKING:
    import argparse

    from shardloader.planning.audit import Fault, History

EPILOG = """\
LOGS is the folder that was given to loader.log_samples(folder): one file a rank and launch. What
an attempt read at or after the place where a later attempt starts was rolled back with the model;
it is superseded, and counts no more. Exit code 1 if a sample is missing, was repeated as valid or
is unknown, or if two epochs were read in the same order. What even="drop" leaves out is no fault.
With steps_per_epoch it counts passes over the data, the last of which need not be whole.

example:
  shardloader audit logs/
  shardloader audit logs/ --unfinished
  shardloader audit logs/ --json
"""

NUM_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `audit`."""
    parser.add_argument("logs", metavar="LOGS", help="the folder that ranks logged to")
    parser.add_argument(
        "--unfinished",
        action="store_true",
        help="the last epoch is still running: what is missing in it is yet to come",
    )


def run(options: argparse.Namespace) -> int:
    """Audit, and return 1 if there is a fault."""
    history = audit_logs(options.logs)
    faults = history.faults(unfinished=options.unfinished)
    if options.json:
        report.print_json(_document(history, faults))
    else:
        _print(options, history, faults)
    return 1 if faults else 0


def _message(fault: Fault) -> str:
    """Say a fault in words."""
    if fault.kind == "nothing":
        return "no rank received a batch"
    if fault.kind == "lost":
        samples = report.plural(int(fault.numbers[0]), "sample")
        return f"epoch {fault.epoch}: {samples} in no log, of steps that every rank has passed"
    if fault.kind == "same_order":
        return f"epochs {fault.numbers[0]} and {fault.epoch} were read in the same order"
    words = {
        "missing": "never read",
        "repeated": "read as valid more than once",
        "unknown": "read that the dataset does not hold",
    }
    numbers = fault.numbers
    return (
        f"epoch {fault.epoch}: {report.plural(numbers.size, 'sample')} {words[fault.kind]}: "
        f"{report.some(numbers[: report.SOME].tolist(), numbers.size)}"
    )


def _document(history: History, faults: tuple[Fault, ...]) -> dict[str, Any]:
    return {
        "is_exact": not faults,
        "attempts": history.attempts,
        "superseded_batches": history.superseded,
        "dataset_samples": history.num_samples,
        "counts_passes": history.counts_passes,
        "epochs": [
            {
                "epoch": each.epoch,
                "steps": each.steps,
                "samples": each.tally.samples,
                "distinct": each.tally.distinct,
                "may_lack": each.may_lack,
                "pads": each.tally.pads,
                **{
                    name: {
                        "count": int(getattr(each.tally, name).size),
                        "first": getattr(each.tally, name)[:NUM_SHOWN].tolist(),
                    }
                    for name in ("missing", "repeated", "unknown")
                },
            }
            for each in history.epochs
        ],
        "repeated_orders": [list(pair) for pair in history.repeated_orders],
        "faults": [
            {"kind": each.kind, "epoch": each.epoch, "message": _message(each)} for each in faults
        ],
    }


def _print(options: argparse.Namespace, history: History, faults: tuple[Fault, ...]) -> None:
    report.print_facts(
        (
            ("logs", report.printable(options.logs)),
            ("dataset", report.plural(history.num_samples, "sample")),
            ("attempts", report.number(history.attempts)),
            (
                "superseded",
                report.plural(history.superseded, "batch", "es"),
            ),
            ("orders", _orders(history)),
        )
    )
    report.print_line("")
    columns = ("samples", "pads", "missing", "repeated", "unknown")
    rows = [
        [
            str(each.epoch),
            report.number(each.steps),
            report.number(each.tally.samples),
            report.number(each.tally.pads),
            *(report.number(getattr(each.tally, name).size) for name in columns[2:]),
        ]
        for each in history.epochs
    ]
    report.print_table(["pass" if history.counts_passes else "epoch", "steps", *columns], rows)
    report.print_line("")
    for fault in faults:
        report.print_line(f"FAULT  {_message(fault)}")
    if any(fault.kind == "missing" and fault.epoch == history.epochs[-1].epoch for fault in faults):
        report.print_line("(if the last epoch is still being read: --unfinished)")
    if not faults:
        report.print_line(_verdict(options, history))


def _orders(history: History) -> str:
    if len(history.epochs) < 2:
        return "of one epoch: nothing to compare"
    if history.repeated_orders:
        pairs = report.some([f"{first} and {second}" for first, second in history.repeated_orders])
        return f"the same in epochs {pairs}"
    return "no two epochs alike"


def _verdict(options: argparse.Namespace, history: History) -> str:
    to_come = history.epochs[-1].tally.missing.size
    if options.unfinished and to_come:
        epoch = history.epochs[-1].epoch
        return f"exact so far: every sample once, {to_come:,} of epoch {epoch} yet to come"
    lacking = [each for each in history.epochs if each.tally.missing.size]
    if lacking:
        most = max(each.may_lack for each in lacking)
        return f"exact: no sample twice, and no more than {most:,} left out, as was asked for"
    return "exact: every sample once in every epoch"
