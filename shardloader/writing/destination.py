"""The destination: whether a writer may use a folder, what has to be cleared away, what is there.

Knows names in one folder, wherever it is (see `place`); not samples. `judge` decides, from names
alone; `Destination` looks and acts. Only what a writer with the same pattern makes is ever removed:
its shards, their indexes, the manifests with what lies beside them, and the unfinished files of a
writer that was killed. Everything temporary lies in one hidden folder, or in hidden files.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from shardloader.errors import StoreError, UsageError, WorldError
from shardloader.format.manifest import FORMAT, Manifest
from shardloader.reading.source import (
    INDEX_SUFFIX,
    MANIFEST_NAME,
    SHARD_SUFFIXES,
    UNFINISHED_NAME,
    earlier_manifest_name,
)
from shardloader.writing.appended import APPENDED_NAME, appended_before, with_appended
from shardloader.writing.journal import Journal, JournalFile, read_journal
from shardloader.writing.place import WORK_NAME
from shardloader.writing.shard_file import shard_of_index, shard_of_partial
from shardloader.writing.sources.folder_tree import CLASS_MAP_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from shardloader.writing.journal import Line
    from shardloader.writing.pattern import ShardPattern
    from shardloader.writing.place import Place
    from shardloader.writing.shard_file import Sealed

Mode: TypeAlias = Literal["new", "overwrite", "append"]

_log = logging.getLogger("shardloader")

REFUSED_NAME = "refused.jsonl"
_BESIDE = (REFUSED_NAME, CLASS_MAP_NAME, APPENDED_NAME)  # a manifest, and of no use without it
_OLD_MANIFEST = re.compile(r"manifest-[0-9a-f]{32}\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to remove, in this order; or why not to write at all.

    `remove` goes before writing. `replace` is a dataset, and goes when there is something to take
    its place.
    """

    remove: tuple[str, ...] = ()
    replace: tuple[str, ...] = ()
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Where a write begins: after the shards of `base`, and after those of an interrupted one.

    `appended` are shards of `base` that the same write appended before: there is nothing to do.
    """

    base: Manifest | None = None
    lines: tuple[Line, ...] = ()
    appended: tuple[str, ...] = ()


def judge(names: Iterable[str], pattern: ShardPattern, *, mode: Mode) -> Verdict:
    """Decide from the names in a folder whether a writer with this pattern may write there.

    The manifest goes first, so that what is half removed never looks like a whole dataset.
    """
    names = sorted(names)
    shards = [name for name in names if name.lower().endswith(SHARD_SUFFIXES)]
    foreign = [name for name in shards if not pattern.makes(name)]
    manifests = [name for name in names if name == MANIFEST_NAME]
    old = [name for name in names if _OLD_MANIFEST.fullmatch(name)]
    own = [name for name in names if pattern.makes(name) or pattern.makes(shard_of_index(name))]
    leftovers = [
        name for name in names if pattern.makes(shard_of_partial(name)) or name == WORK_NAME
    ]
    if mode == "append":
        return _judged_append(manifests, leftovers)
    if (shards or manifests or own) and mode == "new":
        found = _some(manifests + foreign + own)
        return Verdict(
            refusal=f"it holds {found}: give another folder, or overwrite=True, or append=True"
        )
    if foreign:
        return Verdict(
            refusal=f"it holds {_some(foreign)}, which this pattern does not make and "
            "overwrite=True does not remove: give another folder, or the pattern and "
            "compression of those shards"
        )
    if not manifests:
        return Verdict(remove=(*old, *own, *leftovers))
    reports = [name for name in names if name in _BESIDE]
    return Verdict(remove=tuple(leftovers), replace=(*manifests, *old, *reports, *own))


def _judged_append(manifests: list[str], leftovers: list[str]) -> Verdict:
    if manifests:
        return Verdict(remove=tuple(leftovers))
    return Verdict(
        refusal=f"append=True adds to a finished dataset, and there is no {MANIFEST_NAME}: "
        "leave append=True out, or make one with `shardloader index`"
    )


class Destination:
    """The folder of one writer; `prepare` or `begin` comes first and `release` last."""

    def __init__(self, *, place: Place, pattern: ShardPattern, mode: Mode) -> None:
        self.place = place
        self._pattern = pattern
        self._mode: Mode = mode
        self._journal = JournalFile(place, UNFINISHED_NAME)
        self._base: Manifest | None = None
        self._fingerprint: str | None = None  # of a write that can be repeated
        self._replaced: tuple[str, ...] = ()  # what is yet to be removed
        self._is_replacing = False

    def appended(self, fingerprint: str) -> tuple[str, ...]:
        """Give the shards of the dataset there that the same write appended to it."""
        said = self.place.read(APPENDED_NAME) if self._mode == "append" else None
        shards = () if said is None else appended_before(said, fingerprint)
        return (
            shards
            if shards and set(shards) <= set(self._read_manifest(MANIFEST_NAME).names)
            else ()
        )

    def check(self, fingerprint: str) -> Manifest | None:
        """Refuse what `begin` would refuse, changing nothing; gives what would be added to."""
        if not self.place.exists():
            self._refuse(judge([], self._pattern, mode=self._mode))
            return None
        interrupted = self._interrupted(fingerprint)
        if interrupted is None:
            names = self.place.names()
            if self._mode != "overwrite":
                self._refuse_unfinished()
            self._refuse(judge(names, self._pattern, mode=self._mode))
            self._refuse_foreign_manifest(names)
        return self._manifest_of(None if interrupted is None else interrupted.base)

    def prepare(self) -> Begun:
        """Make the folder if need be, lock it, and clear it of what may be removed.

        The write can't be repeated: a broken-off one is refused. Raises UsageError if the folder
        is in use or holds what may not be removed, WorldError if the disk does not do as told.
        """
        with _Releasing(self):
            self._take()
            return self._anew(None)

    def begin(self, fingerprint: str) -> Begun:
        """Do as `prepare` does, or go on with an interrupted write of the same fingerprint."""
        self._fingerprint = fingerprint
        with _Releasing(self):
            self._take(fingerprint)
            interrupted = self._interrupted(fingerprint)
            appended = () if interrupted else self.appended(fingerprint)
            if appended:
                return Begun(base=self._manifest_of(None), appended=appended)
            if interrupted is None:
                return self._anew(fingerprint)
            if not interrupted.lines:
                self._clear_again()
            self.place.make_work()
            lines = self._whole_ones(interrupted.lines)
            self._base = self._manifest_of(interrupted.base)
            self._journal.begin(fingerprint=fingerprint, base=interrupted.base, lines=lines)
            return Begun(base=self._base, lines=lines)

    def publish_shard(
        self, sealed: Sealed, line: Line | None = None, *, keep: Path | None = None
    ) -> None:
        """Give a shard its name, after its index, and after its line in the journal.

        The first one takes the place of the dataset that is overwritten. `keep` is a temporary
        file that whoever goes on from the line needs.
        """
        name = sealed.finished.name
        self._make_way()
        if keep is not None:
            self.place.keep(keep)
        if line is not None:
            self._journal.add(line)
        self.place.publish(f"{name}{INDEX_SUFFIX}", sealed.index)
        self.place.publish_file(sealed.partial, name)

    def publish_manifest(self, manifest: Manifest) -> None:
        """Write the manifest, whole or not at all, and clear what was temporary.

        One that was appended to stays under its digest, and of a write that can be repeated it is
        noted what it appended. Raises WorldError if the disk fails.
        """
        self._make_way()
        base = self._base
        if base is not None and base.digest != manifest.digest:
            self.place.publish(earlier_manifest_name(base.digest), base.to_json_bytes())
        self.place.publish(MANIFEST_NAME, manifest.to_json_bytes())
        self.note_appended(manifest)
        self.clear()

    def note_appended(self, manifest: Manifest) -> None:
        """Note what a write appended, so that the same one does not do it again."""
        if self._base is None or self._fingerprint is None:
            return
        shards = manifest.names[self._base.num_shards :]
        said = self.place.read(APPENDED_NAME)
        self.place.publish(APPENDED_NAME, with_appended(said, self._fingerprint, shards))

    def has_published(self, manifest: Manifest) -> bool:
        """Whether this manifest is there."""
        return self.place.read(MANIFEST_NAME) == manifest.to_json_bytes()

    def clear(self) -> None:
        """Remove what was temporary, and the mark."""
        self.place.clear_work()
        self.place.remove(UNFINISHED_NAME)

    def abandon(self, *, is_begun: bool, keep_work: bool = False) -> None:
        """Let other writers in after a failure; shards that there are stay marked as no dataset.

        Where nothing is begun there is nothing to mark, unless what was there is half removed;
        `keep_work` keeps what a repeated write goes on from. A store that fails here too is not
        told of a second time.
        """
        try:
            if self.place.is_held:
                if not keep_work:
                    self.place.clear_work()
                if not (is_begun or self._is_replacing):
                    self.place.remove(UNFINISHED_NAME)
        except StoreError as error:
            _log.warning("%s", error)
        finally:
            self.release()

    def release(self) -> None:
        """Let other writers in; does nothing if the folder is not held."""
        self.place.release()

    def _take(self, fingerprint: str | None = None) -> None:
        """Make the folder, unless there has to be a dataset in it, and lock it."""
        if self._mode == "append" and not self.place.exists():
            self._refuse(judge([], self._pattern, mode=self._mode))
        self.place.take(fingerprint=fingerprint)

    def _anew(self, fingerprint: str | None) -> Begun:
        names = self.place.names()
        verdict = judge(names, self._pattern, mode=self._mode)
        if self._mode != "overwrite":
            self._refuse_unfinished()
        self._refuse(verdict)
        self._refuse_foreign_manifest(names)
        if self._mode == "append":
            self._base = self._manifest_of(None)
            self._refuse_strays(names)
        self.place.make_work()
        base = None if self._base is None else self._base.digest
        # Shards without a manifest would else be taken for a whole dataset: those of this writer
        # that are finished, and before that those that are not yet removed.
        if fingerprint is None:
            self.place.publish(UNFINISHED_NAME, b"")
        else:
            self._journal.begin(fingerprint=fingerprint, base=base, lines=())
        self._remove(verdict.remove)
        self._replaced = verdict.replace
        return Begun(base=self._base)

    def _clear_again(self) -> None:
        """Do again what an interrupted write may not have come to the end of.

        Whatever its pattern makes is left from what it was to replace, or its own.
        """
        names = self.place.names()
        mode: Mode = "append" if self._mode == "append" else "overwrite"
        verdict = judge(names, self._pattern, mode=mode)
        self._refuse(verdict)
        self._remove(name for name in verdict.remove if name != WORK_NAME)
        self._replaced = verdict.replace

    def _make_way(self) -> None:
        """Remove the dataset that is overwritten, if that was not done yet."""
        names, self._replaced = self._replaced, ()
        self._is_replacing |= bool(names)
        self._remove(names)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            if name == WORK_NAME:
                self.place.clear_work()
            else:
                self.place.remove(name)

    def _refuse_unfinished(self) -> None:
        journal = read_journal(self.place, UNFINISHED_NAME)
        if journal is None or not journal.lines:
            return  # nothing was written yet, or by a writer that can't be repeated
        raise UsageError(
            f"can't write to {self.place.shown!r}: a write of another input, or with other "
            "options, was broken off there: the command that began it finishes it, and "
            f"{self.way_to_begin_anew()}"
        )

    def way_to_begin_anew(self) -> str:
        """Say how to give up a write that was broken off, and none of what was there before."""
        journal = read_journal(self.place, UNFINISHED_NAME)
        if journal is None or journal.base is None:
            return "overwrite=True begins anew"
        listed = self._read_manifest(MANIFEST_NAME).names
        added = [each.shard.name for each in journal.lines if each.shard.name not in listed]
        removed = f"{_some(added)}, not in the manifest, and {UNFINISHED_NAME}"
        return f"to give it up, remove {removed if added else UNFINISHED_NAME}"

    def _refuse_foreign_manifest(self, names: Iterable[str]) -> None:
        """Refuse to overwrite a file of the manifest's name that no writer made."""
        if self._mode != "overwrite" or MANIFEST_NAME not in names:
            return
        if FORMAT.encode() not in (self.place.read(MANIFEST_NAME) or b"")[:100]:
            raise UsageError(
                f"can't write to {self.place.shown!r}: its {MANIFEST_NAME} is no dataset's, and "
                "overwrite=True does not remove it: give another folder, or move it away"
            )

    def _refuse_strays(self, names: list[str]) -> None:
        """Refuse to append where a new shard would replace one that the manifest does not list."""
        listed = set(self._base.names) if self._base is not None else set()
        strays = [name for name in names if self._pattern.makes(name) and name not in listed]
        if strays:
            raise UsageError(
                f"can't write to {self.place.shown!r}: it holds {_some(sorted(strays))}, not in "
                "the manifest: take them in with `shardloader index`, or move them away"
            )

    def _refuse(self, verdict: Verdict) -> None:
        if verdict.refusal is not None:
            raise UsageError(f"can't write to {self.place.shown!r}: {verdict.refusal}")

    def _interrupted(self, fingerprint: str) -> Journal | None:
        journal = read_journal(self.place, UNFINISHED_NAME)
        return journal if journal is not None and journal.fingerprint == fingerprint else None

    def _whole_ones(self, lines: tuple[Line, ...]) -> tuple[Line, ...]:
        """Leave out the last line if its shard did not get its name any more."""
        names = [line.shard.name for line in lines]
        sizes = self.place.sizes([*names, *(f"{name}{INDEX_SUFFIX}" for name in names)])
        for number, line in enumerate(lines):
            name = line.shard.name
            if sizes.get(name) == line.shard.size_bytes and f"{name}{INDEX_SUFFIX}" in sizes:
                continue
            if number == len(lines) - 1:
                return lines[:-1]
            raise UsageError(
                f"{self.place.path(name)}: an interrupted write had finished this shard, and it is "
                f"gone or changed: {self.way_to_begin_anew()}"
            )
        return lines

    def _manifest_of(self, digest: str | None) -> Manifest | None:
        """Read the manifest that is there, or that of an earlier state of the dataset."""
        if self._mode != "append":
            return None
        old = earlier_manifest_name(digest or "")
        if digest is not None and self.place.read(old) is not None:
            return self._read_manifest(old)
        return self._read_manifest(MANIFEST_NAME)

    def _read_manifest(self, name: str) -> Manifest:
        data, path = self.place.read(name), self.place.path(name)
        if data is None:
            raise WorldError(f"{path}: the manifest was there and is gone")
        return Manifest.from_json_bytes(data, name=path)


class _Releasing:
    """Gives the lock back, and the right error, when a beginning fails."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        folder = self._destination.place.shown
        self._destination.release()
        if isinstance(error, FileExistsError | NotADirectoryError):
            raise UsageError(
                f"a destination is a folder, and {folder!r} is a file or lies in one"
            ) from error
        if isinstance(error, OSError):
            raise WorldError(
                f"the folder {folder!r} can't be written: {error.strerror or error}"
            ) from error


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(repr(name) for name in names[:3]) + more
