"""What do webdataset and shardloader make of odd shards?

    python -m benchmarks.odd_shards [--out docs/odd_shards.md]

Every case of tests/cases goes through webdataset (`WebDataset(urls, shardshuffle=False)`, its
default handler) and through `ShardDataset(shards, shuffle=False, decode=None)`, each case in a
process of its own with a time limit, and what came is held against the case's right answer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import multiprocessing
import platform
import re
import shutil
import sys
import tempfile
import warnings
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from multiprocessing.connection import Connection

CASES = Path(__file__).parent.parent / "tests" / "cases"
LIMIT_S = 60
_NOTICE = re.compile(r"\((\w+)(?:, \d+ times)?; offset")


@dataclass(kw_only=True)
class Outcome:
    """What a loader gave for a case: samples as a case's JSON has them, and what it said."""

    samples: list[Any] = field(default_factory=list)
    error: str | None = None
    warned: list[str] = field(default_factory=list)


def _sample(key: str, fields: Iterable[tuple[str, bytes]]) -> dict[str, Any]:
    seen = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in fields
    }
    return {"__key__": key, "fields": seen}


def by_webdataset(paths: Sequence[str], outcome: Outcome) -> None:
    """Read with webdataset; its files of tar fields come as bytes."""
    import webdataset as wds

    for sample in wds.WebDataset(list(paths), shardshuffle=False, empty_check=False):
        fields = ((name, data) for name, data in sample.items() if not name.startswith("__"))
        outcome.samples.append(_sample(sample["__key__"], fields))


class _Notices(logging.Handler):
    """Collects the kinds of what is logged about shards."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome

    def emit(self, record: logging.LogRecord) -> None:
        """Note the kinds that a message names."""
        self.outcome.warned += _NOTICE.findall(record.getMessage())


def by_us(paths: Sequence[str], outcome: Outcome) -> None:
    """Read with shardloader, through the index that it makes first."""
    import shardloader as sl

    logging.getLogger("shardloader").addHandler(_Notices(outcome))
    dataset = sl.ShardDataset(list(paths), shuffle=False, decode=None)
    for sample in dataset:
        fields = ((name, data) for name, data in sample.items() if not name.startswith("__"))
        outcome.samples.append(_sample(sample["__key__"], fields))


def _tell(read: Callable[..., None], case: dict[str, Any], sender: Connection) -> None:
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="odd-shards-") as folder:
        for name in case["files"]:
            shutil.copyfile(CASES / name, Path(folder, name))
        paths = [str(Path(folder, name)) for name in case["files"]]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                read(paths, outcome)
            except Exception as error:  # noqa: BLE001  # whatever a loader raises is its answer
                kind = getattr(error, "kind", None)
                outcome.error = type(error).__name__ + (f" ({kind})" if kind else "")
        left_out = (DeprecationWarning, ResourceWarning)  # streams that are not closed: not of data
        about_data = [w for w in caught if not issubclass(w.category, left_out)]
        outcome.warned += [w.category.__name__ for w in about_data]
    sender.send(asdict(outcome))


def outcome_of(read: Callable[..., None], case: dict[str, Any]) -> Outcome:
    """What a loader makes of a case, in a process that may take so long and no longer."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_tell, args=(read, case, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(LIMIT_S):
            return Outcome(error=f"nothing in {LIMIT_S} s")
        return Outcome(**receiver.recv())
    except EOFError:
        return Outcome(error="the process died")
    finally:
        process.kill()
        process.join()


def is_right(outcome: Outcome, case: dict[str, Any]) -> bool:
    """Whether samples and error are those that are due, or also right."""
    for right in (case, *case["accept_also"]):
        samples = right["samples"]
        allowed = [samples, samples[:-1]] if case["last_group_optional"] else [samples]
        if right["error"] and outcome.error:
            # refusing a damaged shard before it gives a sample is a shorter prefix
            allowed = [samples[:count] for count in range(len(samples) + 1)]
        instead = right["warnings"] if case["error"] and not right["error"] else ()
        if not set(instead) <= set(outcome.warned):
            continue
        if bool(right["error"]) == bool(outcome.error) and outcome.samples in allowed:
            return True
    return False


def told(outcome: Outcome, case: dict[str, Any]) -> str:
    """An outcome in words."""
    count = len(outcome.samples)
    words = f"{count} sample{'' if count == 1 else 's'}"
    if outcome.error:
        words = f"{words}, then {outcome.error}" if count else outcome.error
    kinds = sorted(set(outcome.warned))
    if kinds:
        words += f"; warns: {', '.join(kinds)}"
    if not is_right(outcome, case):
        return f"**wrong**: {words}" + ("" if outcome.error else ", no error" * bool(case["error"]))
    missing = set(case["warnings"]) - set(kinds)
    return words + (", says nothing" if missing and not outcome.error else "")


def due(case: dict[str, Any]) -> str:
    """The right answer in words."""
    count = len(case["samples"])
    words = f"{count} sample{'' if count == 1 else 's'}"
    if case["error"]:
        words += f", error: {case['error']['kind']}"
    if case["warnings"]:
        words += f"; warning: {', '.join(case['warnings'])}"
    return words


def cases() -> list[dict[str, Any]]:
    """Every case, by its letter and name."""
    found = [json.loads(path.read_text()) for path in CASES.glob("*.json")]
    return sorted(found, key=lambda case: (case["case"], case["name"]))


def _import_all() -> None:
    """Import what the processes need, once, before they are forked."""
    import shardloader.dataset.shard_dataset
    import shardloader.reading.indexing  # noqa: F401


def our_column() -> dict[str, str]:
    """What we do, by case."""
    _import_all()
    return {case["name"]: told(outcome_of(by_us, case), case) for case in cases()}


def markdown() -> str:
    """The page."""
    import webdataset  # noqa: F401  # once, as above

    ours = our_column()
    rows = [
        (case["case"], case["name"], due(case), told(outcome_of(by_webdataset, case), case))
        for case in cases()
    ]
    wrong = [
        sum("**wrong**" in text for text in column)
        for column in ([r[3] for r in rows], ours.values())
    ]
    about = (
        "Shards of `tests/cases`, each a kind of trouble that users of loaders reported, read by\n"
        f"webdataset {version('webdataset')} and by shardloader {version('shardloader')} with their"
        f" default options\n(CPython {platform.python_version()}). Made by "
        "`python -m benchmarks.odd_shards`; a test holds that our column is\nwhat happens. "
        "*Wrong* is other samples than are due, an error where none is due, or none\nwhere one is: "
        f"{wrong[0]} of {len(rows)} for webdataset, {wrong[1]} for shardloader. shardloader indexes"
        " a shard before it\ngives a sample, so it refuses a damaged one at once. *Says nothing*: "
        "a warning was due."
    )
    head = "| case | shard | due | webdataset | shardloader |"
    lines = ["# Odd shards", "", about, "", head, "|---|---|---|---|---|"]
    lines += [
        f"| {c} | {name} | {right} | {theirs} | {ours[name]} |" for c, name, right, theirs in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page, or print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="a file; without it the page is printed")
    options = parser.parse_args()
    page = markdown()
    if options.out:
        options.out.write_text(page)
    else:
        sys.stdout.write(page)


if __name__ == "__main__":
    main()
