"""Seek tables, of our own and of strangers, also of those who mean harm; and the frames in them."""

from __future__ import annotations

import re
import tracemalloc
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import ShardError
from shardloader.format.notices import ERROR_KINDS
from shardloader.format.seek_table import (
    ENTRY_BYTES,
    FOOT_BYTES,
    parse_seek_table,
    seek_table,
    seek_table_bytes,
    told_table_bytes,
)
from shardloader.format.zstd_frames import frame_content
from tests.packing import (
    frames_of,
    seekable,
    skippable,
    table_of,
    zstd_frame,
    zstd_of_window,
    zstd_repeating,
)
from tests.shards import sample_members, tar_bytes

TAR = tar_bytes(sample_members(6, size=700))
EDGES = (700, 701, 4096, 4096, 9000)
NAME = "s.tar.zst"
MIB = 1 << 20


def parsed(file, end=None):
    """The table of a file, whose end alone is looked at."""
    length = told_table_bytes(file if end is None else end, file_bytes=len(file), shard=NAME)
    assert length is not None
    return parse_seek_table(file[-length:], file_bytes=len(file), shard=NAME)


def error_of(file):
    with pytest.raises(ShardError, match=NAME) as caught:
        parsed(file)
    assert caught.value.kind == "bad_compression"
    assert caught.value.offset is not None
    assert 0 <= caught.value.offset <= len(file)
    return str(caught.value)


@pytest.mark.parametrize("checksums", [False, True])
def test_a_table_says_where_frames_lie_and_what_they_hold(checksums):
    file = seekable(TAR, EDGES, checksums=checksums)
    table = parsed(file, file[-FOOT_BYTES:])
    assert table.plain_edges.tolist() == [0, *EDGES, len(TAR)]
    assert table.tar_bytes == len(TAR)
    assert (table.checksums is not None) == checksums
    for (start, stop), (part, packed) in zip(
        pairwise(table.packed_edges.tolist()), frames_of(TAR, EDGES), strict=True
    ):
        assert file[start:stop] == packed
        found = frame_content(
            packed, start=start, num_bytes=len(part), shard=NAME, max_window_bytes=MIB
        )
        assert found == part


@given(
    st.lists(st.tuples(st.integers(1, 2**32 - 1), st.integers(0, 2**32 - 1)), max_size=30),
)
def test_what_is_written_is_read(frames):
    table = seek_table(frames)
    assert table == table_of(frames)
    assert len(table) == seek_table_bytes(len(frames))
    file_bytes = sum(packed for packed, _ in frames) + len(table)
    assert told_table_bytes(table, file_bytes=file_bytes, shard=NAME) == len(table)
    found = parse_seek_table(table, file_bytes=file_bytes, shard=NAME)
    assert np.diff(found.packed_edges).tolist() == [packed for packed, _ in frames]
    assert np.diff(found.plain_edges).tolist() == [plain for _, plain in frames]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.data())
def test_the_frames_of_a_stretch_are_those_that_hold_a_byte_of_it_and_what_lies_between(
    sizes, data
):
    edges = np.cumsum([0, *sizes]).tolist()
    packed = table_of((1, size) for size in sizes)
    table = parse_seek_table(packed, file_bytes=len(packed) + len(sizes), shard=NAME)
    total = edges[-1]
    if total:
        start = data.draw(st.integers(0, total - 1))
        stop = data.draw(st.integers(start + 1, total))
        (first,), (last,) = table.frames_of(np.array([start]), np.array([stop]))
        assert edges[first] <= start < edges[first + 1]
        assert edges[last] < stop <= edges[last + 1]


@pytest.mark.parametrize("file", [b"", b"short", zstd_frame(TAR), TAR, zstd_frame(TAR) + bytes(99)])
def test_a_file_without_a_table_has_none(file):
    assert told_table_bytes(file[-4096:], file_bytes=len(file), shard=NAME) is None


FRAME = zstd_frame(TAR)
SOUND = (len(FRAME), len(TAR))
HOSTILE = {
    "a frame too many": ([SOUND, (8, 0)], {}, "have .* together, and .* lie before"),
    "too few bytes": ([(len(FRAME) - 1, len(TAR))], {}, "together"),
    "overlapping": ([SOUND, SOUND], {}, "together"),
    "huge": ([(2**32 - 1, 2**32 - 1)] * 3, {}, "together"),
    "a frame of no bytes": ([SOUND, (0, 5)], {}, "frame 1 has no bytes"),
    "no frames": ([], {}, "0 bytes together"),
    "more frames than the file has room for": ([SOUND], {"num_frames": 2**32 - 1}, "has 34359"),
    "fewer frames than there are": ([SOUND, SOUND], {"num_frames": 1}, "should begin"),
    "more frames than there are": ([SOUND], {"num_frames": 2}, "should begin"),
    "another length": ([SOUND], {"length": 9}, "should begin"),
    "no skippable frame": ([SOUND], {"magic": 0xFD2FB528}, "should begin"),
    "another kind of entries": ([SOUND], {"descriptor": 0x80}, "should begin"),
    "reserved bits": ([SOUND], {"descriptor": 0x04}, "reserved"),
}


@pytest.mark.parametrize(("entries", "told", "words"), HOSTILE.values(), ids=HOSTILE)
def test_a_table_that_is_not_of_its_file_is_refused(entries, told, words):
    message = error_of(FRAME + table_of(entries, **told))
    assert re.search(words, message)
    assert "fetch or write it anew" in message


@given(st.binary(max_size=400), st.integers(0, 2**32 - 1), st.integers(0, 255))
def test_any_bytes_before_a_table_s_foot_are_no_table_or_one_of_the_file(data, number, descriptor):
    file = data + table_of([], num_frames=number % 40 if number % 2 else number)[-FOOT_BYTES:]
    file = file[:-5] + bytes((descriptor,)) + file[-4:]
    with suppress(ShardError):
        table = parsed(file)
        assert 0 < table.packed_edges[-1] < len(file) or not len(table.plain_edges[1:])


def test_a_table_takes_no_memory_that_its_file_has_no_room_for():
    file = FRAME + table_of([SOUND], num_frames=2**31)
    tracemalloc.start()
    with pytest.raises(ShardError):
        parsed(file)
    assert tracemalloc.get_traced_memory()[1] < MIB
    tracemalloc.stop()


def content_error(packed, num_bytes, *, window=MIB):
    with pytest.raises(ShardError, match=NAME) as caught:
        frame_content(packed, start=1000, num_bytes=num_bytes, shard=NAME, max_window_bytes=window)
    assert caught.value.kind in ERROR_KINDS
    assert caught.value.offset is not None
    assert 1000 <= caught.value.offset <= 1000 + len(packed)
    return caught.value


@pytest.mark.parametrize(
    ("packed", "num_bytes", "kind", "words"),
    [
        (FRAME, len(TAR) - 1, "bad_compression", "holds more"),
        (FRAME, 0, "bad_compression", "holds more"),
        (FRAME, len(TAR) + 1, "bad_compression", f"holds {len(TAR)}"),
        (FRAME[:-1], len(TAR), "bad_compression", "does not end there"),
        (FRAME[:9], len(TAR), "bad_compression", "does not end there"),
        (FRAME[3:], len(TAR), "bad_compression", "was expected"),
        (FRAME + b"page", len(TAR), "bad_compression", "was expected"),
        (FRAME[:-4] + b"sums", len(TAR), "checksum_mismatch", "stores 736d7573"),
        (b"", 5, "bad_compression", "holds 0"),
        (skippable(b"x"), 5, "bad_compression", "holds 0"),
    ],
)
def test_a_frame_that_is_not_as_the_table_says_is_refused(packed, num_bytes, kind, words):
    error = content_error(packed, num_bytes)
    assert error.kind == kind
    assert words in str(error)


def test_a_frame_that_expands_beyond_what_the_table_says_is_not_unpacked():
    bomb = zstd_repeating(b"x", 4000)  # 500 MiB
    tracemalloc.start()
    assert "holds more" in str(content_error(bomb, 1000, window=4 * MIB))
    assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    tracemalloc.stop()


def test_a_frame_with_too_large_a_window_is_refused():
    packed = zstd_of_window(TAR, 22)
    assert content_error(packed, len(TAR)).kind == "unsupported_compression"


def test_an_entry_of_ours_has_two_numbers():
    assert len(table_of([SOUND])) - len(table_of([])) == ENTRY_BYTES
