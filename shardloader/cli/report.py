"""How does a command speak: numbers, tables, JSON, progress, and messages?

stdout is for the result, stderr for everything else. Text from data (keys, names) goes through
`printable`, since a name may hold what a terminal obeys or no encoding can write.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tqdm import tqdm

SOME = 5  # of a long list, so many are shown

_UNITS = ("kB", "MB", "GB", "TB", "PB")
_ARGUMENT = re.compile(
    r"\b(index_dir|grid|steps_per_epoch|max_samples|max_bytes|max_expansion|max_window|pattern"
    r"|storage_options)="
)


def number(value: float) -> str:
    """Give a number with thousands apart.

    >>> number(1234567), number(2.5)
    ('1,234,567', '2.5')
    """
    return f"{value:,}"


def size(num_bytes: float) -> str:
    """Give a size in the largest unit that leaves at least 1; units are powers of 1000.

    >>> size(999), size(1_250_000)
    ('999 bytes', '1.25 MB')
    """
    if num_bytes < 1000:
        return f"{num_bytes:.0f} bytes"
    unit = -1
    while num_bytes >= 1000 and unit + 1 < len(_UNITS):
        num_bytes /= 1000
        unit += 1
    return f"{num_bytes:.4g} {_UNITS[unit]}"


def plural(count: int, word: str, ending: str = "s") -> str:
    """Give a count with its word.

    >>> plural(1, "shard"), plural(2000, "shard")
    ('1 shard', '2,000 shards')
    """
    return f"{number(count)} {word}{'' if count == 1 else ending}"


def some(items: Sequence[Any], total: int | None = None) -> str:
    """Give the first few of a list, and how many more there are."""
    total = len(items) if total is None else total
    shown = ", ".join(printable(str(item)) for item in items[:SOME])
    more = total - min(len(items), SOME)
    return f"{shown} and {number(more)} more" if more else shown


def printable(text: str) -> str:
    r"""Give a text on one line, with escapes for what can't be printed.

    >>> printable("a\nb\udcff")
    'a\\nb\\udcff'
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def print_json(document: Any) -> None:
    """Print one JSON document, in ASCII."""
    print(json.dumps(document, indent=2))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one a line."""
    facts = list(facts)
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        _print(f"{name.ljust(width)}  {value}".rstrip())


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    indent: int = 0,
    notes: Sequence[Sequence[str]] = (),
) -> None:
    """Print rows under a header; columns that hold numbers only are set to the right.

    notes: for each row, lines that stand below it.
    """
    rows = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    right = [all(map(_is_number, column)) for column in zip(*rows, strict=True)] or [False] * len(
        header
    )
    below = [(), *notes] if notes else [()] * (1 + len(rows))
    for row, lines in zip([list(header), *rows], below, strict=True):
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        _print((" " * indent + "  ".join(cells)).rstrip())
        for line in lines:
            _print(" " * (indent + 4) + line)


def print_line(text: str) -> None:
    """Print one line of the result."""
    _print(text)


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(",", "").replace(".", "").isdecimal()


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def print_error(message: str) -> None:
    """Print an error, where programs print theirs."""
    print(f"shardloader: error: {printable(message)}", file=sys.stderr)


_SWITCHES = {
    "overwrite=True": "--overwrite",
    "append=True": "--append",
    "kind=": "--from",
    "class_map=": "--class-map",
    "prefix_keys=": "--prefix-keys",
    "include=": "--include",
}


def as_options(message: str) -> str:
    """Give a message of the library in the command line's words.

    >>> as_options("give index_dir=, a folder, or overwrite=True")
    'give --index-dir, a folder, or --overwrite'
    """
    for argument, option_name in _SWITCHES.items():
        message = message.replace(argument, option_name)

    def option(match: re.Match[str]) -> str:
        follows = message[match.end() : match.end() + 1]
        return f"--{match[1].replace('_', '-')}{' ' if follows.isalnum() else ''}"

    return _ARGUMENT.sub(option, message)


def progress(total: int | None, *, unit: str, what: str) -> tqdm[Any]:
    """Give a bar on stderr, which says nothing where that is no terminal."""
    from tqdm import tqdm

    return tqdm(
        total=total,
        unit=unit,
        desc=what,
        disable=None,
        unit_scale=True,
        file=sys.stderr,
        leave=False,
        dynamic_ncols=True,
    )


@contextmanager
def logging_to_stderr(*, verbose: bool) -> Iterator[None]:
    """Show the library's log on stderr meanwhile: warnings, or everything from info on."""
    logger = logging.getLogger("shardloader")
    level = logger.level
    handler = _ToStderr()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _ToStderr(logging.Handler):
    """Writes records as the command's own messages, past a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        tqdm.write(f"shardloader: {level}{printable(record.getMessage())}", file=sys.stderr)
