"""What would a write do, without doing it?

The same chunks and the same rule, with nobody who writes. Files whose bytes are taken as they are
are not read, their sizes say enough; rows are, and compressed shards are compressed, since their
sizes are not known before. Shuffled samples are put into their order by their keys, in memory;
compressed and shuffled they are foretold in the order of the input, which is nearly right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardloader.writing.chunks import Head, Recipe
from shardloader.writing.destination import Destination
from shardloader.writing.hands import OwnHands
from shardloader.writing.layout import Placer
from shardloader.writing.manifests import next_number
from shardloader.writing.options import written_before
from shardloader.writing.selection import keyed_word
from shardloader.writing.sources.base import Refused, printable
from shardloader.writing.write import Silent, check_apart

if TYPE_CHECKING:
    from shardloader.writing.job import Job
    from shardloader.writing.layout import Closed, Recut
    from shardloader.writing.sources.base import Survey
    from shardloader.writing.write import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShard:
    """A shard that would be made, or was."""

    name: str
    num_samples: int
    num_bytes: int


@dataclass(slots=True, kw_only=True)
class Foretold:
    """What a write would do; `is_exact` unless the order of compressed samples is not known."""

    survey: Survey
    shards: list[PlannedShard] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    num_left_out: int = 0
    num_temporary_bytes: int = 0
    is_exact: bool = True
    was_done: bool = False


def foretell(job: Job, *, progress: Progress | None = None) -> Foretold:
    """Lay out what a job would write. Raises UsageError where the job would."""
    check_apart(job)
    survey = job.source.survey()
    destination = Destination(place=job.place, pattern=job.pattern, mode=job.mode)
    base = destination.check(job.fingerprint(survey))
    told = Foretold(survey=survey)
    if destination.appended(job.fingerprint(survey)):
        told.was_done = True
        return told
    by_key = job.shuffle is not None and job.compression is None
    told.is_exact = job.shuffle is None or by_key
    placer = Placer(job.limits, compression=job.compression, shard=next_number(base, job.pattern))
    progress = progress or Silent()
    progress.begin("looking", survey.num_bytes)
    whole = Head(0, 0)
    hands = OwnHands(job.source, _recipe(job), job.place.work, job.pattern)
    for head in hands.chunks(job.source.parts(), None):
        told.refused += [refused for _, refused in head.refused]
        told.num_left_out += head.num_left_out
        if job.shuffle is not None:
            told.num_temporary_bytes += sum(head.sizes)
        if by_key:
            whole.keys += head.keys
            whole.sizes += head.sizes
        else:
            _place(job, placer, head, told, hands.recut)
        progress.advance(head.num_samples, head.num_bytes)
    if by_key:
        _place(job, placer, _sorted(whole, job.shuffle or 0), told, hands.recut)
    last = placer.finish()
    if last is not None:
        told.shards.append(_planned(job, last))
    return told


def _recipe(job: Job) -> Recipe:
    return Recipe(
        selection=job.selection,
        compression=job.compression,
        outline=job.compression is None,
    )


def _place(job: Job, placer: Placer, head: Head, told: Foretold, recut: Recut) -> None:
    placed = placer.place(head, recut)
    told.shards += [_planned(job, closed) for closed in placed.closed]
    told.refused += [
        Refused(printable(head.keys[at]), "", written_before(head.keys[at])) for at in placed.again
    ]


def _sorted(head: Head, seed: int) -> Head:
    """Give the samples in the order in which a shuffled write has them."""
    order = sorted(range(len(head.keys)), key=lambda at: (keyed_word(head.keys[at], seed), at))
    keys, sizes = [head.keys[at] for at in order], [head.sizes[at] for at in order]
    return Head(0, 0, keys=keys, sizes=sizes, rows=list(range(len(keys))))


def _planned(job: Job, closed: Closed) -> PlannedShard:
    return PlannedShard(
        name=job.pattern.name(closed.shard),
        num_samples=closed.num_samples,
        num_bytes=closed.size_bytes,
    )
