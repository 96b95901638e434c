"""The writing side of tar: exact bytes, and what can't be written."""

from __future__ import annotations

import io
import tarfile

import pytest

from shardloader.format.tar import scan
from shardloader.format.tar_header import END_OF_ARCHIVE, member_header, padding


@pytest.mark.parametrize("size", [0, 10, 700, 8**11 - 1])
def test_a_short_name_makes_the_bytes_that_tarfile_makes(size):
    info = tarfile.TarInfo("a/000001.jpg")
    info.size = size
    assert member_header("a/000001.jpg", size) == info.tobuf(tarfile.USTAR_FORMAT)


def test_a_name_that_splits_uses_the_prefix_as_tarfile_does():
    name = "folder/" * 20 + "x" * 90
    info = tarfile.TarInfo(name)
    assert member_header(name, 0) == info.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize(
    ("name", "size", "header_bytes"),
    [
        ("x" * 100, 0, 512),
        ("x" * 101, 0, 1536),
        ("p" * 155 + "/" + "x" * 100, 0, 512),
        ("p" * 156 + "/" + "x" * 100, 0, 1536),
        ("p" * 155 + "/" + "x" * 101, 0, 1536),
        ("x.bin", 8**11, 1536),
        ("é" * 50, 0, 512),
        ("é" * 51, 0, 1536),
    ],
)
def test_pax_is_used_only_where_ustar_ends(name, size, header_bytes):
    assert len(member_header(name, size)) == header_bytes


@pytest.mark.parametrize("length", [*range(80, 105), 985, 986, 987, 988, 989, 990, 10_000])
def test_pax_records_count_their_own_length_at_every_border(length):
    name = "x" * length
    (member,) = scan(member_header(name, 0) + END_OF_ARCHIVE, shard="s")
    assert member.name == name


@pytest.mark.parametrize("name", ["", "a\0b", "folder/"])
def test_names_that_no_tar_can_hold_are_refused(name):
    with pytest.raises(ValueError, match="tar member's name"):
        member_header(name, 0)


def test_a_negative_size_is_refused():
    with pytest.raises(ValueError, match="at least 0"):
        member_header("a.txt", -1)


def test_padding_fills_the_last_block():
    assert [padding(size) for size in (0, 1, 511, 512, 513)] == [0, 511, 1, 0, 511]


def test_a_long_name_that_is_no_utf8_is_marked_binary_and_read_by_tarfile():
    name = "\udcff" * 120
    header = member_header(name, 0)
    assert b"hdrcharset=BINARY" in header
    with tarfile.TarFile(fileobj=io.BytesIO(header + END_OF_ARCHIVE)) as archive:
        assert archive.getnames() == [name]
    (member,) = scan(header + END_OF_ARCHIVE, shard="s")
    assert member.name == name
