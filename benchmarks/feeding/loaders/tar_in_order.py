"""The readers that only go through a tar in order: Python's tarfile, and SPDL's in C++."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING, Any

from benchmarks.feeding.work import RAW, Loader, Opened, one_sample
from tools.corpora.shards import opened, paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from benchmarks.feeding.work import Work


def _by_tarfile(shard: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(shard, "r:") as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is not None:
                yield member.name, file.read()


def _by_spdl(shard: Path) -> Iterable[tuple[str, Any]]:
    from spdl.io import iter_tarfile

    members: Iterable[tuple[str, Any]] = iter_tarfile(opened(shard))
    return members


def _samples(work: Work, members_of: Any) -> Iterator[dict[str, Any]]:
    """The fields of every sample, the members between two changes of the key."""
    num_fields = len(work.corpus.fields)
    for shard in paths(work.folder):
        sample: dict[str, Any] = {}
        for name, data in members_of(shard):
            sample[name.rpartition(".")[2]] = data
            if len(sample) == num_fields:
                yield sample
                sample = {}


def _tarfile(work: Work) -> Opened:
    return Opened(items=_samples(work, _by_tarfile), item_samples=1, columns=one_sample)


def _spdl(work: Work) -> Opened:
    return Opened(items=_samples(work, _by_spdl), item_samples=1, columns=one_sample)


LOADERS = (
    Loader(name="tarfile", form="tar", opens={RAW: _tarfile}),
    Loader(
        name="SPDL, tar iterator",
        form="tar",
        opens={RAW: _spdl},
        packages=("spdl-io",),
        is_peer=True,
    ),
)
