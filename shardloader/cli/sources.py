"""Which options have commands in common, and what do the SRC words of a command line mean?

One word is a folder, a brace pattern, or a shard; several words are the shards of one dataset, as
a shell gives them for `corpus/*.tar`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardloader.errors import UsageError
from shardloader.reading.cache import DEFAULT_MAX_BYTES, Cache, default_cache
from shardloader.reading.patterns import is_remote
from shardloader.reading.remote_source import is_folder_url

if TYPE_CHECKING:
    from shardloader.format.unpacking import Limits

HELP = "a folder, a brace pattern such as 'corpus/{000..099}.tar', or shards; also by their URLs"


def add_dataset(
    parser: argparse.ArgumentParser, *, help_text: str = HELP, is_optional: bool = False
) -> None:
    """Take SRC, and what says where its files lie."""
    parser.add_argument("source", metavar="SRC", nargs="*" if is_optional else "+", help=help_text)
    parser.add_argument(
        "--index-dir",
        metavar="DIR",
        help="where indexes and manifest lie, if not beside the shards",
    )
    add_storage_options(parser)


def one_dataset(words: list[str]) -> str | list[str]:
    """Give what `resolve` takes for the dataset that the words name."""
    return words[0] if len(words) == 1 else words


def datasets(options: argparse.Namespace) -> list[str | list[str]]:
    """Give the datasets that SRC names: each folder one, the other words one together.

    Raises UsageError for several with one index folder, and for options of a store beside local
    ones.
    """
    words: list[str] = options.source
    folders = [word for word in words if is_folder_url(word) or Path(word).is_dir()]
    others = [word for word in words if word not in folders]
    together = [others[0] if len(others) == 1 else others] if others else []
    found = [*folders, *together]
    if options.storage_options and not all(map(is_remote, found)):
        raise UsageError("--storage-options are those of a store: give URLs with it, alone")
    if len(found) > 1 and options.index_dir is not None:
        raise UsageError(
            f"an index folder belongs to one dataset, and {len(found)} were given with "
            "--index-dir: give them one by one"
        )
    return found


def add_storage_options(parser: argparse._ActionsContainer) -> None:
    """Take --storage-options."""
    parser.add_argument(
        "--storage-options",
        type=json_object,
        metavar="JSON",
        help="fsspec's options for a SRC that is a URL, such as '{\"anon\": true}'",
    )


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object, for argparse; what was given may be a secret, and is not shown."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("a JSON object such as '{\"anon\": true}'")
    return value


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Take what `cache_of` reads."""
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="where compressed and remote shards are kept (default: ~/.cache/shardloader)",
    )
    parser.add_argument(
        "--max-bytes",
        metavar="SIZE",
        help=f"the most that the cache holds, such as 200GB (default: {DEFAULT_MAX_BYTES})",
    )
    add_limits(parser)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Take what compressed shards may ask for."""
    parser.add_argument(
        "--max-expansion",
        type=at_least_one,
        metavar="N",
        help="how many times its size a compressed shard may stand for (default: 500)",
    )
    parser.add_argument(
        "--max-window",
        metavar="SIZE",
        help="the largest window of a zstd frame (default: 128MiB; --long=31 needs 2GiB)",
    )


def cache_of(options: argparse.Namespace) -> Cache:
    """The cache that the options name; raises UsageError for a size that is none."""
    default = default_cache()
    max_bytes = default.max_bytes if options.max_bytes is None else options.max_bytes
    return Cache(options.cache or default.folder, max_bytes=max_bytes, **_limits(options))


def limits_of(options: argparse.Namespace) -> Limits:
    """What compressed shards may ask for; raises UsageError for a size that is none."""
    return Cache(default_cache().folder, **_limits(options)).limits


def _limits(options: argparse.Namespace) -> dict[str, Any]:
    asked = {"max_expansion": options.max_expansion, "max_window": options.max_window}
    return {name: value for name, value in asked.items() if value is not None}


def field_names(text: str) -> tuple[str, ...]:
    """Parse names of fields with commas between them, for argparse.

    >>> field_names("jpg, .SEG.png")
    ('jpg', 'seg.png')
    """
    names = tuple(name.strip().lower().lstrip(".") for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"names of fields such as jpg,cls, not {text!r}")
    return names


def at_least_one(text: str) -> int:
    """Parse a whole number of at least 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1, not {text!r}")
    return value
