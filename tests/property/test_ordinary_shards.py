"""Reading a shard by columns gives what reading it member by member gives, or leaves it to that."""

from __future__ import annotations

import io
import tarfile
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest
import webdataset
from hypothesis import event, given
from hypothesis import strategies as st

from shardloader.errors import ShardError
from shardloader.format import tar_columns
from shardloader.format.index import SampleIndex
from shardloader.format.ordinary import index_columns
from shardloader.format.tar_header import END_OF_ARCHIVE
from tests.shards import sample_members, tar_bytes

FOLDER = "5"
CASES = Path(__file__).parent.parent / "cases"


def outcome(build, shard):
    """All that a caller can see: the index file, the notices, or the error."""
    try:
        index, notices = build(shard, shard="s")
    except ShardError as error:
        return type(error), str(error), error.kind, error.offset
    return index.to_bytes(), index.digest, notices


def assert_both_ways_agree(shard):
    assert outcome(SampleIndex.build, shard) == outcome(SampleIndex.build_carefully, shard)


def is_read_by_columns(shard):
    return index_columns(shard) is not None


def is_read_by_columns_alike(shard):
    """Whether it is read by columns at all; then it gives the same that way."""
    if not is_read_by_columns(shard):
        return False  # and the careful way is taken
    assert_both_ways_agree(shard)
    return True


@contextmanager
def small_batches(batch, near_blocks):
    """Let few members make several batches, found by their magic or by following."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tar_columns, "_FIRST_BATCH", batch)
        patch.setattr(tar_columns, "_BATCH", batch)
        patch.setattr(tar_columns, "_CHUNK", 16)
        patch.setattr(tar_columns, "_NEAR_BLOCKS", near_blocks)
        yield


def tarred(members, tar_format, owners=("",)):
    """Members as (name, data or a typeflag as text, time), written by tarfile."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tar_format) as out:
        for (name, data, mtime), owner in zip(members, cycle(owners), strict=False):
            info = tarfile.TarInfo(name)
            info.mtime = mtime
            info.uname = owner
            if isinstance(data, bytes):
                info.size = len(data)
                out.addfile(info, io.BytesIO(data))
            else:
                info.type = data.encode()
                info.linkname = "" if data == FOLDER else "elsewhere"
                out.addfile(info)
    return stream.getvalue()


FORMATS = st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
TIMES = st.sampled_from([0, 1, 1.5, 1700000000.25, 1700000000.1234567])
FRACTIONS = st.sampled_from([1.5, 1700000000.25, 1700000000.125, 1700000000.1234567])
FIELDS = st.sampled_from(["txt", "TXT", "cls", "seg.png", "jpg", "JSON", "a-long-extension", "é"])
DATA = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"x" * 511, b"x" * 512, b"x" * 513, b"y" * 1500]),
    st.sampled_from([tar_bytes(sample_members(2)), tar_bytes(sample_members(1))]),  # inside
)
KEYS = st.one_of(
    st.integers(0, 30).map("{:06d}".format),
    st.integers(0, 30).map("train/n{}".format),
    st.integers(0, 30).map("d.1/{}/x".format),
    st.text("ab/é_", min_size=1, max_size=9),
    st.integers(60, 92).map(lambda length: "k" * length),
)


@st.composite
def ordinary_shards(draw):
    """Files of samples whose keys differ, with a folder here and there.

    Keys have one length or several; PAX headers stand before all members, some or none.
    """
    tar_format = draw(FORMATS)
    stems = ["{}", "{:06d}", "{:07d}", "{:08d}", "train/n{}", "train/{:03d}", "d.1/{}/x"]
    stems += ["./{:04d}", "k" * 80 + "{}", "k" * 90 + "{:06d}"]  # with `.txt`, 100 bytes
    times = draw(st.sampled_from([TIMES, FRACTIONS]))
    if tar_format != tarfile.PAX_FORMAT:
        stems.append("ü{}")  # PAX overrides such a name
        times = times.map(int)
    keys = draw(st.lists(st.integers(0, 500), unique=True, min_size=1, max_size=12))
    fields = draw(st.lists(st.sampled_from(["txt", "Cls", "a.b"]), unique=True, min_size=1))
    stem = draw(st.sampled_from(stems))
    folders = draw(st.booleans())
    members = []
    for key in keys:
        if folders and draw(st.integers(0, 5)) == 0:
            members.append(("folder", FOLDER, draw(times)))
        members += [(f"{stem.format(key)}.{field}", draw(DATA), draw(times)) for field in fields]
    owners = draw(st.sampled_from([("",), ("root",), ("root", "", "somebody-else")]))
    return tarred(members, tar_format, owners)


ODD_NAMES = st.one_of(
    st.tuples(KEYS, FIELDS).map(".".join),
    st.tuples(KEYS, st.sampled_from(["", ".", "1.5.jpg", "x/y", "a b.c"])).map(".".join),
    st.sampled_from(
        ["README", ".hidden", "__meta__/a.txt", "_a.txt", "../a.txt", "/a.txt", "a\\.b"]
    ),
    st.text(min_size=1, max_size=130).filter(lambda name: "\0" not in name),
)
KINDS = st.sampled_from([FOLDER, "1", "2", "6"])  # links and a pipe
ODD_MEMBERS = st.lists(st.tuples(ODD_NAMES, st.one_of(DATA, DATA, DATA, KINDS), TIMES), max_size=12)


@given(ordinary_shards(), st.integers(2, 9), st.sampled_from([0, 48]))
def test_an_ordinary_shard_is_read_by_columns_and_gives_the_same_index(shard, batch, near):
    with small_batches(batch, near):
        assert is_read_by_columns(shard)
        assert_both_ways_agree(shard)


@given(ODD_MEMBERS, FORMATS, st.integers(2, 9), st.sampled_from([0, 48]))
def test_an_odd_shard_gives_the_same_index_notices_or_error(members, tar_format, batch, near):
    try:
        shard = tarred(members, tar_format)
    except (ValueError, UnicodeError):
        return  # names that ustar can't hold
    with small_batches(batch, near):
        event(f"by columns: {is_read_by_columns(shard)}")
        assert_both_ways_agree(shard)


@given(ordinary_shards(), st.data())
def test_a_damaged_shard_gives_the_same_index_notices_or_error(shard, data):
    broken = bytearray(shard)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(broken) - 1))
        action = data.draw(st.sampled_from(["set", "set", "cut", "insert", "drop", "blocks"]))
        if action == "set":
            broken[at] = data.draw(st.integers(0, 255))
        elif action == "cut":
            del broken[at:]
        elif action == "insert":
            broken[at:at] = data.draw(st.binary(min_size=1, max_size=600))
        elif action == "drop":
            del broken[at : at + data.draw(st.integers(1, 600))]
        else:
            start = at // 512 * 512
            broken[start : start + 512] = broken[:512]
        if not broken:
            break
    with small_batches(4, data.draw(st.sampled_from([0, 48]))):
        event(f"by columns: {is_read_by_columns(broken)}")
        assert_both_ways_agree(broken)


def sealed(shard, start):
    """Give the header at `start` the checksum that it should have."""
    header = shard[start : start + 512]
    header[148:156] = b" " * 8
    shard[start + 148 : start + 156] = b"%06o\0 " % sum(header)


PAX_SHARD = tarred([("a.txt", b"a", 1.5), ("a.cls", b"b" * 600, 2.25)], tarfile.PAX_FORMAT)


@pytest.mark.parametrize("header", [0, 1024], ids=["extension", "file"])
@pytest.mark.parametrize("value", [0, ord("7"), 0xFF])
def test_any_byte_of_a_header_may_differ(header, value):
    taken = 0
    for at in (*range(148), *range(156, 512)):
        shard = bytearray(PAX_SHARD)
        shard[header + at] = value
        sealed(shard, header)
        taken += is_read_by_columns_alike(shard)
    assert 100 < taken < 504


@pytest.mark.parametrize("header", [0, 1024], ids=["extension", "file"])
def test_any_byte_of_a_checksum_may_differ(header):
    for at in range(148, 156):
        for value in (0, ord(" "), ord("0"), ord("7"), ord("8"), 0xFF):
            shard = bytearray(PAX_SHARD)
            shard[header + at] = value
            is_read_by_columns_alike(shard)


@pytest.mark.parametrize("value", [0, ord(" "), ord("1"), ord("9"), ord("="), ord("\n"), 0xFF])
def test_any_byte_of_pax_records_may_differ(value):
    for at in range(512, 512 + 24):
        shard = bytearray(PAX_SHARD)
        shard[at] = value
        is_read_by_columns_alike(shard)


@st.composite
def keys_of_a_length(draw):
    """Names whose keys are of one length, nearly, and hold whatever ends or splits a name."""
    length = draw(st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 95, 96]))
    ordinary = st.integers(0, 99).map(lambda number: f"{number:02d}".rjust(length, "k")[-length:])
    odd = st.text("ab/._\\", min_size=length, max_size=length)
    fields = st.sampled_from(["txt", "cls", "JPG", "s.png"])
    members = draw(st.lists(st.tuples(st.one_of(ordinary, ordinary, odd), fields), min_size=1))
    names = [f"{key}.{field}"[:100].encode() for key, field in members]
    return [name for name in names if not name.endswith(b"/")] or [b"a.txt"]


@given(keys_of_a_length(), st.integers(2, 9), st.data())
def test_whatever_stands_in_names_of_a_length_is_heeded(names, batch, data):
    shard = bytearray(tar_bytes([(name.decode(), b"x") for name in names]))
    if data.draw(st.booleans()):
        member, at = data.draw(st.integers(0, len(names) - 1)), data.draw(st.integers(0, 99))
        shard[1024 * member + at] = data.draw(st.sampled_from(b"\0./\\_Aa\xff"))
        sealed(shard, 1024 * member)
    with small_batches(batch, 48):
        event(f"by columns: {is_read_by_columns(shard)}")
        assert_both_ways_agree(shard)


RECORDS = st.lists(
    st.tuples(
        st.sampled_from(
            ["mtime", "atime", "comment", "path", "size", "GNU.sparse.name", "é", "a b"]
        ),
        st.sampled_from(["1.5", "2.25", "12", "", "x=y", "a.txt", "1\n2"]),
    ),
    max_size=3,
)


@given(st.lists(RECORDS, min_size=1, max_size=6))
def test_whatever_pax_records_say_is_heeded(all_records):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as out:
        for number, records in enumerate(all_records):
            info = tarfile.TarInfo(f"{number}.txt")
            info.pax_headers = dict(records)
            info.size = 1
            out.addfile(info, io.BytesIO(b"x"))
    shard = stream.getvalue()
    keywords = {keyword for records in all_records for keyword, _ in records}
    if keywords <= {"mtime", "atime", "comment"}:
        assert is_read_by_columns(shard)
    assert_both_ways_agree(shard)


@pytest.mark.parametrize("path", sorted(CASES.glob("*.tar*")), ids=lambda path: path.name)
def test_a_case_of_users_gives_the_same_either_way(path):
    assert_both_ways_agree(path.read_bytes())


@pytest.mark.parametrize("batch", [3, 4096])
def test_what_webdataset_writes_is_read_by_columns(tmp_path, batch):
    path = tmp_path / "shard.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for number in range(300):
            writer.write({"__key__": f"{number:06d}", "txt": f"text {number}", "cls": number % 10})
    shard = path.read_bytes()
    assert shard.count(b" mtime=") == 600  # the extension headers whose cost is at stake
    with small_batches(batch, 48):
        assert is_read_by_columns(shard)
        assert_both_ways_agree(shard)


def test_more_members_than_a_batch_are_read_by_columns():
    fields = ["txt", "cls", "seg.png"]
    names = [f"{number:05d}.{field}" for number in range(6_000) for field in fields]
    names += [f"{number}.{field}" for number in range(99_995, 100_005) for field in fields]
    shard = tar_bytes((name, name.encode()) for name in names)
    assert is_read_by_columns(shard)
    assert_both_ways_agree(shard)


@pytest.mark.parametrize(
    "names",
    [
        ["aa.txt", "bb.c/d.txt"],
        ["aa.txt", "b.1/d.txt"],
        ["a/b.txt", "a/c.txt", "./d.txt"],
        ["k" * 7 + ".txt", "l" * 7 + ".cls", "m" * 8 + ".txt"],
        ["k" * 96 + ".txt", "l" * 96 + ".cls"],
        ["k" * 3 + "." + "f" * 96, "l" * 3 + ".cls"],
        ["a.txt", "a.Seg.PNG", "b.Txt", "b.seg.png"],
    ],
)
def test_these_names_are_ordinary(names):
    shard = tar_bytes((name, b"x") for name in names)
    assert is_read_by_columns(shard)
    assert_both_ways_agree(shard)


def test_a_large_member_among_small_ones_is_ordinary():
    members = [*sample_members(100), ("large.bin", bytes(8**7)), *sample_members(9, first=200)]
    shard = tar_bytes(members)  # whose size has more than seven digits
    assert is_read_by_columns(shard)
    assert_both_ways_agree(shard)


@pytest.mark.parametrize(("num_layouts", "by_columns"), [(60, True), (70, False)])
def test_pax_records_have_so_many_layouts(num_layouts, by_columns):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as out:
        for number in range(num_layouts):
            info = tarfile.TarInfo(f"{number:03d}.txt")
            info.pax_headers = {"comment": "c" * (number + 1)}
            out.addfile(info, io.BytesIO())
    shard = stream.getvalue()
    assert is_read_by_columns(shard) == by_columns
    assert_both_ways_agree(shard)


def test_large_members_are_passed_over():
    members = [(f"{number}.bin", b"\xa5" * 300_000) for number in range(20)]
    shard = tar_bytes(members)
    assert is_read_by_columns(shard)
    assert_both_ways_agree(shard)


def test_archives_in_an_archive_are_data():
    inner = tar_bytes(sample_members(6))
    shard = tar_bytes([(f"{number:03d}.tar", inner) for number in range(200)])
    assert is_read_by_columns(shard)
    assert_both_ways_agree(shard)


def with_a_signed_checksum():
    shard = bytearray(tarred([("\u00fc.txt", b"a", 0)], tarfile.GNU_FORMAT))
    block = shard[:148] + b" " * 8 + shard[156:512]
    shard[148:156] = b"%06o\0 " % (sum(block) - 256 * sum(byte >= 0x80 for byte in block))
    return bytes(shard)


def with_a_long_record():
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as out:
        info = tarfile.TarInfo("a.txt")
        info.pax_headers = {"comment": "c" * 600}
        out.addfile(info, io.BytesIO())
    return stream.getvalue()


@pytest.mark.parametrize(
    "shard",
    [
        with_a_long_record(),
        tar_bytes((f"a.{number}", b"") for number in range(65)),
        tar_bytes((f"{number}.{number}", b"") for number in range(10_001)),
        with_a_signed_checksum(),
        tarred([("folder/" * 12 + "x" * 90 + ".txt", b"a", 0)], tarfile.USTAR_FORMAT),
        tarred([("k" * 101 + ".txt", b"a", 0)], tarfile.PAX_FORMAT),
        tar_bytes([("a.txt", b""), ("b.txt", b""), ("a.cls", b"")]),
        tar_bytes([("a.txt", b""), ("a.TXT", b"")]),
        tar_bytes([("README", b""), ("a.txt", b"")]),
        tar_bytes(sample_members(3))[: -len(END_OF_ARCHIVE)],
        tar_bytes(sample_members(3)) + b"more",
        tar_bytes(sample_members(3))[:-1500],
        tar_bytes([]),
        b"",
        bytes(100),
    ],
    ids=[
        "long record",
        "many fields",
        "many suffixes",
        "signed",
        "prefix",
        "path",
        "comes back",
        "twice",
        "no extension",
        "no end",
        "more",
        "cut",
        "empty",
        "none",
        "short",
    ],
)
def test_what_is_worth_a_word_is_left_to_the_careful_way(shard):
    assert not is_read_by_columns(shard)
    assert_both_ways_agree(shard)


def test_suffixes_of_one_hash_are_told_apart(monkeypatch):
    from shardloader.format import name_columns

    monkeypatch.setattr(name_columns, "_hashes", lambda columns: columns[0] * 0)
    shard = tar_bytes(sample_members(3))
    assert not is_read_by_columns(shard)
    assert_both_ways_agree(shard)
