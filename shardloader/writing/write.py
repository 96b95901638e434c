"""How does a source become shards, and how is that taken up again after a crash?

`write_shards` is the whole of `shardloader write`. Chunks of the input come in order from `Hands`;
the `Placer` decides where they lie; a shard gets its name after its line is in the journal, in
order; the manifest comes last. A write that was interrupted goes on behind the last shard in the
journal: what the shards hold follows from the input and the options alone, so the result is what
it would have been.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections import deque
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shardloader.errors import SampleError, UsageError
from shardloader.format.index import SampleIndex
from shardloader.reading.source import INDEX_SUFFIX, SHARD_SUFFIXES
from shardloader.writing.chunks import CHUNK_BYTES, Recipe
from shardloader.writing.destination import REFUSED_NAME, Destination
from shardloader.writing.filling import Shop
from shardloader.writing.hands import OwnHands
from shardloader.writing.job import make_job
from shardloader.writing.journal import Line
from shardloader.writing.layout import Placer, Position
from shardloader.writing.manifests import manifest_of, next_number
from shardloader.writing.options import written_before
from shardloader.writing.place import FolderPlace
from shardloader.writing.pool import Pool
from shardloader.writing.refusals import Refusals
from shardloader.writing.shard_file import naming
from shardloader.writing.sources.base import Refused, printable
from shardloader.writing.sources.opening import open_source
from shardloader.writing.spill import SortedRuns, Spill
from shardloader.writing.store_place import StorePlace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardloader.format.manifest import Manifest
    from shardloader.reading.remote import Store
    from shardloader.writing.chunks import Head
    from shardloader.writing.destination import Begun
    from shardloader.writing.hands import Hands
    from shardloader.writing.job import Job
    from shardloader.writing.layout import Closed, Placed
    from shardloader.writing.shard_file import FinishedShard
    from shardloader.writing.sources.base import Part, Source, Survey

_log = logging.getLogger("shardloader")

_RUNS_NAME = "runs"
_MAX_RUN_BYTES = 128 << 20
_RUNS = 256  # about so many, of a size in bounds


class Progress(Protocol):
    """Follows a write."""

    def begin(self, what: str, num_bytes: int) -> None:
        """Begin a pass over so many bytes of input."""
        ...

    def advance(self, num_samples: int, num_bytes: int) -> None:
        """Note that more of it is done."""
        ...


class Silent:
    """A progress that nobody sees."""

    def begin(self, what: str, num_bytes: int) -> None:
        """Begin a pass."""

    def advance(self, num_samples: int, num_bytes: int) -> None:
        """Note that more of it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a write did: the shards it made, of which `num_kept` were there from before a crash.

    `was_done`: the same write had appended these shards before, and nothing was to be done.
    `num_refused` samples are in the list beside the manifest, `num_left_out` were not selected,
    `num_temporary_bytes` were used for shuffling.
    """

    manifest: Manifest
    shards: tuple[FinishedShard, ...]
    num_kept: int
    survey: Survey
    num_refused: int
    num_left_out: int
    num_temporary_bytes: int
    was_done: bool = False


def write_shards(
    source: Source | str | os.PathLike[str] | Sequence[str],
    folder: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Written:
    """Write what `source` means (see `open_source`) to shards in `folder`.

    The options are those of `make_job`. Raises UsageError for options that make no sense and for a
    folder that is in use or holds something else, SampleError for a sample that can't be written
    unless `on_error="skip"`, WorldError if a disk fails.
    """
    if isinstance(source, str | os.PathLike):
        source = open_source([os.fspath(source)])
    elif isinstance(source, list | tuple):
        source = open_source(source)
    return run(make_job(source, folder, **options), progress=progress)  # type: ignore[arg-type]


def run(job: Job, *, progress: Progress | None = None) -> Written:
    """Do a job, or finish it."""
    check_apart(job)
    survey = job.source.survey()
    destination = Destination(place=job.place, pattern=job.pattern, mode=job.mode)
    begun = destination.begin(job.fingerprint(survey))
    if begun.appended and begun.base is not None:
        destination.release()
        return _done_before(begun.base, survey)
    write = _Write(job, survey, destination, begun, progress or Silent())
    try:
        written = write.run()
    except BaseException:
        write.abandon()
        raise
    destination.release()
    return written


def _done_before(base: Manifest, survey: Survey) -> Written:
    return Written(
        manifest=base,
        shards=(),
        num_kept=0,
        survey=survey,
        num_refused=0,
        num_left_out=0,
        num_temporary_bytes=0,
        was_done=True,
    )


def nothing_to_write(num_left_out: int, num_refused: int, first: str) -> SampleError:
    """Say why no shard was made."""
    why = [f"{num_left_out:,} were not selected"] if num_left_out else []
    why += [f"{num_refused:,} were refused, such as: {first}"] if num_refused else []
    return SampleError(
        "a dataset has samples, and of this input none is left to write: "
        f"{' and '.join(why) or 'there is none in it'}"
    )


def check_apart(job: Job) -> None:
    """Raise UsageError where shards would lie in a folder that is read, or beside such shards."""
    if isinstance(job.place, StorePlace):
        _check_apart_on_store(job.place.store, job.source)
    elif isinstance(job.place, FolderPlace):
        _check_apart_here(job.place.folder, job.source)


def _check_apart_here(folder: Path, source: Source) -> None:
    inside = folder.resolve()
    resolved = cache(Path.resolve)  # of the folder of many shards, once
    for place in source.places:
        is_plain = place.is_file() and not place.is_symlink()
        outside = resolved(place.parent) / place.name if is_plain else place.resolve()
        if inside == outside or outside in inside.parents:
            raise _packed_into_itself(str(folder), str(place))
        if inside == outside.parent and not outside.is_dir():
            raise _beside_its_source(str(place))


def _check_apart_on_store(store: Store, source: Source) -> None:
    inside = f"{store.whereabouts.rstrip('/')}/"
    for place in source.remote_places:
        outside = place.whereabouts.rstrip("/")
        if inside.startswith(f"{outside}/"):
            raise _packed_into_itself(store.name, place.name)
        if inside == f"{outside.rpartition('/')[0]}/" and outside.endswith(SHARD_SUFFIXES):
            raise _beside_its_source(place.name)


def _packed_into_itself(folder: str, source: str) -> UsageError:
    return UsageError(
        f"the destination {folder!r} lies in the source {source!r}, and would be packed into "
        "itself: give a folder outside it"
    )


def _beside_its_source(shard: str) -> UsageError:
    return UsageError(
        f"the source's shard {shard!r} lies in the destination: shards are written anew to another "
        "folder"
    )


def runs_recipe(job: Job, survey: Survey) -> Recipe:
    """Return how the input is cut for shuffling: more of it at a time where there is more."""
    chunk_bytes = min(_MAX_RUN_BYTES, max(CHUNK_BYTES, survey.num_bytes // _RUNS))
    return Recipe(selection=job.selection, chunk_bytes=chunk_bytes)


class _Ended(NamedTuple):
    """What the journal will say of a shard that was closed, once it is sealed."""

    end: Position
    last_key: str
    refused_bytes: int
    num_refused: int
    num_left_out: int


class _Write:
    """A write under way."""

    def __init__(
        self,
        job: Job,
        survey: Survey,
        destination: Destination,
        begun: Begun,
        progress: Progress,
    ) -> None:
        self._job = job
        self._survey = survey
        self._destination = destination
        self._base = begun.base
        self._lines = begun.lines
        self._progress = progress
        self._shards = [line.shard for line in begun.lines]
        self._ended: deque[_Ended] = deque()
        self._num_left_out = begun.lines[-1].num_left_out if begun.lines else 0
        self._place = destination.place
        self._partials = self._place.work / secrets.token_hex(8)
        self._spill: Spill | None = None
        self._refusals: Refusals | None = None
        self._num_temporary_bytes = 0
        self._fields = set[str]()  # of the samples that were written now
        self._where: dict[int, str] = {}  # of each part, for messages

    def run(self) -> Written:
        """Do what is left to be done."""
        manifest = manifest_of(self._base, self._shards)
        if self._lines and self._destination.has_published(manifest):
            # it was killed when all was done
            self._destination.note_appended(manifest)
            self._destination.clear()
            return self._written(num_refused=self._lines[-1].num_refused)
        job = self._job
        self._check_beside()
        self._make_room()
        if job.shuffle is not None:
            source, recipe = self._shuffled(job.shuffle)
        else:
            source, recipe = job.source, Recipe(selection=job.selection)
        refusals = self._list()
        self._write(source, replace(recipe, compression=job.compression))
        if not self._shards:
            self._spill = None  # there is nothing to go on from
            raise nothing_to_write(self._num_left_out, refusals.count, refusals.first)
        self._tell_what_was_not_met()
        for name, data in job.source.beside.items():
            self._place.publish(name, data)
        if refusals.size_bytes:
            self._place.publish(REFUSED_NAME, refusals.contents())
        refusals.close()
        self._destination.publish_manifest(manifest_of(self._base, self._shards))
        return self._written(num_refused=refusals.count)

    def _written(self, *, num_refused: int) -> Written:
        return Written(
            manifest=manifest_of(self._base, self._shards),
            shards=tuple(self._shards),
            num_kept=len(self._lines),
            survey=self._survey,
            num_refused=num_refused,
            num_left_out=self._num_left_out,
            num_temporary_bytes=self._num_temporary_bytes,
        )

    def _tell_what_was_not_met(self) -> None:
        """Log the fields that were asked for and that no sample has: often their names are wrong.

        Not an error: rows may well lack a column that others have.
        """
        wanted = self._job.source.chosen
        for line in self._lines:
            if wanted.keys() <= self._fields:
                return
            name = f"{line.shard.name}{INDEX_SUFFIX}"
            data = self._place.read(name) or b""
            self._fields.update(SampleIndex.from_buffer(data, name=name).fields)
        for field, taken in wanted.items():
            if field not in self._fields:
                named = " or ".join(map(repr, taken))
                _log.warning(
                    "no sample has the field %r: no input has a value for %s", field, named
                )

    def abandon(self) -> None:
        """Leave what a later run can go on with, and nothing else."""
        if self._refusals is not None:
            self._refusals.close()
        shutil.rmtree(self._partials, ignore_errors=True)
        is_begun = bool(self._shards) or (self._spill is not None and self._spill.is_complete)
        self._destination.abandon(is_begun=is_begun, keep_work=is_begun)

    def _check_beside(self) -> None:
        """Refuse to put other class numbers beside a dataset than are there."""
        for name, data in self._job.source.beside.items():
            there = None if self._job.mode == "overwrite" else self._place.read(name)
            if there is not None and there != data:
                raise UsageError(
                    f"{self._place.path(name)} says other numbers for the classes than "
                    "the source has: give it as class_map=, with all classes in it, or move it away"
                )

    def _make_room(self) -> None:
        """Make the folder of temporary files, and clear it of those of a write that was killed."""
        work = self._place.work
        with naming(work):
            work.mkdir(exist_ok=True)
            for item in work.iterdir():
                if item.is_file() and item.name != REFUSED_NAME:
                    item.unlink()
                elif item.is_dir() and item.name != _RUNS_NAME:
                    shutil.rmtree(item)
            self._partials.mkdir()

    def _list(self) -> Refusals:
        if self._refusals is None:
            size_bytes, count = 0, 0
            path = self._place.work / REFUSED_NAME
            facts = self._spill.facts if self._spill is not None else None
            if self._lines:
                size_bytes, count = self._lines[-1].refused_bytes, self._lines[-1].num_refused
                self._place.restore(path)
                if size_bytes and not (path.is_file() and path.stat().st_size >= size_bytes):
                    raise self._gone(path)
            elif facts is not None:
                size_bytes, count = facts["refused_bytes"], facts["num_refused"]
            else:
                size_bytes = self._begin_list(path)
            self._refusals = Refusals(path, self._job.on_error, size_bytes=size_bytes, count=count)
        return self._refusals

    def _gone(self, path: Path) -> UsageError:
        return UsageError(
            f"{path}: an interrupted write is finished from its temporary files, and these are "
            f"gone: {self._destination.way_to_begin_anew()}"
        )

    def _begin_list(self, path: Path) -> int:
        """Begin with the list of the dataset that is appended to; gives its size."""
        old = None if self._base is None else self._place.read(REFUSED_NAME)
        data = old or b""
        with naming(path):
            path.write_bytes(data)
        return len(data)

    def _shuffled(self, seed: int) -> tuple[Source, Recipe]:
        """Write the input to sorted runs, unless that was done, and give them as the source."""
        spill = self._spill = Spill(self._place.work.absolute() / _RUNS_NAME, seed)
        facts = spill.facts
        if facts is None and self._lines and self._place.keeps_work:
            raise self._gone(spill.folder)
        if facts is None:
            refusals = self._list_of_spill()
            facts = self._spill_all(spill.clear(), refusals)
            if refusals is not self._refusals:
                refusals.close()
        if not self._lines:
            self._num_left_out = facts["num_left_out"]
        self._num_temporary_bytes = facts["num_bytes"]
        return SortedRuns(spill.folder, num_bytes=facts["num_bytes"]), Recipe()

    def _list_of_spill(self) -> Refusals:
        """Give the list; where shards are written already, one that nobody reads."""
        if not self._lines:
            return self._list()
        return Refusals(self._partials / REFUSED_NAME, self._job.on_error)

    def _spill_all(self, spill: Spill, refusals: Refusals) -> dict[str, int]:
        job = self._job
        recipe = runs_recipe(job, self._survey)
        self._progress.begin("shuffling", self._survey.num_bytes)
        total, num_left_out = 0, 0
        with self._hands(job.source, recipe, spill) as hands:
            for head in hands.chunks(job.source.parts(), None):
                for _, refused in head.refused:
                    refusals.add(refused)
                num_left_out += head.num_left_out
                total += sum(head.sizes)
                self._progress.advance(head.num_samples, head.num_bytes)
        refusals.sync()
        facts = {
            "num_bytes": total,
            "refused_bytes": refusals.size_bytes,
            "num_refused": refusals.count,
            "num_left_out": num_left_out,
        }
        spill.complete(facts)
        return facts

    def _hands(self, source: Source, recipe: Recipe, spill: Spill | None) -> Hands:
        workers = self._job.num_workers(self._survey)
        pattern, folder = self._job.pattern, self._partials
        if self._job.engine == "ray":
            folder = folder.absolute()  # tasks have working directories of their own
        shop = Shop(source=source, recipe=recipe, folder=folder, pattern=pattern, spill=spill)
        if self._job.engine == "ray":
            from shardloader.writing.ray_hands import RayHands

            return RayHands(shop, address=self._job.address)
        if workers == 1:
            return OwnHands(source, recipe, folder, pattern, spill)
        return Pool(shop, workers=workers, lock=self._place.handle)

    def _write(self, source: Source, recipe: Recipe) -> None:
        """Write the chunks from where the journal ends."""
        job, lines = self._job, self._lines
        start = lines[-1].end if lines else None
        placer = Placer(
            job.limits,
            compression=job.compression,
            shard=next_number(self._base, job.pattern) + len(lines),
            resume=start,
            last_key=lines[-1].last_key if lines else None,
        )
        num_bytes = self._num_temporary_bytes if job.shuffle is not None else self._survey.num_bytes
        self._progress.begin("writing", num_bytes)
        with self._hands(source, recipe, None) as hands:
            for head in hands.chunks(self._parts(source, start), start):
                placed = placer.place(head, hands.recut)
                hands.put(placed.runs)
                self._note(head, placed, placer)
                for closed in placed.closed:
                    hands.close(closed)
                self._publish(hands, wait=False)
                self._progress.advance(head.num_samples, head.num_bytes)
            last = placer.finish()
            if last is not None:
                self._end(last)
                hands.close(last)
            self._publish(hands, wait=True)

    def _parts(self, source: Source, start: Position | None) -> Iterator[Part]:
        """Yield the parts; those that were written before count as done."""
        for part in source.parts():
            if start is not None and part.number < start.part:
                self._progress.advance(0, part.num_bytes)
            self._where[part.number] = source.where(part)
            yield part

    def _note(self, head: Head, placed: Placed, placer: Placer) -> None:
        """Note refused samples, and shards that ended, in the order of the input."""
        where = self._where[head.part]
        again = [
            (
                head.rows[at],
                Refused(printable(head.keys[at]), where, written_before(head.keys[at])),
            )
            for at in placed.again
        ]
        refused = [each for each in head.refused if not placer.passes_over(head, each[0])]
        waiting = deque(sorted([*refused, *again]))
        for closed in placed.closed:
            while waiting and waiting[0][0] < closed.end.row:
                self._list().add(waiting.popleft()[1])
            self._end(closed)
        for _, each in waiting:
            self._list().add(each)
        if not placer.passes_over_all(head):
            self._num_left_out += head.num_left_out

    def _end(self, closed: Closed) -> None:
        refusals = self._list()
        self._ended.append(
            _Ended(
                closed.end,
                closed.last_key,
                refusals.size_bytes,
                refusals.count,
                self._num_left_out,
            )
        )

    def _publish(self, hands: Hands, *, wait: bool) -> None:
        for sealed in hands.sealed(wait=wait):
            ended = self._ended.popleft()
            refusals = self._list()
            refusals.sync()
            line = Line(shard=sealed.finished, **ended._asdict())
            self._destination.publish_shard(sealed, line, keep=refusals.path)
            name = f"{sealed.finished.name}{INDEX_SUFFIX}"
            self._fields.update(SampleIndex.from_buffer(sealed.index, name=name).fields)
            self._shards.append(sealed.finished)
