"""What lies in a dataset, read by other means than the loader's: tarfile and zstandard."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import zstandard

from shardloader.format.manifest import Manifest
from tests.shards import webdataset_samples

if TYPE_CHECKING:
    from pathlib import Path


def manifest_of(folder: Path) -> Manifest:
    data = (folder / "manifest.json").read_bytes()
    return Manifest.from_json_bytes(data, name="manifest")


def tar_of(path: Path) -> bytes:
    """Give the tar in a shard, which may be compressed."""
    data = path.read_bytes()
    if path.suffix != ".zst":
        return data
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        return reader.read()


def read_shard(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    members = []
    with tarfile.open(fileobj=io.BytesIO(tar_of(path))) as archive:
        for info in archive:
            file = archive.extractfile(info)
            assert file is not None
            members.append((info.name, file.read()))
    return list(webdataset_samples(members))


def read_dataset(folder: Path) -> list[tuple[str, dict[str, bytes]]]:
    """Give keys and fields of all samples, in the manifest's order."""
    return [sample for name in manifest_of(folder).names for sample in read_shard(folder / name)]


def visible(folder: Path) -> dict[str, bytes]:
    """Give all files of a folder by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
