"""Whether an index is of these bytes, by the headers of the outermost members."""

from __future__ import annotations

import io
import tarfile

import pytest

from shardloader.format.agreeing import begins_like, end_of_first_header, seems_to_be_of
from shardloader.format.index import SampleIndex
from shardloader.format.tar_header import BLOCK_BYTES
from tests.shards import sample_members, tar_bytes

TAR = tar_bytes([("__notes__/x", b"skipped"), *sample_members(3)])
LONG = f"{'folder/' * 30}{'k' * 90}"


def index_of(data: bytes) -> SampleIndex:
    return SampleIndex.build(data, shard="s")[0]


def foreign_tar(names, **options) -> bytes:
    """A tar by Python's tarfile."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", **options) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"x"))
    return buffer.getvalue()


def header_of_the_first(data: bytes, index: SampleIndex) -> bytes:
    stop = end_of_first_header(index)
    return data[stop - BLOCK_BYTES : stop]


@pytest.mark.parametrize(
    "data",
    [
        TAR,
        tar_bytes([]),
        foreign_tar(["a/b.Txt", f"{LONG}.txt"], format=tarfile.GNU_FORMAT),
        foreign_tar([f"{LONG}.txt", "b.txt"], format=tarfile.PAX_FORMAT),
        foreign_tar([f"{'é' * 80}.txt", "b.txt"], format=tarfile.PAX_FORMAT),
        foreign_tar([f"{'folder/' * 15}b.txt"], format=tarfile.USTAR_FORMAT),
    ],
    ids=["ours", "empty", "gnu", "pax", "not-ascii", "prefix"],
)
def test_an_index_seems_to_be_of_what_it_was_made_of(data):
    index = index_of(data)
    assert seems_to_be_of(index, memoryview(data))
    assert begins_like(index, header_of_the_first(data, index))


@pytest.mark.parametrize("number", [0, 2])
def test_another_key_first_or_last_is_another_shard(number):
    index = index_of(TAR)
    changed = [(name.replace(f"{number:06d}", "other0"), data) for name, data in sample_members(3)]
    other = tar_bytes([("__notes__/x", b"skipped"), *changed])
    assert len(other) == len(TAR)
    assert not seems_to_be_of(index, memoryview(other))
    assert begins_like(index, header_of_the_first(other, index)) is (number == 2)


def test_another_field_size_or_a_damaged_header_is_another_shard():
    index, place = index_of(TAR), TAR.index(b"000000.txt")
    assert not seems_to_be_of(index, memoryview(TAR + bytes(512)))
    for changed in (
        TAR.replace(b"000000.txt", b"000000.tx7"),  # the checksum does not hold
        TAR[:place] + bytes(BLOCK_BYTES) + TAR[place + BLOCK_BYTES :],
        tar_bytes([("__notes__/x", b"skipped"), ("000000.jpg", b""), *sample_members(3)[1:]]),
    ):
        assert not seems_to_be_of(index, memoryview(changed))
        assert not begins_like(index, header_of_the_first(changed, index))
