"""Which options make sense to a writer? Each function gives a value, or refuses in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shardloader.errors import UsageError
from shardloader.format.urls import without_secrets
from shardloader.writing.frames import Compression

if TYPE_CHECKING:
    import os

    from shardloader.writing.destination import Mode


def at_least_one(name: str, value: object) -> int:
    """Give a whole number of at least 1, or raise UsageError that names the option."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} is a whole number of at least 1, not {value!r}")
    return value


def local_folder(folder: str | os.PathLike[str]) -> Path:
    """Give the folder to write to, or raise UsageError for a URL."""
    if "://" in str(folder):
        raise UsageError(
            f"a writer writes to a local folder, not {without_secrets(str(folder))!r}: write "
            "locally, then upload the folder with the store's own tool"
        )
    if not str(folder):
        raise UsageError("a destination is a folder, and '' is no name of one")
    return Path(folder)


def mode_of(*, overwrite: bool, append: bool) -> Mode:
    """Give what is to be done with a dataset that is there."""
    if overwrite and append:
        raise UsageError("overwrite=True removes a dataset and append=True adds to it: give one")
    return "overwrite" if overwrite else "append" if append else "new"


def parse_compression(
    compression: str | None, level: int = 3, frame_samples: int = 64
) -> Compression | None:
    """Give how shards are compressed; raises UsageError for what makes no sense."""
    if compression is None:
        return None
    if compression != "zstd":
        raise UsageError(f"compression is None or 'zstd', not {compression!r}")
    return Compression(level=level, frame_samples=frame_samples)


def written_before(key: str) -> str:
    """Say why a sample is refused whose key is in its shard already."""
    return (
        f"a key is written once, and {key!r} was written before: both samples would be "
        "read as one, or one of them would hide the other"
    )
