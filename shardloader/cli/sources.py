"""What do the SRC words of a command line mean?

One word is a folder, a brace pattern, or a shard; several words are the shards of one dataset, as
a shell gives them for `corpus/*.tar`.
"""

from __future__ import annotations

import argparse

HELP = "a folder, a brace pattern such as 'corpus/{000..099}.tar', or shards"


def one_dataset(words: list[str]) -> str | list[str]:
    """Give what `resolve` takes for the dataset that the words name."""
    return words[0] if len(words) == 1 else words


def add_index_dir(parser: argparse.ArgumentParser) -> None:
    """Take --index-dir."""
    parser.add_argument(
        "--index-dir",
        metavar="DIR",
        help="where indexes and manifest lie, if not beside the shards",
    )


def at_least_one(text: str) -> int:
    """Parse a whole number of at least 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1, not {text!r}")
    return value
