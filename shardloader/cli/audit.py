"""`shardloader audit`: does what ranks logged add up to every sample once in every epoch?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardloader.cli import report
from shardloader.planning.audit import audit_logs

if TYPE_CHECKING:
    import argparse

    from shardloader.planning.audit import EpochAudit, History

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that should not have happened, in one word and in words."""

    kind: str
    epoch: int
    message: str


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
    faults = find_faults(history, unfinished=options.unfinished)
    if options.json:
        report.print_json(_document(history, faults))
    else:
        _print(options, history, faults)
    return 1 if faults else 0


def find_faults(history: History, *, unfinished: bool = False) -> list[Fault]:
    """Give what is wrong with a history, epoch by epoch."""
    faults: list[Fault] = []
    for each in history.epochs:
        is_running = unfinished and each is history.epochs[-1]
        faults += _of_epoch(each, allowed=history.num_samples if is_running else each.may_lack)
    faults += [
        Fault(
            kind="same_order",
            epoch=second,
            message=f"epochs {first} and {second} were read in the same order",
        )
        for first, second in history.repeated_orders
    ]
    if not history.epochs:
        faults.append(Fault(kind="nothing", epoch=0, message="no rank received a batch"))
    return faults


def _of_epoch(each: EpochAudit, *, allowed: int) -> list[Fault]:
    tally = each.tally
    kinds = (
        ("missing", tally.missing if tally.missing.size > allowed else tally.missing[:0]),
        ("repeated", tally.repeated),
        ("unknown", tally.unknown),
    )
    words = {
        "missing": "never read",
        "repeated": "read as valid more than once",
        "unknown": "read that the dataset does not hold",
    }
    return [
        Fault(
            kind=kind,
            epoch=each.epoch,
            message=f"epoch {each.epoch}: {report.plural(found.size, 'sample')} {words[kind]}: "
            f"{report.some(found[: report.SOME].tolist(), found.size)}",
        )
        for kind, found in kinds
        if found.size
    ]


def _document(history: History, faults: list[Fault]) -> dict[str, Any]:
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
            {"kind": fault.kind, "epoch": fault.epoch, "message": fault.message} for fault in faults
        ],
    }


def _print(options: argparse.Namespace, history: History, faults: list[Fault]) -> None:
    report.print_facts(
        (
            ("logs", report.printable(options.logs)),
            ("dataset", report.plural(history.num_samples, "sample")),
            ("attempts", report.number(history.attempts)),
            (
                "superseded",
                report.plural(history.superseded, "batche").replace("batche ", "batch "),
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
        report.print_line(f"FAULT  {fault.message}")
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
