"""Tar shards for tests: made with our own headers, or read by an oracle that shares nothing."""

from __future__ import annotations

import io
import re
import tarfile
from typing import TYPE_CHECKING

from shardloader.format.tar_header import END_OF_ARCHIVE, member_header, padding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


def tar_bytes(members: Iterable[tuple[str, bytes]]) -> bytes:
    parts = [
        part
        for name, data in members
        for part in (member_header(name, len(data)), data, bytes(padding(len(data))))
    ]
    return b"".join(parts) + END_OF_ARCHIVE


def sample_members(num_samples: int, *, first: int = 0, size: int = 20) -> list[tuple[str, bytes]]:
    """Members of samples with a `txt` and a `cls`, whose bytes tell which sample they are of."""
    members = []
    for number in range(first, first + num_samples):
        members.append((f"{number:06d}.txt", f"text {number} ".encode().ljust(size, b".")))
        members.append((f"{number:06d}.cls", b"%d" % (number % 10)))
    return members


def write_shard(path: Path, num_samples: int, *, first: int = 0, size: int = 20) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(sample_members(num_samples, first=first, size=size)))


def tarfile_members(data: bytes) -> list[tuple[str, bytes]]:
    """Give the regular files as the standard library reads them."""
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        found = []
        for info in archive:
            file = archive.extractfile(info) if info.isreg() else None
            if file is not None:
                found.append((info.name, file.read()))
        return found


_WEBDATASET = re.compile(r"^((?:.*/|)[^./]+)[.]([^/]+)$", re.DOTALL)
_RESERVED = re.compile(r"__[^/]*__($|/)")


def webdataset_samples(
    members: Iterable[tuple[str, bytes]],
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Group members by WebDataset's own rule, as a pattern and not as our code says it."""
    key, fields = None, dict[str, bytes]()
    for name, data in members:
        match = _WEBDATASET.match(name)
        if match is None or _RESERVED.match(name):
            continue
        if match[1] != key:
            if key is not None:
                yield key, fields
            key, fields = match[1], {}
        fields[match[2].lower()] = data
    if key is not None:
        yield key, fields
