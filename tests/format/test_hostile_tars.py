"""Tars that someone made to do harm: what a header declares is never made, and no link followed."""

from __future__ import annotations

import io
import tarfile
import tracemalloc

import pytest

from shardloader.errors import ShardError
from shardloader.format.index import SampleIndex
from shardloader.format.ordinary import index_columns
from shardloader.format.tar_header import END_OF_ARCHIVE, member_header, padding
from tests.shards import sample_members, tar_bytes

SOUND = tar_bytes(sample_members(2))[: -len(END_OF_ARCHIVE)]
ONE_MIB = 1 << 20


def header(name: str, size: bytes, typeflag: bytes = b"0") -> bytes:
    """A ustar header with any bytes for its size, and a checksum that holds."""
    block = bytearray(member_header(name, 0)[:512])
    block[124:136] = size
    block[156:157] = typeflag
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def base256(number: int) -> bytes:
    return b"\x80" + number.to_bytes(11, "big")


def padded(data: bytes) -> bytes:
    return data + bytes(padding(len(data)))


def extension(typeflag: bytes, data: bytes, size: int | None = None) -> bytes:
    declared = len(data) if size is None else size
    return header("x", b"%011o\0" % declared, typeflag) + padded(data)


MEMBER = member_header("000009.txt", 3) + padded(b"abc") + END_OF_ARCHIVE

HOSTILE = {
    "a size of 8 EiB": header("9.bin", base256(2**63 - 1)) + END_OF_ARCHIVE,
    "a size of 2^86": header("9.bin", base256(2**86)) + END_OF_ARCHIVE,
    "a size that wraps to its padding": header("9.bin", base256(2**64 - 512)) + END_OF_ARCHIVE,
    "an octal size of 8 GiB": header("9.bin", b"777777777777") + END_OF_ARCHIVE,
    "a PAX size of 20 digits": extension(b"x", b"29 size=99999999999999999999\n") + MEMBER,
    "a PAX size of 100 digits": extension(b"x", b"110 size=" + b"9" * 100 + b"\n") + MEMBER,
    "a negative PAX size": extension(b"x", b"11 size=-1\n") + MEMBER,
    "a PAX record that is longer than its header": extension(b"x", b"99 path=a.txt\n") + MEMBER,
    "a PAX record of 10^19 bytes": extension(b"x", b"9999999999999999999 path=a\n") + MEMBER,
    "a PAX record of no bytes": extension(b"x", b"0 path=a.txt\n") + MEMBER,
    "a PAX record without a length": extension(b"x", b"path=a.txt\n") + MEMBER,
    "a PAX header of a terabyte": header("x", base256(2**40), b"x") + MEMBER,
    "a PAX header of 2 MiB": extension(b"x", bytes(2 * ONE_MIB)) + MEMBER,
    "a global PAX header of 2 MiB": extension(b"g", bytes(2 * ONE_MIB)) + MEMBER,
    "a long name of a terabyte": header("x", base256(2**40), b"L") + MEMBER,
    "a long name of 2 MiB": extension(b"L", b"a" * 2 * ONE_MIB) + MEMBER,
    "a long link of 2 MiB": extension(b"K", b"a" * 2 * ONE_MIB) + MEMBER,
    "a sparse file of a terabyte": extension(
        b"x", b"22 GNU.sparse.major=1\n34 GNU.sparse.realsize=1099511627776\n"[:22]
    )
    + MEMBER,
    "a size that begins with a NUL": header("9.bin", b"\0" + b"7".ljust(11, b"\0")) + MEMBER,
    "PAX records behind their size": header("x", b"%011o\0" % 10, b"x")
    + padded(b"10 mtime=\n14 path=b.txt\n")
    + MEMBER,
    "a name behind the size of a global PAX header": header("x", b"%011o\0" % 10, b"g")
    + padded(b"10 mtime=\n14 path=b.txt\n")
    + MEMBER,
    "PAX records of whole words, and one more": header("x", b"%011o\0" % 16, b"x")
    + padded(b"16 mtime=123456\n14 path=b.txt\n")
    + MEMBER,
    "an old sparse file": header("9.bin", b"%011o\0" % 512, b"S") + bytes(512) + END_OF_ARCHIVE,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_header_declares_is_refused_and_never_made(name):
    data = SOUND + HOSTILE[name]
    assert index_columns(data) is None  # the way by columns leaves it to the careful one
    tracemalloc.start()
    try:
        with pytest.raises(ShardError, match=r"^hostile\.tar: ") as caught:
            SampleIndex.build(data, shard="hostile.tar")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.kind in {"truncated", "bad_header", "unsupported_member"}
    assert caught.value.offset is not None
    assert caught.value.offset >= len(SOUND)
    assert most < 3 * ONE_MIB  # a batch of headers by columns takes one


LINKS = {
    "a symbolic link": (tarfile.SYMTYPE, "/etc/passwd"),
    "a symbolic link upwards": (tarfile.SYMTYPE, "../../../../etc/passwd"),
    "a hard link": (tarfile.LNKTYPE, "/etc/passwd"),
    "a hard link to a member": (tarfile.LNKTYPE, "000000.txt"),
    "a link with a long target": (tarfile.SYMTYPE, "/etc/" + "../etc/" * 40 + "passwd"),
    "a character device": (tarfile.CHRTYPE, ""),
    "a block device": (tarfile.BLKTYPE, ""),
    "a fifo": (tarfile.FIFOTYPE, ""),
}


@pytest.mark.parametrize("size", [0, 4096])
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("name", LINKS)
def test_links_and_devices_are_skipped_and_remarked_and_have_no_bytes(name, form, size):
    kind, target = LINKS[name]
    link = tarfile.TarInfo("000000.jpg")
    link.type, link.linkname = kind, target
    if len(target) > 100 and form == tarfile.USTAR_FORMAT:
        pytest.skip("ustar has no room for the target")
    made = bytearray(link.tobuf(form))
    if size:  # a size that would skip what follows, were it believed
        made[-512 + 124 : -512 + 136] = b"%011o\0" % size
        made[-512 + 148 : -512 + 156] = b" " * 8
        made[-512 + 148 : -512 + 156] = b"%06o\0 " % sum(made[-512:])
    data = tar_bytes(sample_members(1))[: -len(END_OF_ARCHIVE)] + bytes(made) + SOUND[2048:]
    index, notices = SampleIndex.build(data + END_OF_ARCHIVE, shard="s.tar")
    assert [index.key(number) for number in range(index.num_samples)] == ["000000", "000001"]
    assert index.fields == ("cls", "txt")
    assert [notice.kind for notice in notices] == ["special_member"]
    with tarfile.open(fileobj=io.BytesIO(data + END_OF_ARCHIVE)) as archive:
        assert [info.name for info in archive if info.isreg()] == [
            "000000.txt",
            "000000.cls",
            "000001.txt",
            "000001.cls",
        ]
