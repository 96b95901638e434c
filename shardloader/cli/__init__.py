"""What does `shardloader COMMAND` do, and how does it end?

Each command is a module with `EPILOG`, `add_arguments(parser)` and `run(options) -> exit code`.
Only the module of the command that was asked for is imported, so that help is quick; torch never
is. A command prints its result at its end, so that an error before leaves stdout clean.

| exit code | meaning                                                              |
|-----------|----------------------------------------------------------------------|
| 0         | done; what was checked holds                                         |
| 1         | the check failed, the data is broken, or the world failed            |
| 2         | the command was used wrongly, also where a folder is not there       |
| 130, 141  | interrupted; whoever read the output has gone (as the shell has them)|
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from shardloader.cli.report import as_options, logging_to_stderr, print_error, print_json
from shardloader.errors import ShardLoaderError, UsageError
from shardloader.reading.store import why_unread

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: Final = {
    "write": "write a folder, rows or other shards to shards",
    "show": "show samples: keys, fields, sizes, texts; and extract them",
    "index": "make the sample indexes and the manifest of shards",
    "info": "say what a dataset holds",
    "verify": "check shards against their indexes, the manifest and digests",
    "plan": "say who reads what at which step, without reading a shard",
    "audit": "check, from what ranks logged, that every sample was read once",
    "cache": "say what the node's cache holds, or clear it",
    "bench": "measure how fast a dataset loads here, and say with which options",
}

FAILED: Final = 1
WRONG_USE: Final = 2
INTERRUPTED: Final = 130
READER_GONE: Final = 141

_NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)

_EPILOG: Final = """\
example:
  shardloader write photos/ corpus/
  shardloader info corpus/

`shardloader COMMAND --help` explains each command with examples. Exit codes: 0 done, 1 the check
failed or the data is broken, 2 wrong use.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, by default that of `sys.argv`, and return its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _command(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        return READER_GONE
    except KeyboardInterrupt:
        print("shardloader: interrupted", file=sys.stderr)
        return INTERRUPTED
    return code


def _command(arguments: list[str]) -> int:
    try:
        options = _parser(arguments).parse_args(arguments)
    except SystemExit as done:  # argparse has printed what there is to say
        return done.code if isinstance(done.code, int) else WRONG_USE
    if options.version:
        import shardloader

        print(f"shardloader {shardloader.__version__}")
        return 0
    if options.command is None:
        _parser(arguments).print_help(sys.stderr)
        return WRONG_USE
    with logging_to_stderr(verbose=options.verbose):
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    """Run a command; what went wrong on purpose becomes one message and an exit code."""
    try:
        code: int = _module(options.command).run(options)
    except UsageError as error:
        return _failure(options, error, str(error), WRONG_USE)
    except ShardLoaderError as error:
        return _failure(options, error, str(error), FAILED)
    except BrokenPipeError:
        raise
    except OSError as error:
        code = WRONG_USE if isinstance(error, _NOT_THERE) else FAILED
        place = f"{error.filename}: " if error.filename is not None else ""
        return _failure(options, error, f"{place}{why_unread(error)}", code)
    return code


def _failure(options: argparse.Namespace, error: Exception, message: str, code: int) -> int:
    message = as_options(message)
    print_error(message)
    if options.json:
        print_json({"error": {"kind": type(error).__name__, "message": message}})
    return code


def _parser(arguments: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shardloader",
        description="Feed distributed training from tar shards: make, inspect, plan and audit.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    parser.add_argument("-v", "--verbose", action="store_true", help="log what is being done")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        asked = name in arguments
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=_module(name).EPILOG if asked else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if asked:
            _module(name).add_arguments(command)
            _add_common(command)
    return parser


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--json", action="store_true", help="print one JSON document, also for an error"
    )
    command.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        default=argparse.SUPPRESS,  # does not undo a -v that stands before the command
        help="log what is being done, and list in full what is else cut short",
    )


def _module(name: str) -> Any:
    return import_module(f"shardloader.cli.{name}")


def _forget_stdout() -> None:
    """Let Python's last flush of stdout go nowhere: whoever read it has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
