"""Headers that the cases do not have, built by hand."""

from __future__ import annotations

import tracemalloc

import pytest

from shardloader.errors import ShardError
from shardloader.format import tar
from shardloader.format.index import SampleIndex
from shardloader.format.tar import Notices, scan
from shardloader.format.tar_header import END_OF_ARCHIVE, member_header, padding
from tests.shards import sample_members, tar_bytes


def header(
    name: bytes = b"a.txt",
    *,
    size: bytes = b"00000000000\0",
    typeflag: bytes = b"0",
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
) -> bytes:
    block = bytearray(512)
    block[:100] = name.ljust(100, b"\0")
    block[124:136] = size
    block[148:156] = b" " * 8
    block[156:157] = typeflag
    block[257:265] = magic
    block[345:500] = prefix.ljust(155, b"\0")
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def extension(typeflag: bytes, content: bytes) -> bytes:
    size = b"%011o\0" % len(content)
    return header(b"ext", size=size, typeflag=typeflag) + content + bytes(padding(len(content)))


def record(keyword: str, value: str) -> bytes:
    rest = f" {keyword}={value}\n".encode()
    length = len(rest) + len(str(len(rest)))
    length = len(rest) + len(str(length))
    return b"%d" % length + rest


def names(data: bytes) -> list[str]:
    return [member.name for member in scan(data + END_OF_ARCHIVE, shard="s.tar")]


def error_of(data: bytes) -> ShardError:
    with pytest.raises(ShardError) as caught:
        list(scan(data, shard="s.tar"))
    return caught.value


def test_a_local_pax_header_speaks_for_one_member_only():
    assert names(extension(b"x", record("path", "b.txt")) + header() + header()) == [
        "b.txt",
        "a.txt",
    ]


def test_a_global_pax_header_speaks_for_all_members_and_a_local_one_goes_first():
    data = (
        extension(b"g", record("path", "g.txt"))
        + header()
        + extension(b"x", record("path", "x.txt"))
        + header()
        + header()
    )
    assert names(data) == ["g.txt", "x.txt", "g.txt"]


LONG, PAX = extension(b"L", b"b.txt\0"), extension(b"x", record("path", "b.txt"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (extension(b"x", record("path", "")) + header(), "PAX path"),
        (extension(b"x", record("size", "")) + header(), "PAX size"),
        (extension(b"x", record("path", "b\0.txt")) + header(), "PAX path"),
        (extension(b"x", record("", "b")) + header(), "without a keyword"),
        (extension(b"g", record("size", "0")) + header(), "size of every member"),
        (
            extension(b"g", record("path", "g"))
            + extension(b"g", record("comment", ""))
            + header(),
            "follows one that names",
        ),
        (
            extension(b"g", record("path", "a") + record("path", "b")) + header(),
            "two values of path",
        ),
        (PAX + PAX + header(), "two PAX headers"),
        (PAX + extension(b"x", b"") + header(), "two PAX headers"),
        (extension(b"g", record("path", "g")) + extension(b"x", b"") + PAX + header(), "two PAX"),
        (LONG + LONG + header(), "two GNU headers"),
        (LONG + PAX + header(), "both give its name"),
        (PAX + LONG + header(), "both give its name"),
        (extension(b"g", record("path", "g.txt")) + LONG + header(), "both give its name"),
        (extension(b"L", b"\0") + header(), "GNU long name"),
        (
            extension(b"L", b"b.txt")[:1024].replace(b"b.txt\0", b"b.txtx") + header(),
            "GNU long name",
        ),
        (LONG + extension(b"V", b"") + header(), "volume label"),
        (header(b"", typeflag=b"\0", prefix=b"b.txt"), "its name is empty"),
    ],
)
def test_what_readers_of_tar_read_in_different_ways_is_refused(data, words):
    error = error_of(data + END_OF_ARCHIVE)
    assert error.kind == "bad_header"
    assert words in str(error)


def test_a_gnu_long_name_may_leave_its_nul_to_the_padding():
    assert names(extension(b"L", b"b.txt") + header()) == ["b.txt"]


def test_what_is_said_of_an_archive_without_its_last_padding_lies_in_it():
    shard = tar_bytes([("a.txt", b"abc")])[: 512 + 3]
    notices = Notices()
    assert len(list(scan(shard, shard="s", notices=notices))) == 1
    assert [(n.kind, n.offset) for n in notices.freeze()] == [("missing_end_of_archive", 515)]
    assert error_of(LONG[: 512 + 6]).offset == 518


def test_a_members_header_begins_with_its_extensions():
    data = header() + extension(b"L", b"long.txt\0") + header() + END_OF_ARCHIVE
    places = [(m.name, m.header_offset, m.data_offset) for m in scan(data, shard="s")]
    assert places == [("a.txt", 0, 512), ("long.txt", 512, 512 + 1024 + 512)]


def test_a_header_without_a_name_is_a_member_that_an_extension_names():
    assert names(extension(b"x", record("path", "b.txt")) + header(b"")) == ["b.txt"]


def test_a_long_link_target_is_not_a_name():
    data = extension(b"K", b"target\0") + header(b"link", typeflag=b"2")
    (member,) = scan(data + END_OF_ARCHIVE, shard="s")
    assert (member.name, member.kind, member.size) == ("link", "special", 0)


@pytest.mark.parametrize("typeflag", [b"1", b"2", b"3", b"4", b"6"])
def test_links_and_devices_have_no_data_whatever_size_they_declare(typeflag):
    data = header(b"l", size=b"00000001000\0", typeflag=typeflag) + header()
    assert [m.kind for m in scan(data + END_OF_ARCHIVE, shard="s")] == ["special", "file"]


def test_a_gnu_headers_times_are_not_taken_for_a_prefix():
    assert names(header(magic=b"ustar  \0", prefix=b"12345670123")) == ["a.txt"]


def test_a_name_ends_at_its_first_nul():
    assert names(header(b"a.txt\0old.jpg")) == ["a.txt"]


def test_a_long_name_that_the_header_cut_behind_a_slash_is_still_a_file():
    data = extension(b"L", b"folder/a.txt\0") + header(b"folder/", typeflag=b"\0")
    (member,) = scan(data + END_OF_ARCHIVE, shard="s")
    assert (member.name, member.kind) == ("folder/a.txt", "file")


@pytest.mark.parametrize(
    "data",
    [
        header(typeflag=b"S"),
        header(typeflag=b"M"),
        extension(b"x", record("GNU.sparse.major", "1")) + header(),
    ],
)
def test_sparse_files_and_other_volumes_are_refused_by_name(data):
    error = error_of(data + END_OF_ARCHIVE)
    assert error.kind == "unsupported_member"
    assert "'a.txt'" in str(error)


@pytest.mark.parametrize(
    "data",
    [
        header(size=b"0000000000x\0"),
        header(size=b"00000000008\0"),
        header(size=b"-0000000001\0"),
        header(size=b"\xff" * 12),
        extension(b"x", b"nonsense") + header(),
        extension(b"x", b"999 path=a\n") + header(),
        extension(b"x", b"0 path=a\n") + header(),
        extension(b"x", record("size", "-5")) + header(),
        extension(b"x", record("size", "9" * 30)) + header(),
        extension(b"L", bytes(2 << 20)) + header(),
    ],
)
def test_damaged_fields_are_bad_headers_with_their_offset(data):
    error = error_of(header() + data + END_OF_ARCHIVE)
    assert (error.kind, error.offset is not None) == ("bad_header", True)
    assert "s.tar" in str(error)


def test_what_a_header_declares_is_never_allocated():
    base256 = b"\x80" + b"\0" * 3 + b"\x7f" * 8
    tracemalloc.start()
    for size in (b"77777777777\0", base256):
        for typeflag in (b"0", b"L", b"K", b"x", b"g", b"V", b"Z"):
            data = header(size=size, typeflag=typeflag) + bytes(1024)
            assert error_of(data).kind == "truncated"
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_bytes_behind_the_end_marker_are_noted_and_zeros_are_not():
    sound = tar_bytes(sample_members(1))
    for behind, kinds in ((b"", []), (bytes(9000), []), (bytes(600) + b"x", ["data_after_end"])):
        notices = Notices()
        list(scan(sound + behind, shard="s", notices=notices))
        assert [notice.kind for notice in notices.freeze()] == kinds


def test_a_notice_is_kept_once_and_counted():
    notices = Notices()
    for offset in (5, 6, 7):
        notices.add("special_member", offset, f"at {offset}")
    (notice,) = notices.freeze()
    assert (notice.offset, notice.detail, notice.count) == (5, "at 5", 3)
    assert "3 times" in str(notice)


def test_a_cut_at_any_byte_gives_whole_samples_only_and_says_so():
    shard = tar_bytes([*sample_members(2), ("x" * 120 + ".txt", b"long name"), ("y.txt", b"last")])
    whole, _ = SampleIndex.build(shard, shard="s")
    kinds = set()
    for cut in range(len(shard)):
        try:
            index, notices = SampleIndex.build(shard[:cut], shard="s")
        except ShardError as error:
            kinds.add(error.kind)
            continue
        kept = index.num_samples
        if "missing_end_of_archive" not in {notice.kind for notice in notices}:
            assert kept == whole.num_samples
        assert [index.key(i) for i in range(kept)] == [whole.key(i) for i in range(kept)]
        # Without the end marker nobody can tell whether the last sample had more members.
        full = index.sample_starts[:-1].tolist()
        assert full == whole.sample_starts[: len(full)].tolist()
    assert kinds == {"truncated", "not_a_tar", "empty_file"}


def test_the_short_way_reads_what_the_long_way_reads(monkeypatch):
    shard = tar_bytes([*sample_members(20), ("é" * 40 + ".txt", b"1")])
    shard = header(magic=b"ustar  \0") + shard
    quick = list(scan(shard, shard="s"))
    monkeypatch.setattr(tar, "_plain_file", lambda block: None)
    assert list(scan(shard, shard="s")) == quick


def test_no_flipped_bit_of_a_header_passes_its_checksum():
    for bit in range(512 * 8):
        if 148 <= bit // 8 < 156:
            continue  # within the checksum's field a space and a NUL say the same
        block = bytearray(member_header("000.txt", 0))
        block[bit // 8] ^= 1 << bit % 8
        assert error_of(header() + bytes(block) + END_OF_ARCHIVE).kind == "bad_header"
