"""What is to be written, from what, where to and how: the values that decide every byte."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import xxhash

from shardloader.errors import UsageError
from shardloader.order.integers import MAX_SEED, checked
from shardloader.reading.sizes import parse_bytes
from shardloader.writing.layout import Limits
from shardloader.writing.options import at_least_one, mode_of, parse_compression, place_of
from shardloader.writing.pattern import ShardPattern, parse_pattern
from shardloader.writing.selection import Selection

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Any

    from shardloader.writing.destination import Mode
    from shardloader.writing.frames import Compression
    from shardloader.writing.place import Place
    from shardloader.writing.refusals import OnError
    from shardloader.writing.sources.base import Source, Survey

Engine: TypeAlias = Literal["local", "ray"]

RULES_VERSION = 1  # of what shards come out of the same input and options
SMALL_BYTES = 32 << 20  # less input is written sooner than processes start


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A write. `workers`, `engine` and its `address` change no byte."""

    source: Source
    place: Place
    pattern: ShardPattern
    limits: Limits
    compression: Compression | None = None
    selection: Selection = field(default_factory=Selection)
    on_error: OnError = "raise"
    shuffle: int | None = None
    mode: Mode = "new"
    workers: int = 1
    engine: Engine = "local"
    address: str | None = None

    def fingerprint(self, survey: Survey) -> str:
        """Return a digest of the input and of all options that decide what is written."""
        compression = self.compression
        document = {
            "rules": RULES_VERSION,
            "source": self.source.about,
            "input": survey.fingerprint,
            "pattern": self.pattern.name(0),
            "limits": [self.limits.max_samples, self.limits.max_bytes],
            "compression": compression and [compression.level, compression.frame_samples],
            "selection": self.selection.about,
            "on_error": self.on_error,
            "shuffle": self.shuffle,
            "mode": self.mode,
        }
        digest: str = xxhash.xxh3_128_hexdigest(json.dumps(document, sort_keys=True).encode())
        return digest

    def num_workers(self, survey: Survey) -> int:
        """Return how many processes are worth starting."""
        return 1 if survey.num_bytes < SMALL_BYTES else self.workers


def make_job(
    source: Source,
    folder: str | os.PathLike[str],
    *,
    pattern: str = "shard-{:06d}.tar",
    max_samples: int = 10_000,
    max_bytes: int | str = "1GB",
    compression: Literal["zstd"] | None = None,
    compression_level: int = 3,
    frame_samples: int = 64,
    selection: Selection | None = None,
    on_error: OnError = "raise",
    shuffle: int | None = None,
    overwrite: bool = False,
    append: bool = False,
    workers: int = 1,
    engine: Engine = "local",
    address: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    temporary: str | os.PathLike[str] | None = None,
) -> Job:
    """Return the job that the options describe; raises UsageError for those that make no sense."""
    if on_error not in {"raise", "skip"}:
        raise UsageError(f"on_error is 'raise' or 'skip', not {on_error!r}")
    if engine not in {"local", "ray"}:
        raise UsageError(f"engine is 'local' or 'ray', not {engine!r}")
    if address is not None and engine != "ray":
        raise UsageError("address= is that of a Ray cluster: give engine='ray' with it")
    place = place_of(folder, storage_options=storage_options, temporary=temporary)
    if engine == "ray" and temporary is None and not place.keeps_work:
        raise UsageError(
            "the machines of a Ray cluster write to a store by way of a folder that all of them "
            "see: give it as temporary="
        )
    max_samples = at_least_one("max_samples", max_samples)
    frame_samples = min(at_least_one("frame_samples", frame_samples), max_samples)
    packed = parse_compression(compression, compression_level, frame_samples)
    return Job(
        source=source,
        place=place,
        pattern=parse_pattern(pattern, compressed=packed is not None),
        limits=Limits(max_samples=max_samples, max_bytes=parse_bytes(max_bytes)),
        compression=packed,
        selection=Selection() if selection is None else selection,
        on_error=on_error,
        shuffle=None if shuffle is None else checked("seed", shuffle, least=0, below=MAX_SEED),
        mode=mode_of(overwrite=overwrite, append=append),
        workers=at_least_one("workers", workers),
        engine=engine,
        address=address,
    )
