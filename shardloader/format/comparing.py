"""Does a shard hold what its index and its manifest say, and where does it first not?

Pure: compares values, column by column. Which of the three is to blame is told by which two of
them agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardloader.format.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardloader.format.index import SampleIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What a manifest says of one shard."""

    shard_bytes: int
    num_samples: int
    index_digest: str
    content_digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """What was found of one shard.

    `found` is its index made from its bytes, None where they are no sound archive; `stored` the
    one on disk, None where there is none that can be read. `content_digest` is None where it was
    not asked for.
    """

    name: str
    shard_bytes: int
    found: SampleIndex | None
    stored: SampleIndex | None
    content_digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first sample in which two indexes differ: its key, where it lies, and both in words."""

    key: str | None
    offset: int | None
    told: str


def compare(seen: Seen, listed: Listed | None) -> Iterator[Finding]:
    """Yield what does not agree among a shard, its index and its manifest."""
    if listed is not None:
        if seen.shard_bytes != listed.shard_bytes:
            yield _differing(
                seen, "size_differs", f"{listed.shard_bytes} bytes", f"{seen.shard_bytes}"
            )
            return  # all else that differs follows from it
        yield from _compare_content(seen, listed)
    if seen.found is not None and seen.stored is not None:
        yield from _compare_indexes(seen, seen.found, seen.stored, listed)
    elif seen.found is not None and listed is not None:
        yield from _compare_listed(seen, seen.found, listed)


def _compare_content(seen: Seen, listed: Listed) -> Iterator[Finding]:
    if seen.content_digest not in {None, listed.content_digest}:
        yield _differing(
            seen,
            "content_differs",
            f"bytes with the xxh3-128 {listed.content_digest}",
            f"{seen.content_digest}",
        )


def _compare_indexes(
    seen: Seen, found: SampleIndex, stored: SampleIndex, listed: Listed | None
) -> Iterator[Finding]:
    difference = first_difference(stored, found)
    if difference is None:
        if listed is not None:
            yield from _compare_listed(seen, found, listed)
        return
    as_listed = listed is not None and stored.digest == listed.index_digest
    yield Finding(
        kind="shard_changed" if as_listed else "index_differs",
        shard=seen.name,
        place=difference.key,
        offset=difference.offset,
        told=difference.told,
    )
    if listed is not None and not as_listed and found.digest != listed.index_digest:
        yield from _compare_listed(seen, found, listed)


def _compare_listed(seen: Seen, found: SampleIndex, listed: Listed) -> Iterator[Finding]:
    """Compare an index that is the shard's own with what the manifest says of it."""
    if found.num_samples != listed.num_samples:
        yield _differing(
            seen, "count_differs", f"{listed.num_samples} samples", f"{found.num_samples}"
        )
    if found.digest != listed.index_digest:
        yield _differing(
            seen, "unlisted_index", f"an index with the digest {listed.index_digest}", found.digest
        )


def _differing(seen: Seen, kind: str, expected: str, found: str) -> Finding:
    return Finding(
        kind=kind,
        shard=seen.name,
        told=f"the manifest lists {expected}, and the shard has {found}",
    )


def first_difference(stored: SampleIndex, found: SampleIndex) -> Difference | None:
    """Give the first sample in which an index differs from that of the shard; None if none."""
    places = [
        _first(stored.sample_starts[1:], found.sample_starts[1:]),
        _first(stored.key_starts[1:], found.key_starts[1:]),
        _sample_of(found.sample_starts, _first(stored.member_offsets, found.member_offsets)),
        _sample_of(found.sample_starts, _first(stored.member_sizes, found.member_sizes)),
        _sample_of(found.sample_starts, _first(_renumbered(stored, found), found.member_fields)),
        _sample_of(found.key_starts, _first(stored.key_bytes, found.key_bytes)),
    ]
    differing = [place for place in places if place is not None]
    if differing:
        return _described(stored, found, min(differing))
    if stored.shard_bytes != found.shard_bytes:
        told = f"the index is of {stored.shard_bytes} bytes, and the shard has {found.shard_bytes}"
        return Difference(key=None, offset=None, told=told)
    if stored.fields != found.fields:
        told = f"the index has the fields {stored.fields[:20]}, and the shard {found.fields[:20]}"
        return Difference(key=None, offset=None, told=told)
    return None


def _first(left: NDArray[np.generic], right: NDArray[np.generic]) -> int | None:
    """Give the first place where two columns differ; the end of the shorter one is such a place."""
    common = min(len(left), len(right))
    differing = np.flatnonzero(left[:common] != right[:common])
    if differing.size:
        return int(differing[0])
    return None if len(left) == len(right) else common


def _sample_of(starts: NDArray[np.int64], place: int | None) -> int | None:
    """Give the sample that a member or a byte of the keys belongs to."""
    return None if place is None else int(np.searchsorted(starts, place, side="right")) - 1


def _renumbered(stored: SampleIndex, found: SampleIndex) -> NDArray[np.int64]:
    """Give the field numbers of `stored` in the numbering of `found`; -1 for others' fields."""
    number = {field: at for at, field in enumerate(found.fields)}
    table = np.array([number.get(field, -1) for field in stored.fields], dtype=np.int64)
    return table[stored.member_fields] if table.size else np.empty(0, dtype=np.int64)


def _described(stored: SampleIndex, found: SampleIndex, sample: int) -> Difference:
    source = found if sample < found.num_samples else stored
    key = source.key(sample) if sample < source.num_samples else None
    at = int(source.sample_starts[sample]) if sample < source.num_samples else None
    return Difference(
        key=key,
        offset=None if at is None else int(source.member_offsets[at]),
        told=f"at sample {sample} the index has {_words(stored, sample)}, and the shard "
        f"{_words(found, sample)}",
    )


def _words(index: SampleIndex, sample: int) -> str:
    """Say what an index has at a sample: its key, and a few of its fields with their places."""
    if sample >= index.num_samples:
        return f"no sample (it ends after {index.num_samples})"
    start, stop = index.sample_starts[sample : sample + 2].tolist()
    members = [
        f"{index.fields[int(index.member_fields[at])]} {index.member_sizes[at]} bytes "
        f"at {index.member_offsets[at]}"
        for at in range(start, min(stop, start + 8))
    ]
    more = ", ..." if stop - start > 8 else ""
    return f"{index.key(sample)!r} ({', '.join(members)}{more})"
