"""The destination: whether a writer may use a folder, and what has to be cleared away first.

Knows names in one local folder; not samples. `judge` decides, from names alone; `Destination`
looks and acts. One writer at a time holds the folder, by a lock that ends with its process however
that ends. Only what a writer with the same pattern makes is ever removed: its shards, their
indexes, the manifest, and the unfinished files of a writer that was killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardloader.errors import UsageError, WorldError
from shardloader.reading.source import MANIFEST_NAME, SHARD_SUFFIXES, UNFINISHED_NAME
from shardloader.reading.store import publish
from shardloader.writing.lock import FolderLock
from shardloader.writing.shard_file import shard_of_index, shard_of_partial

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from shardloader.format.manifest import Manifest
    from shardloader.writing.pattern import ShardPattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to remove, in this order, before writing; or why not to write at all."""

    remove: tuple[str, ...] = ()
    refusal: str | None = None


def judge(names: Iterable[str], pattern: ShardPattern, *, overwrite: bool) -> Verdict:
    """Decide from the names in a folder whether a writer with this pattern may write there.

    The manifest goes first, so that what is half removed never looks like a whole dataset.
    """
    names = sorted(names)
    shards = [name for name in names if name.lower().endswith(SHARD_SUFFIXES)]
    foreign = [name for name in shards if not pattern.makes(name)]
    manifests = [name for name in names if name == MANIFEST_NAME]
    own = [name for name in names if pattern.makes(name) or pattern.makes(shard_of_index(name))]
    leftovers = [name for name in names if pattern.makes(shard_of_partial(name))]
    if (shards or manifests or own) and not overwrite:
        found = _some(manifests + foreign + own)
        return Verdict(refusal=f"it holds {found}: give another folder, or overwrite=True")
    if foreign:
        return Verdict(
            refusal=f"it holds {_some(foreign)}, which this pattern does not make and "
            "overwrite=True does not remove: give another folder, or the pattern of those shards"
        )
    return Verdict(remove=(*manifests, *own, *leftovers))


class Destination:
    """The folder of one writer; `prepare` comes first and `release` last."""

    def __init__(self, *, folder: Path, pattern: ShardPattern, overwrite: bool) -> None:
        self.folder = folder
        self._pattern = pattern
        self._overwrite = overwrite
        self._lock = FolderLock(folder)

    def prepare(self) -> None:
        """Make the folder if need be, lock it, and clear it of what may be removed.

        Raises UsageError if it is in use or holds what may not be removed, WorldError if the disk
        does not do as told.
        """
        try:
            self._prepare()
        except (FileExistsError, NotADirectoryError) as error:
            raise UsageError(
                f"a destination is a folder, and {str(self.folder)!r} is a file or lies in one"
            ) from error
        except OSError as error:
            self.release()
            raise _failed(self.folder, error) from error
        except BaseException:
            self.release()
            raise

    def publish_manifest(self, manifest: Manifest) -> None:
        """Write the manifest, whole or not at all; raises WorldError if the disk fails."""
        publish(str(self.folder / MANIFEST_NAME), manifest.to_json_bytes())
        (self.folder / UNFINISHED_NAME).unlink(missing_ok=True)

    def abandon(self, *, num_finished: int) -> None:
        """Let other writers in after a failure; what shards there are stay marked as no dataset."""
        try:
            if num_finished == 0 and self._lock.is_held:
                (self.folder / UNFINISHED_NAME).unlink(missing_ok=True)
        finally:
            self.release()

    def release(self) -> None:
        """Let other writers in; does nothing if the folder is not held."""
        self._lock.release()

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        names = [item.name for item in self.folder.iterdir()]
        verdict = judge(names, self._pattern, overwrite=self._overwrite)
        if verdict.refusal is not None:
            raise UsageError(f"can't write to {str(self.folder)!r}: {verdict.refusal}")
        # Shards without a manifest would else be taken for a whole dataset: those of this writer
        # that are finished, and before that those that are not yet removed.
        publish(self.folder / UNFINISHED_NAME, b"")
        for name in verdict.remove:
            (self.folder / name).unlink(missing_ok=True)


def _failed(folder: Path, error: OSError) -> WorldError:
    return WorldError(f"the folder {str(folder)!r} can't be written: {error.strerror or error}")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(repr(name) for name in names[:3]) + more
