"""Which options make sense to a writer? Each function gives a value, or refuses in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardloader.errors import UsageError
from shardloader.reading.patterns import local_path
from shardloader.writing.frames import Compression
from shardloader.writing.place import FolderPlace
from shardloader.writing.sources.files import is_remote
from shardloader.writing.store_place import StorePlace

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from shardloader.writing.destination import Mode
    from shardloader.writing.place import Place


def at_least_one(name: str, value: object) -> int:
    """Give a whole number of at least 1, or raise UsageError that names the option."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} is a whole number of at least 1, not {value!r}")
    return value


def place_of(
    folder: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    temporary: str | os.PathLike[str] | None = None,
) -> Place:
    """Give the place to write to: a local folder, or a URL's on a store."""
    text = str(folder)
    if not text:
        raise UsageError("a destination is a folder, and '' is no name of one")
    if is_remote(text):
        return StorePlace(text, storage_options, temporary=temporary)
    for option, value in (("storage_options=", storage_options), ("temporary=", temporary)):
        if value is not None:
            raise UsageError(
                f"{option} is for a destination on a store, such as s3://bucket/corpus, and "
                f"{text!r} is a local folder: leave it out"
            )
    return FolderPlace(Path(local_path(text)))


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
