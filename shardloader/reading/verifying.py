"""Is a dataset whole: every shard there, and each what its index and the manifest say?

Nothing is changed or made, and it never stops at the first fault: what can be looked at is looked
at. Shards are checked in several processes; one that dies costs its shard a row. Interrupted, it
gives what it had.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from shardloader.errors import ManifestError, UsageError, WorldError
from shardloader.format.comparing import Listed
from shardloader.format.findings import FAULT, Finding
from shardloader.reading.crew import Killed, work_through
from shardloader.reading.indexing import no_manifest, read_manifest
from shardloader.reading.remote_source import place_of
from shardloader.reading.shard_check import CheckedShard, ShardToCheck, check_shard
from shardloader.reading.source import INDEX_SUFFIX, find_shards, is_unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardloader.format.manifest import Manifest
    from shardloader.format.unpacking import Limits
    from shardloader.reading.decode import DecodeTable
    from shardloader.reading.source import PathText, Source, SourceText


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a look at a whole dataset found; counts are of the shards that were checked.

    `digest` is None without a manifest; `findings` are those of the dataset, then shard by shard
    in the dataset's order. `is_interrupted`: not all of `num_shards` were checked.
    """

    location: str
    digest: str | None
    has_content_digests: bool
    findings: tuple[Finding, ...]
    num_shards: int
    num_checked: int
    num_samples: int
    num_members: int
    num_bytes: int
    is_interrupted: bool

    def num_of(self, level: str) -> int:
        """How many findings have this level."""
        return sum(finding.level == level for finding in self.findings)

    @property
    def is_sound(self) -> bool:
        """Whether no fault was found."""
        return self.num_of(FAULT) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is to be checked, and what is wrong with the dataset already without looking."""

    shards: tuple[ShardToCheck, ...]
    manifest: Manifest | None
    findings: tuple[Finding, ...]


def verify_dataset(
    source: SourceText,
    *,
    index_dir: PathText | None = None,
    storage_options: Mapping[str, Any] | None = None,
    num_processes: int | None = None,
    decode: DecodeTable | None = None,
    limits: Limits | None = None,
    watch: Callable[[int], Callable[[], object]] | None = None,
) -> Verification:
    """Check every shard of a dataset against its index, its manifest and its content digest.

    `decode` is a table that every field is to be decoded with, None for none; `limits` says how far
    a compressed shard may expand, which is unpacked for the look alone. `watch` is given the number
    of shards and gives what to call for each that is done. A KeyboardInterrupt ends it with what it
    had. Remote shards are fetched one by one a process, into files without a name. Raises
    UsageError for what is no dataset, and for a remote folder without a manifest.
    """
    place = place_of(source, index_dir=index_dir, storage_options=storage_options)
    plan = _planned(place)
    # In the function and not in the jobs: it is forked, and need not be pickled. A store that was
    # would come without its client, and making one takes as long as reading a small shard.
    work = partial(_check_one, plan.shards, decode=decode, limits=limits)
    done = (lambda: None) if watch is None else watch(len(plan.shards))
    checked: dict[int, CheckedShard] = {}
    try:
        _check_all(work, plan.shards, num_processes or len(os.sched_getaffinity(0)), checked, done)
    except KeyboardInterrupt:
        return _concluded(place, plan, checked, is_interrupted=True)
    return _concluded(place, plan, checked, is_interrupted=False)


def _check_one(
    shards: Sequence[ShardToCheck],
    number: int,
    *,
    decode: DecodeTable | None,
    limits: Limits | None,
) -> CheckedShard:
    return check_shard(shards[number], decode=decode, limits=limits)


def _check_all(
    work: Callable[[int], CheckedShard],
    shards: Sequence[ShardToCheck],
    num_processes: int,
    checked: dict[int, CheckedShard],
    done: Callable[[], object],
) -> None:
    """Check shards, and put down each as soon as it is known."""
    results = work_through(work, range(len(shards)), num_processes=num_processes)
    try:
        for number, result in results:
            if isinstance(result, Killed):
                killed = Finding(kind="worker_killed", shard=shards[number].name, told=str(result))
                checked[number] = CheckedShard(findings=(killed,))
            else:
                checked[number] = result
            done()
    finally:
        results.close()


def _planned(place: Source) -> _Plan:
    """Decide what is to be checked, from the manifest and the names in the folder."""
    manifest, findings = _manifest(place)
    if place.names is None and place.store is None and is_unfinished(place.root):
        told = "a writer was broken off in this folder, or still writes"
        findings.append(Finding(kind="unfinished_writer", told=told))
    listed = {} if manifest is None else _by_name(manifest)
    names = list(listed)
    there = _there(place, required=manifest is None)
    names += [name for name in there if name not in listed]
    if manifest is not None:
        findings += [
            Finding(kind="unlisted_shard", shard=name, told="the manifest does not list this shard")
            for name in there
            if name not in listed
        ]
    shards = tuple(_to_check(place, name, listed.get(name)) for name in names)
    return _Plan(shards=shards, manifest=manifest, findings=tuple(findings))


def shards_to_check(place: Source) -> tuple[ShardToCheck, ...]:
    """Give what `check_shard` takes for every shard that a dataset lists or has."""
    return _planned(place).shards


def _to_check(place: Source, name: str, listed: Listed | None) -> ShardToCheck:
    return ShardToCheck(
        name=name,
        path=place.shard_path(name),
        index_path=place.index_path(name),
        listed=listed,
        file=None if place.store is None else place.store.at(name),
        index_file=None
        if place.index_store is None
        else place.index_store.at(f"{name}{INDEX_SUFFIX}"),
    )


def _manifest(place: Source) -> tuple[Manifest | None, list[Finding]]:
    try:
        manifest = read_manifest(place)
    except (ManifestError, WorldError) as error:
        return None, [Finding(kind="bad_manifest", told=str(error))]
    if manifest is None and place.names is None:
        told = "there is no manifest, so nobody knows whether shards are missing"
        return None, [Finding(kind="no_manifest", told=told)]
    if manifest is not None and manifest.content_digests is None:
        told = "the manifest has no content digests: names, places and sizes are compared, no data"
        return manifest, [Finding(kind="no_content_digests", told=told)]
    return manifest, []


def _by_name(manifest: Manifest) -> dict[str, Listed]:
    columns = zip(
        manifest.names,
        manifest.sizes.tolist(),
        manifest.counts.tolist(),
        manifest.index_digests,
        manifest.content_digests or [None] * manifest.num_shards,
        strict=True,
    )
    return {
        name: Listed(
            shard_bytes=size, num_samples=count, index_digest=index, content_digest=content
        )
        for name, size, count, index, content in columns
    }


def _there(place: Source, *, required: bool) -> Sequence[str]:
    """List the shards that are there; without a manifest there is at least one."""
    if place.names is not None:
        return place.names
    if place.store is not None:
        if required:
            raise no_manifest(place)
        return ()  # a store's folder is not listed
    try:
        return find_shards(place.root)
    except UsageError:
        if required:
            raise
        return ()


def _concluded(
    place: Source, plan: _Plan, checked: dict[int, CheckedShard], *, is_interrupted: bool
) -> Verification:
    shards = [checked[number] for number in sorted(checked)]
    findings = [*plan.findings, *(each for shard in shards for each in shard.findings)]
    if plan.manifest is None:
        findings += _without_index(plan, checked)
    return Verification(
        location=place.location,
        digest=None if plan.manifest is None else plan.manifest.digest,
        has_content_digests=plan.manifest is not None and plan.manifest.content_digests is not None,
        findings=_in_order(plan, findings),
        num_shards=len(plan.shards),
        num_checked=len(checked),
        num_samples=sum(shard.num_samples for shard in shards),
        num_members=sum(shard.num_members for shard in shards),
        num_bytes=sum(shard.num_bytes for shard in shards),
        is_interrupted=is_interrupted,
    )


def _without_index(plan: _Plan, checked: dict[int, CheckedShard]) -> list[Finding]:
    """Find the shards with no index where no manifest lists one: they get theirs on first use."""
    names = [
        plan.shards[number].name
        for number, shard in sorted(checked.items())
        if shard.num_bytes and not shard.has_index
    ]
    if not names:
        return []
    told = f"{len(names)} of {len(checked)} shards have no index yet, such as {names[0]}"
    return [Finding(kind="no_indexes", told=told, times=len(names))]


def _in_order(plan: _Plan, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort findings: the dataset's, then shard by shard."""
    place = {shard.name: number for number, shard in enumerate(plan.shards)}
    return tuple(sorted(findings, key=lambda each: place.get(each.shard or "", -1)))
