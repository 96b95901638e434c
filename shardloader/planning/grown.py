"""Are the datasets that logs tell of one that grew, and what was it at each time?

Shards are appended while a run trains: it ends the epoch on what it began with and takes all from
the next one on (`on_change="next-epoch"`). So its logs name several digests, and say of each from
which it has grown. Each earlier manifest is kept beside the present one under its digest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardloader.errors import UsageError
from shardloader.format.manifest import Manifest
from shardloader.reading.catalog import earlier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardloader.planning.sample_log import Start
    from shardloader.reading.catalog import Catalog


def check_is_one(starts: Sequence[Start], folder: Any) -> None:
    """Raise UsageError where the logs are of datasets of which none says that it has grown.

    Numbers of samples stay when a dataset grows, so that all can be counted together.
    """
    datasets = {(start.dataset, start.num_samples) for start in starts}
    links = {(start.dataset, start.grown_from) for start in starts if start.grown_from is not None}
    found, last = set[str](), {starts[0].dataset}
    while last - found:
        found |= last
        last = {one for link in links if found & set(link) for one in link}
    is_one = {digest for digest, _ in datasets} <= found
    if not is_one or len({digest for digest, _ in datasets}) < len(datasets):
        raise UsageError(
            f"an audit is of one dataset, and the logs in {folder} are of {len(datasets)}: "
            f"{sorted(datasets)}: keep each run's logs in a folder of their own"
        )


def manifests_of(
    starts: Sequence[Start], source: Catalog | Manifest, folder: Any
) -> dict[str, Manifest]:
    """Give the manifests of the datasets in some logs, by digest.

    Raises UsageError where `source` is none of them, nor has grown from it.
    """
    manifest = source if isinstance(source, Manifest) else source.manifest
    found = {manifest.digest: manifest}
    for digest, num_samples in sorted({(start.dataset, start.num_samples) for start in starts}):
        if digest not in found and not isinstance(source, Manifest):
            kept = earlier(source, digest, keep_damaged=True)
            if kept is not None:
                found[digest] = kept.manifest
        if digest not in found or found[digest].num_samples != num_samples:
            raise UsageError(
                f"an audit compares logs with the plan for the dataset that was read, and the logs "
                f"in {folder} are of one with the digest {digest!r}, this one has "
                f"{manifest.digest!r}: give the source of that run, as it was then"
            )
    return found
