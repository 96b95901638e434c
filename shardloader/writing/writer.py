"""The writer: samples, one after another, become shards, their indexes and a manifest.

Decides when a shard is full and what is still allowed; `encode` knows values, `shard_file` one
file, `destination` the folder. What the reader of this module must know:

- A shard appears under its final name only when it is whole and on disk; the manifest only when
  the writer was closed without an error. A folder without a manifest is no finished dataset.
- A full shard, unless it is small, is brought to disk by a thread, in order, while the next one is
  filled. What fails there is raised by one of the next calls, and no shard after it gets its name.
- The same samples and options give the same bytes, whatever the clock, user, umask or locale.
- A refused sample leaves no byte, and the writer goes on; after a failed disk it does not.
- A writer is its process's: in a forked child it refuses, and what the parent writes stays whole.
- A key may not come back within a shard, nor be the last key of the shard before. Farther back
  is not remembered, so memory stays bounded by one shard; a reader takes shards apart anyway.
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import WeakSet

from shardloader.errors import SampleError, UsageError
from shardloader.format.seek_table import ENTRY_BYTES
from shardloader.reading.sizes import parse_bytes
from shardloader.writing.beside import Beside
from shardloader.writing.destination import Destination
from shardloader.writing.framing import Framing
from shardloader.writing.layout import Limits
from shardloader.writing.manifests import manifest_of, next_number
from shardloader.writing.options import (
    at_least_one,
    mode_of,
    parse_compression,
    place_of,
    written_before,
)
from shardloader.writing.pattern import parse_pattern
from shardloader.writing.place import FolderPlace
from shardloader.writing.shard_file import FrameFile, ShardFile, partial_name
from shardloader.writing.tarring import tarred

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from shardloader.format.manifest import Manifest
    from shardloader.writing.shard_file import FinishedShard
    from shardloader.writing.tarring import TarredSample

_BROKEN_OFF = "broken off"
_LEFT_TO_PARENT = "opened by the process that this one was forked from"
_BIG_BYTES = 1 << 20  # of a shard: a smaller one is there when the write that filled it returns
_NO_DATASET = ", so what was written is no whole dataset"
_log = logging.getLogger("shardloader")


class ShardWriter:
    """Write samples to tar shards in a folder, with their indexes and a manifest.

    A folder on a store is a URL that fsspec opens (`s3://bucket/corpus`), with `storage_options`
    for its file system. A shard is written to a local file below `temporary` (the system's folder
    for such, unless it is given) and appears on the store when all of it is there.

    `pattern` names the shards, as str.format or printf would (`out-%06d.tar`). A shard ends after
    `max_samples` samples, or before the sample that would make the *file* longer than `max_bytes`
    (an int, or a text such as "200MB" or "1GiB"); a sample that is longer by itself gets a shard
    of its own. The folder may hold no shard and no manifest, unless `overwrite=True`, which
    removes what a writer with this pattern made, and nothing else, once its own first shard is
    whole; or `append=True`, which adds shards to the dataset there and keeps its manifest as
    `manifest-DIGEST.json`.

    `compression="zstd"` writes `.tar.zst` shards, a frame for every `frame_samples` samples, or
    for 16 MiB of them if that is less, so that reading one sample costs one frame; `max_bytes` is
    then of the compressed file.

    A full shard is brought to disk and named while the next one is filled: `num_shards` waits for
    it, and what fails there is raised by one of the next calls.

    One thread at a time may use a writer, and no process that was forked from its own. The folder
    is touched first by `with` or the first `write`. Raises UsageError for options that
    make no sense and for a folder that is in use or not empty, WorldError if the disk or the store
    fails.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ShardWriter(folder, max_samples=1000) as writer:
    ...         writer.write({"__key__": "000001", "txt": "a cat", "cls": 3})
    ...     writer.manifest.names
    ('shard-000000.tar',)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        pattern: str = "shard-{:06d}.tar",
        max_samples: int = 10_000,
        max_bytes: int | str = "1GB",
        overwrite: bool = False,
        append: bool = False,
        compression: Literal["zstd"] | None = None,
        compression_level: int = 3,
        frame_samples: int = 64,
        storage_options: Mapping[str, Any] | None = None,
        temporary: str | os.PathLike[str] | None = None,
    ) -> None:
        self._state = "new"  # then open, then closed or broken off
        self._compression = parse_compression(compression, compression_level, frame_samples)
        self._pattern = parse_pattern(pattern, compressed=self._compression is not None)
        self._limits = Limits(
            max_samples=at_least_one("max_samples", max_samples), max_bytes=parse_bytes(max_bytes)
        )
        self._destination = Destination(
            place=place_of(folder, storage_options=storage_options, temporary=temporary),
            pattern=self._pattern,
            mode=mode_of(overwrite=overwrite, append=append),
        )
        self._base: Manifest | None = None
        self._first_number = 0
        self._finished: list[FinishedShard] = []
        self._finishing = Beside(ahead=1)
        self._full_shards = self._full_samples = self._full_bytes = 0
        self._shard: ShardFile | FrameFile | None = None  # that is open; one of the next two
        self._plain: ShardFile | None = None
        self._framed: FrameFile | None = None
        self._taker: ShardFile | Framing | None = None  # that takes samples like the one before
        self._framing = Framing(self._compression) if self._compression is not None else None
        self._last_key: str | None = None
        self._manifest: Manifest | None = None

    @property
    def folder(self) -> Path | str:
        """The destination; of one on a store the URL, without secrets."""
        place = self._destination.place
        return place.folder if isinstance(place, FolderPlace) else place.shown

    @property
    def num_shards(self) -> int:
        """The number of shards finished; waits for those that are full."""
        self._finishing.settle()
        return len(self._finished)

    @property
    def num_samples(self) -> int:
        """The number of samples written, those of the open shard included."""
        in_open = self._shard.num_samples if self._shard else 0
        return self._full_samples + (len(self._framing.keys) if self._framing else in_open)

    @property
    def total_bytes(self) -> int:
        """The size of all shards, the open one as if it were finished now.

        Samples that wait for their frame to be compressed are not in it.
        """
        return self._full_bytes + (self._shard.size_bytes if self._shard else 0)

    @property
    def manifest(self) -> Manifest:
        """The manifest that `close` published; raises UsageError before, and after an abort."""
        if self._manifest is None:
            raise UsageError(f"a manifest is made by close(), and this one is {self._state}")
        return self._manifest

    def write(self, sample: Mapping[str, Any]) -> None:
        """Append a sample: its `__key__`, and its fields' values or bytes.

        Raises SampleError, naming key and field, for what would not read back the same; nothing
        of such a sample is written and the writer stays usable.
        """
        taker = self._taker
        try:
            if taker is not None and taker.take(sample):
                return
        except SampleError:
            raise
        except BaseException:
            self.abort()
            raise
        self._write_any(sample)

    def close(self) -> None:
        """Finish the open shard and publish the manifest; a second call does nothing.

        Raises UsageError after an abort: what was written then is no whole dataset.
        """
        if self._state == "closed":
            return
        if self._state != "open":
            self._open()
        self._taker = None
        try:
            if self._framing is not None:
                self._framing.pack()
                self._place_frames(self._framing)
                self._framing.end()
            self._finish_shard()
            self._finishing.finish()
            self._manifest = manifest_of(self._base, self._finished)
            self._destination.publish_manifest(self._manifest)
        except BaseException:
            self.abort()
            raise
        self._state = "closed"
        self._finishing.end()
        self._destination.release()

    def abort(self) -> None:
        """Remove the open shard and stop; full shards stay, no manifest is published."""
        if self._state in {"closed", _BROKEN_OFF, _LEFT_TO_PARENT}:
            return
        was_open, self._state = self._state == "open", _BROKEN_OFF
        self._manifest = None
        shard, self._shard = self._shard, None
        self._plain = self._framed = self._taker = None
        try:
            if self._framing is not None:
                self._framing.end()
            if shard is not None:
                shard.discard()
        finally:
            self._finishing.end()
            self._destination.abandon(is_begun=bool(self._finished))
        if was_open:
            _log.warning(
                "writing to %s was broken off: %d finished shards stay, the open one was removed, "
                "and there is no manifest, since this is no whole dataset",
                self.folder,
                len(self._finished),
            )

    def __enter__(self) -> Self:
        if self._state == "new":
            self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if self._state == "open":
            warnings.warn(
                f"a ShardWriter to {str(self.folder)!r} was never closed: its last shard is lost; "
                "use it in a with statement",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )
            self.abort()

    def _open(self) -> None:
        if self._state != "new":
            raise UsageError(
                f"this writer to {str(self.folder)!r} was {self._state}"
                f"{_NO_DATASET if self._state == _BROKEN_OFF else ''}: make a new one to write more"
            )
        begun = self._destination.prepare()
        self._base = begun.base
        self._first_number = next_number(begun.base, self._pattern)
        self._state = "open"
        _opened.add(self)

    def _write_any(self, sample: Mapping[str, Any]) -> None:
        """Append a sample of any kind."""
        if self._state != "open":
            self._open()
        members = tarred(sample)
        self._check_key_is_new(members.key)
        try:
            self._finishing.check()
            if self._framing is None:
                self._add(members)
            else:
                self._add_to_frame(members, self._framing)
            self._last_key = members.key
            if members.made is None:
                self._expect(tuple(sample))
        except BaseException:  # also Ctrl-C: half a write can't be taken back
            self.abort()
            raise

    def _leave_to_parent(self) -> None:
        """Stop in a forked child: the writer, its file and its lock are the parent's."""
        if self._state == "open":
            self._state = _LEFT_TO_PARENT
            self._taker = None

    def _check_key_is_new(self, key: str) -> None:
        open_ones = self._framing or self._shard
        if key == self._last_key or (open_ones is not None and key in open_ones.keys):
            raise SampleError(written_before(key))

    def _expect(self, names: tuple[str, ...]) -> None:
        """Have the next samples taken in a moment, if they have these entries too."""
        if self._framing is not None:
            self._framing.expect(names, self._limits.max_samples)
        elif self._plain is not None:
            self._plain.expect(names, self._limits)
        self._taker = self._framing or self._plain

    def _add(self, sample: TarredSample) -> None:
        shard = self._shard
        if shard is not None and not self._limits.has_room(
            shard.num_samples, shard.size_bytes, sample.size_bytes
        ):
            self._finish_shard()
        if self._plain is None:
            self._plain = self._shard = ShardFile(*self._next_file())
        self._plain.add(sample)
        if self._plain.num_samples >= self._limits.max_samples:
            self._finish_shard()

    def _add_to_frame(self, sample: TarredSample, framing: Framing) -> None:
        framing.add(sample)
        max_samples = self._limits.max_samples
        if len(framing.keys) >= max_samples:  # if those without a place all come into this shard
            self._place_frames(framing)
        is_full = len(framing.keys) >= max_samples
        if is_full or framing.is_full:
            framing.pack()
        while framing.is_ahead:
            self._place_frame(framing)
        if is_full:
            self._place_frames(framing)
        if self._shard is not None and self._shard.num_samples >= max_samples:
            self._finish_shard()
            framing.begin_shard()

    def _place_frames(self, framing: Framing) -> None:
        """Place all frames under way."""
        while self._place_frame(framing):
            pass

    def _place_frame(self, framing: Framing) -> bool:
        """Add the first frame under way to the shard or to a new one; False if there is none."""
        packed = framing.next()
        if packed is None or self._compression is None:
            return False
        added = len(packed.frame) + ENTRY_BYTES
        if self._shard is not None and self._shard.size_bytes + added > self._limits.max_bytes:
            self._finish_shard()
            framing.begin_shard(packed)
        if self._framed is None:
            self._framed = self._shard = FrameFile(*self._next_file(), self._compression)
        self._framed.add_frame(*packed)
        return True

    def _next_file(self) -> tuple[Path, str]:
        name = self._pattern.name(self._first_number + self._full_shards)
        return self._destination.place.partials / partial_name(name), name

    def _finish_shard(self) -> None:
        """Have the open shard brought to disk and named, a big one while the next one is filled."""
        shard = self._shard
        if shard is None:
            return
        shard.end()
        num_samples, size_bytes = shard.num_samples, shard.size_bytes
        self._finishing.do(_finish, shard, self._destination, self._finished)
        if size_bytes < _BIG_BYTES:
            self._finishing.finish()
        self._shard = self._plain = self._framed = None
        if self._framing is None:
            self._taker = None
        self._full_shards += 1
        self._full_samples += num_samples
        self._full_bytes += size_bytes


def _finish(
    shard: ShardFile | FrameFile, destination: Destination, finished: list[FinishedShard]
) -> None:
    """Bring a shard to disk, give it its name, and note it; knows no writer, so keeps none."""
    try:
        sealed = shard.seal()
        destination.publish_shard(sealed)
    except BaseException:
        shard.discard()
        raise
    finished.append(sealed.finished)


_opened: WeakSet[ShardWriter] = WeakSet()


def _leave_all_to_parent() -> None:
    for writer in _opened:
        writer._leave_to_parent()  # noqa: SLF001  (its own class)


os.register_at_fork(after_in_child=_leave_all_to_parent)
