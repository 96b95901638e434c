"""Relatives of the compressed cases, built by hand, and what holds for any stream."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import subprocess
import tracemalloc
import zlib
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import ShardError
from shardloader.format.foreign import packing_of
from shardloader.format.notices import ERROR_KINDS
from shardloader.format.unpacking import Limits, tar_pieces
from tests.packing import (
    PACKED,
    deflate,
    gzip_member,
    skippable,
    zstd_frame,
    zstd_of_window,
    zstd_repeating,
)
from tests.shards import sample_members, tar_bytes

zipped = partial(gzip.compress, mtime=0)  # the same at any time: tests are named by it

TAR = tar_bytes(sample_members(5, size=700))
HALF = len(TAR) // 2 + 100
KIB = 1 << 10


def in_pieces(data, length=1 << 16):
    return [data[start : start + length] for start in range(0, len(data), length)]


def unpack(data, *, length=1 << 16, limits=None):
    return b"".join(tar_pieces(in_pieces(data, length), shard="x.tgz", limits=limits))


def error_of(data, **options):
    with pytest.raises(ShardError) as caught:
        unpack(data, **options)
    error = caught.value
    assert error.kind in ERROR_KINDS
    assert "x.tgz" in str(error)
    return error


SOUND = {
    "plain": TAR,
    "gzip": zipped(TAR),
    "three members, the middle one empty": (
        zipped(TAR[:HALF]) + zipped(b"") + zipped(TAR[HALF:])
    ),
    "zeros between members": zipped(TAR[:HALF]) + bytes(700) + zipped(TAR[HALF:]),
    "zeros at the end": zipped(TAR) + bytes(100_000),
    "stored blocks": zipped(TAR, compresslevel=0),
    "every field of the header": gzip_member(
        TAR, flags=31, fields=struct.pack("<H", 300) + bytes(300) + b"name.tar\0" + b"comment\0"
    ),
    "empty name and extra": gzip_member(TAR, flags=12, fields=bytes(2) + b"\0"),
    "a long name": gzip_member(TAR, flags=8, fields=b"n" * 5000 + b"\0"),
    "many tiny members": b"".join(zipped(TAR[n : n + 7]) for n in range(0, len(TAR), 7)),
    "zstd": zstd_frame(TAR),
    "zstd, neither size nor checksum": zstd_frame(TAR, size=False, checksum=False),
    "zstd frames, one of them empty": (
        zstd_frame(TAR[:HALF]) + zstd_frame(b"") + zstd_frame(TAR[HALF:], size=False)
    ),
    "skippable frames all over": (
        skippable(b"", 15) + zstd_frame(TAR[:HALF]) + skippable(bytes(9999), 3)
        + zstd_frame(TAR[HALF:]) + skippable(b"end")
    ),
    "many tiny frames": b"".join(zstd_frame(TAR[n : n + 7]) for n in range(0, len(TAR), 7)),
    "a window of 64 MiB": zstd_of_window(TAR, 26),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("length", [1, 13, 1 << 16])
def test_sound_streams_give_the_tar_however_they_arrive(name, length):
    assert unpack(SOUND[name], length=length) == TAR


@pytest.mark.parametrize("name", ["plain", *PACKED])
def test_an_empty_archive_is_sound(name):
    empty = tar_bytes([])
    assert unpack(empty if name == "plain" else PACKED[name](empty)) == empty


@pytest.mark.parametrize("name", [name for name in SOUND if name != "plain"])
def test_cut_anywhere_it_is_an_error(name):
    """But where what is left is whole: behind a member or frame, or among zeros."""
    whole = SOUND[name]
    step = max(1, len(whole) // 97)
    kinds, beyond = set(), False
    for stop in [*range(1, 40), *range(40, len(whole), step), *range(len(whole) - 9, len(whole))]:
        try:
            assert TAR.startswith(unpack(whole[:stop]))
            assert name.startswith(("three", "zeros", "zstd frames", "skippable", "many"))
        except ShardError as error:
            kinds.add(error.kind)
            beyond |= error.offset is not None and error.offset > stop
    # what is left may hold less than a header, or be too short to know
    assert "truncated" in kinds
    assert not beyond
    assert kinds <= {"truncated", "not_a_tar", "empty_file"}


@pytest.mark.parametrize(
    ("name", "stop", "words"),
    [
        ("gzip", 5, "a gzip header should lie in the 10 bytes from byte 0 on"),
        ("every field of the header", 11, "length of a gzip header's extra field"),
        ("every field of the header", 100, "extra field should lie in the 300 bytes from byte 12"),
        ("every field of the header", 315, "name begins at byte 312 and should end with a NUL"),
        ("every field of the header", 325, "comment begins at byte 321 and should end"),
        ("every field of the header", 330, "a gzip header's checksum"),
        ("gzip", -3, "a gzip trailer (CRC and length) should lie in the 8 bytes"),
        ("gzip", -8, "the file ends after 0 of them"),
        ("zstd", 4, "a zstd frame's header should lie in the 1 bytes from byte 4"),
        ("zstd", -2, "a zstd frame's checksum should lie in the 4 bytes"),
        ("zstd", -5, "a zstd block should lie in"),
        ("skippable frames all over", 6, "the length of a skippable zstd frame"),
        ("skippable frames all over", -1, "a skippable zstd frame should have 3 bytes"),
        ("skippable frames all over", -9, "the file ends in its magic"),
    ],
)
def test_a_cut_says_what_was_expected_and_where(name, stop, words):
    error = error_of(SOUND[name][:stop])
    assert error.kind == "truncated"
    assert words in str(error)


def flipped(data, at):
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]


@pytest.mark.parametrize(
    ("data", "kind", "offset", "words"),
    [
        (gzip_member(TAR, crc=7), "checksum_mismatch", None, "stores the CRC 00000007"),
        (gzip_member(TAR, length=9), "checksum_mismatch", None, "stores the length 9"),
        (
            flipped(gzip_member(TAR, flags=2), 9),
            "checksum_mismatch", 10, "the gzip header stores",
        ),
        (gzip_member(TAR, method=7), "bad_compression", 2, "method 8 (deflate), not 7"),
        (gzip_member(TAR, flags=64), "bad_compression", 3, "below 32, not 64"),
        (zipped(TAR) + b"garbage", "bad_compression", None, r"there is b'ga'"),
        (zipped(TAR) + zstd_frame(TAR), "bad_compression", None, "a gzip member, zeros"),
        (gzip_member(b"")[:10] + b"\xff" * 99, "bad_compression", None, "can't be decoded"),
        (flipped(zstd_frame(TAR), -1), "checksum_mismatch", None, "the zstd frame stores"),
        (zstd_frame(TAR) + b"\0\0\0\0", "bad_compression", None, "a zstd frame or the end"),
        (zstd_frame(TAR) + zipped(TAR), "bad_compression", None, "a zstd frame or"),
        (b"\x28\xb5\x2f\xfd\x08" + bytes(99), "bad_compression", 4, "reserved bit"),
        (b"\x28\xb5\x2f\xfd\x00\x58\x07" + bytes(99), "bad_compression", 6, "the type 3"),
        (b"\x28\xb5\x2f\xfd\x00\x58\xff\xff\xfc" + bytes(99), "bad_compression", 6, "at most"),
        (b"\x28\xb5\x2f\xfd\x20\x63\x09\0\0\1", "bad_compression", 6, "can't be decoded"),
        (
            zstd_frame(TAR) + b"\x27\xb5\x2f\xfd" + bytes(9),
            "unsupported_compression", None, "zstd 0.7 or older",
        ),
        (b"\x25\xb5\x2f\xfd" + bytes(999), "not_a_tar", 0, "zstd 0.7 or older"),
        (bz2.compress(TAR), "not_a_tar", 0, "bzip2"),
        (lzma.compress(TAR), "not_a_tar", 0, "xz"),
        (zipped(bz2.compress(TAR)), "not_a_tar", 0, "bzip2"),
        (zipped(zipped(TAR)), "not_a_tar", 0, "compressed twice"),
        (zstd_frame(zipped(TAR)), "not_a_tar", 0, "compressed twice"),
        (zipped(zstd_frame(TAR)), "not_a_tar", 0, "compressed twice"),
        (zipped(b"<html>not found</html>" * 99), "not_a_tar", 0, "looks like HTML"),
        (zipped(b"short"), "not_a_tar", 0, "it has 5 bytes"),
        (zipped(b""), "empty_file", 0, "0 bytes"),
        (skippable(b"nothing else"), "empty_file", 0, "0 bytes"),
        (b"", "empty_file", 0, "0 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_sound_stream_is_refused_with_its_place(data, kind, offset, words):
    error = error_of(data)
    assert error.kind == kind
    assert words in str(error)
    assert offset is None or error.offset == offset
    assert kind in {"not_a_tar", "empty_file"} or f"byte {error.offset}" in str(error)


def test_a_fault_behind_the_tars_end_is_found_too():
    """The tar's end marker is not the stream's end."""
    error = error_of(zipped(TAR) + gzip_member(bytes(512), crc=1))
    assert error.kind == "checksum_mismatch"


def test_a_frame_with_a_dictionary_is_refused_by_its_number():
    samples: list[Any] = [bytes(range(200)) + b"%d" % number for number in range(500)]
    dictionary = zstandard.train_dictionary(2000, samples, dict_id=4711)
    packed = zstandard.ZstdCompressor(dict_data=dictionary).compress(TAR)
    error = error_of(packed)
    assert error.kind == "unsupported_compression"
    assert "needs the dictionary 4711" in str(error)


def test_a_dictionary_that_the_frame_does_not_name_is_an_error_too():
    dictionary = zstandard.ZstdCompressionDict(TAR, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    packed = zstandard.ZstdCompressor(dict_data=dictionary, write_checksum=True).compress(TAR)
    assert "dictionary" in str(error_of(packed))


def test_a_window_above_the_limit_is_refused_and_read_where_it_is_raised():
    packed = zstd_of_window(TAR, 28)
    error = error_of(packed)
    assert error.kind == "unsupported_compression"
    assert "window of 268435456 bytes" in str(error)
    assert "max_window=" in str(error)
    assert unpack(packed, limits=Limits(max_window_bytes=1 << 28)) == TAR


def test_the_largest_window_that_is_declared_takes_no_memory():
    frame = b"\x28\xb5\x2f\xfd\x00\xff" + bytes(99)  # 3.75 TiB
    tracemalloc.start()
    error = error_of(frame, limits=Limits(max_window_bytes=1 << 31))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert error.kind == "unsupported_compression"
    assert peak < 1 << 20


def bomb(kind):
    if kind == "zstd":
        return zstd_frame(TAR) + zstd_repeating(b"\0", 4096)
    deflater = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    return b"".join([deflater.compress(zeros) for _ in range(512)]) + deflater.flush()


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_bomb_stops_at_the_limit_in_small_pieces_and_is_read_where_it_is_raised(kind):
    packed = bomb(kind)
    limits = Limits(free_bytes=32 << 20)
    tracemalloc.start()
    lengths: list[int] = []
    with pytest.raises(ShardError, match=r"expands too far.*max_expansion=") as caught:
        lengths.extend(map(len, tar_pieces([packed], shard="x", limits=limits)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.kind == "expands_too_far"
    assert sum(lengths) <= max(32 << 20, 500 * len(packed))
    assert max(lengths) <= 1 << 20
    assert peak < 8 << 20
    raised = Limits(free_bytes=32 << 20, max_expansion=100_000)
    assert sum(len(piece) for piece in tar_pieces([packed], shard="x", limits=raised)) >= 512 << 20


def test_what_a_header_declares_is_not_gathered_before_it_arrives():
    huge = [skippable(b"")[:4] + b"\xff\xff\xff\xff" + bytes(99), gzip_member(b"")[:3] + b"\4"]
    for data in huge:
        tracemalloc.start()
        error_of(data + bytes(6) + b"\xff\xff")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20


def test_a_tar_whose_first_member_is_called_like_a_magic_is_a_tar():
    skippable_frame = tar_bytes([("P*M\x18.txt", b"x")])
    assert skippable_frame.startswith(b"P*M\x18")
    renamed = bytearray(tar_bytes([("ab.txt", b"x")]))
    renamed[:2] = b"\x1f\x8b"
    renamed[148:156] = b" " * 8
    renamed[148:156] = b"%06o\0 " % sum(renamed[:512])
    for archive in (skippable_frame, bytes(renamed)):
        assert packing_of(archive[:100]) is not None
        assert packing_of(archive) is None
        assert unpack(archive) == archive


PARTS = st.lists(st.binary(max_size=3000), min_size=1, max_size=5)


@given(parts=PARTS, size=st.booleans(), checksum=st.booleans(), length=st.integers(1, 700))
def test_any_members_or_frames_give_what_was_packed(parts, size, checksum, length):
    whole = TAR + b"".join(parts)
    pieces = [TAR, *parts]
    gz = b"".join(zipped(part) for part in pieces)
    zst = b"".join(zstd_frame(part, size=size, checksum=checksum) for part in pieces)
    assert unpack(gz, length=length) == unpack(zst, length=length) == whole


@given(at=st.integers(0, 10**6), bit=st.integers(0, 7), name=st.sampled_from(["gzip", "zstd"]))
def test_a_bit_that_flips_is_noticed_or_means_nothing(at, bit, name):
    """gzip's header holds bytes that say nothing: time, system. All others are checked."""
    data = bytearray(SOUND[name])
    at %= len(data)
    data[at] ^= 1 << bit
    with suppress(ShardError):
        assert unpack(bytes(data)) == TAR


@given(data=st.binary(max_size=200), start=st.sampled_from([b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"]))
def test_noise_is_an_error_of_ours(data, start):
    with pytest.raises(ShardError):
        unpack(start + data)


def test_the_same_is_refused_as_by_the_gzip_command(tmp_path):
    """What `gzip -t` calls sound is read, and what it calls broken is not."""
    packed = gzip_member(TAR, flags=2) + zipped(b"more")
    variants = {
        "sound": packed,
        "cut": packed[:-4],
        "crc": packed[:-6] + b"\0" + packed[-5:],
    }
    for name, data in variants.items():
        (tmp_path / f"{name}.gz").write_bytes(data)
        done = subprocess.run(
            ["gzip", "-t", tmp_path / f"{name}.gz"], capture_output=True, check=False, timeout=20
        )
        try:
            unpack(data)
            is_sound = True
        except ShardError:
            is_sound = False
        assert is_sound == (done.returncode == 0), name


def test_deflate_alone_is_no_shard():
    assert error_of(deflate(TAR)).kind == "not_a_tar"
