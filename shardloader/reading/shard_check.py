"""Is one shard whole, and what its index and the manifest say?

Reads the shard from end to end where the manifest has its content digest or its fields are to be
decoded, and only its headers otherwise. An ordinary shard is indexed anew by columns and compared
with its index as arrays, so what it costs does not depend on how many samples are right. What is
found is counted by kind: a million bad samples are one row.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from itertools import pairwise
from typing import TYPE_CHECKING

from shardloader.errors import DecodeError, IndexFileError, ShardError, WorldError
from shardloader.format.comparing import Listed, Seen, compare
from shardloader.format.findings import Finding, of_notice
from shardloader.format.index import SampleIndex
from shardloader.format.notices import Notice, Notices
from shardloader.format.samples import group
from shardloader.format.tar import scan
from shardloader.reading.content import content_digest
from shardloader.reading.faults import MissingFileError
from shardloader.reading.store import map_file
from shardloader.reading.tars import copy_for_a_look, index_of, tar_for_a_look

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardloader.format.unpacking import Limits
    from shardloader.reading.decode import DecodeTable
    from shardloader.reading.remote import RemoteFile
    from shardloader.reading.tars import Tar

NUM_EXAMPLES = 3  # samples that one row names
NUM_FIELDS = 20  # fields of a shard with rows of their own

_OTHER_FIELDS = ""  # no field has this name

_BLOCK_SAMPLES = 4096  # what lists of Python's numbers are made for at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardToCheck:
    """A shard, its index, and what the manifest says of it (None: it does not list it).

    file, index_file: where they lie on a remote store; the paths are for messages then.
    """

    name: str
    path: str
    index_path: str
    listed: Listed | None
    file: RemoteFile | None = None
    index_file: RemoteFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedShard:
    """What was found in a shard, and how much of it was there to look at."""

    findings: tuple[Finding, ...]
    num_samples: int = 0
    num_members: int = 0
    num_bytes: int = 0
    has_index: bool = False


def check_shard(
    shard: ShardToCheck, *, decode: DecodeTable | None = None, limits: Limits | None = None
) -> CheckedShard:
    """Check one shard; with `decode`, a table that every field is to be decoded with, those too.

    `limits`: how far a compressed shard may expand, None for the usual. What is wrong with the
    shard is a finding; raises only UsageError, for a decoder's package that is not installed.
    """
    try:
        data = map_file(shard.path) if shard.file is None else copy_for_a_look(shard.file)
    except WorldError as error:
        kind = _kind_of(error, missing="missing_shard", otherwise="unreadable_shard")
        return CheckedShard(findings=(Finding(kind=kind, shard=shard.name, told=str(error)),))
    findings: list[Finding] = []
    tar = _unpacked(data, shard, limits, findings)
    found = None if tar is None else _indexed(tar, shard, findings)
    stored = _stored(shard, findings)
    seen = Seen(
        name=shard.name,
        shard_bytes=len(data),
        found=found,
        stored=stored,
        content_digest=_content_digest(data, shard.listed),
    )
    findings += compare(seen, shard.listed)
    if tar is not None and found is not None and decode is not None:
        findings += undecodable(tar.data, found, decode, name=shard.name)
    return CheckedShard(
        findings=tuple(findings),
        num_samples=0 if found is None else found.num_samples,
        num_members=0 if found is None else found.num_members,
        num_bytes=len(data),
        has_index=stored is not None or any(each.kind == "bad_index" for each in findings),
    )


def _content_digest(data: memoryview, listed: Listed | None) -> str | None:
    """Give the digest where there is one to compare it with; of another size it is another."""
    if listed is None or listed.content_digest is None or listed.shard_bytes != len(data):
        return None
    return content_digest(data)


def _kind_of(error: WorldError, *, missing: str, otherwise: str) -> str:
    cause = error.__cause__
    if isinstance(error, MissingFileError):
        return missing
    return missing if isinstance(cause, FileNotFoundError | NotADirectoryError) else otherwise


def _unpacked(
    data: memoryview, shard: ShardToCheck, limits: Limits | None, findings: list[Finding]
) -> Tar | None:
    """Map a shard's tar; where a compressed one is damaged, or there is no room, that is found."""
    try:
        return tar_for_a_look(data, shard.path, limits)
    except ShardError as error:
        findings.append(
            Finding(kind=error.kind, shard=shard.name, offset=error.offset, told=str(error))
        )
    except WorldError as error:
        findings.append(Finding(kind="unreadable_shard", shard=shard.name, told=str(error)))
    return None


def _indexed(tar: Tar, shard: ShardToCheck, findings: list[Finding]) -> SampleIndex | None:
    """Index a shard anew; where it is no sound archive that is found, with what was odd before."""
    try:
        index, notices = index_of(tar)
    except ShardError as error:
        findings.append(
            Finding(kind=error.kind, shard=shard.name, offset=error.offset, told=str(error))
        )
        findings += [of_notice(notice, shard.name) for notice in _before_the_error(tar.data)]
        return None
    findings += [of_notice(notice, shard.name) for notice in notices]
    return index


def _before_the_error(data: memoryview) -> tuple[Notice, ...]:
    """Give what was odd in a damaged shard up to where it is damaged."""
    notices = Notices()
    with suppress(ShardError):
        for _ in group(scan(data, shard="", notices=notices), shard="", notices=notices):
            pass
    return notices.freeze()


def _stored(shard: ShardToCheck, findings: list[Finding]) -> SampleIndex | None:
    """Read a shard's index; None where that can't be done, which is found."""
    path = shard.index_path
    try:
        data = map_file(path) if shard.index_file is None else shard.index_file.whole()
        return SampleIndex.from_buffer(data, name=path)
    except WorldError as error:
        kind = _kind_of(error, missing="missing_index", otherwise="bad_index")
        if kind == "bad_index" or shard.listed is not None:
            findings.append(Finding(kind=kind, shard=shard.name, told=str(error)))
    except IndexFileError as error:
        findings.append(Finding(kind="bad_index", shard=shard.name, told=str(error)))
    return None


def undecodable(
    data: memoryview, index: SampleIndex, table: DecodeTable, *, name: str
) -> Iterator[Finding]:
    """Decode every field of a shard, and yield a finding for each field that can't be somewhere.

    Fields beyond the first `NUM_FIELDS` that can't be are one finding together.
    """
    bad: dict[str, _Undecodable] = {}
    for sample, field, offset, size in _members(index):
        try:
            table.decode(field, data[offset : offset + size])
        except DecodeError as error:
            known = field if field in bad or len(bad) < NUM_FIELDS else _OTHER_FIELDS
            of_field = bad.setdefault(known, _Undecodable())
            of_field.times += 1
            if len(of_field.first) < NUM_EXAMPLES:
                of_field.first.append((index.key(sample), field, offset, str(error)))
    for of_field in bad.values():
        yield of_field.finding(name)


@dataclass(slots=True, eq=False)
class _Undecodable:
    """How often a field could not be decoded; key, field, offset and cause of the first times."""

    times: int = 0
    first: list[tuple[str, str, int, str]] = dataclass_field(default_factory=list)

    def finding(self, shard: str) -> Finding:
        key, field, offset, why = self.first[0]
        others = ", ".join(repr(other) for other, *_ in self.first[1:])
        more = f"; also of {others}" if others else ""
        return Finding(
            kind="undecodable",
            shard=shard,
            place=f"key {key!r}, field {field!r}",
            offset=offset,
            told=f"{why}{more}{', ...' if self.times > len(self.first) else ''}",
            times=self.times,
        )


def _members(index: SampleIndex) -> Iterator[tuple[int, str, int, int]]:
    """Yield sample, field, offset and size of each member."""
    fields = index.fields
    for first in range(0, index.num_samples, _BLOCK_SAMPLES):
        starts = index.sample_starts[first : first + _BLOCK_SAMPLES + 1].tolist()
        block = slice(starts[0], starts[-1])
        members = zip(
            index.member_fields[block].tolist(),
            index.member_offsets[block].tolist(),
            index.member_sizes[block].tolist(),
            strict=True,
        )
        for sample, (start, stop) in enumerate(pairwise(starts), start=first):
            for _ in range(stop - start):
                number, offset, size = next(members)
                yield sample, fields[number], offset, size
