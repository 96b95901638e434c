"""Any archive that tarfile writes is read as tarfile reads it, and the other way round."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from shardloader.errors import IndexFileError, ManifestError, ShardError
from shardloader.format import tar
from shardloader.format.index import SampleIndex
from shardloader.format.manifest import Manifest
from shardloader.format.tar import scan
from shardloader.format.tar_header import END_OF_ARCHIVE, member_header, member_headers, padding
from tests.shards import sample_members, tar_bytes, tarfile_members, webdataset_samples

PARTS = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60
).filter(lambda part: part.strip(". ") != "")
FIELDS = st.sampled_from(["txt", "TXT", "cls", "seg.png", "0.jpg", "json", ""])
NAMES = st.one_of(
    st.lists(PARTS, min_size=1, max_size=8).map("/".join),
    st.tuples(st.sampled_from(["a", "b", "d.0/a", "__meta__/a", "k" * 120]), FIELDS).map(".".join),
)
DATA = st.binary(max_size=1200)
FORMATS = st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
SHARD = tar_bytes([*sample_members(4), ("d" * 150 + ".txt", b"x")])


def archive(members: list[tuple[str, bytes, str]], tar_format: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tar_format) as out:
        for name, data, kind in members:
            info = tarfile.TarInfo(name)
            if tar_format == tarfile.USTAR_FORMAT:
                assume(len(name.encode()) <= 100)
            if kind == "file":
                info.size = len(data)
                info.mtime = 1.5 if tar_format == tarfile.PAX_FORMAT else 1
                out.addfile(info, io.BytesIO(data))
                continue
            info.type = {"dir": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE}[
                kind
            ]
            info.linkname = name
            out.addfile(info)
    return stream.getvalue()


MEMBERS = st.lists(
    st.tuples(NAMES, DATA, st.sampled_from(["file", "file", "file", "dir", "link", "hard"])),
    max_size=6,
)


@given(MEMBERS, FORMATS)
def test_what_tarfile_writes_is_scanned_as_tarfile_reads_it(members, tar_format):
    shard = archive(members, tar_format)
    found = [
        (member.name, shard[member.data_offset : member.data_offset + member.size])
        for member in scan(shard, shard="s")
        if member.kind == "file"
    ]
    assert found == tarfile_members(shard)


@given(MEMBERS, FORMATS)
def test_the_short_way_gives_what_the_long_way_gives(members, tar_format):
    shard = archive(members, tar_format)
    quick = list(scan(shard, shard="s"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tar, "_plain_file", lambda block: None)
        assert list(scan(shard, shard="s")) == quick


@given(MEMBERS, FORMATS)
def test_samples_are_those_of_webdatasets_rule(members, tar_format):
    shard = archive(members, tar_format)
    try:
        index, _ = SampleIndex.build(shard, shard="s")
    except ShardError as error:
        event(error.kind)
        if error.kind != "duplicate_field":
            raise
        return
    event(f"{min(index.num_samples, 3)} samples")
    expected = list(webdataset_samples(tarfile_members(shard)))
    assert [index.key(number) for number in range(index.num_samples)] == [k for k, _ in expected]
    assert index.member_sizes.tolist() == [len(d) for _, f in expected for d in f.values()]


@given(
    st.one_of(
        NAMES,
        st.binary(min_size=1, max_size=300).map(lambda b: b.decode("utf-8", "surrogateescape")),
    ).filter(lambda name: "\0" not in name and not name.endswith("/")),
    st.one_of(st.integers(0, 2000), st.integers(8**11 - 2, 8**11 + 2), st.integers(0, 2**62)),
)
def test_any_header_that_we_write_is_read_by_tarfile_and_by_us(name, size):
    header = member_header(name, size)
    assert len(header) % 512 == 0
    info = _first(header)
    assert (info.name, info.size) == (name, size)
    if size > 2000:
        with pytest.raises(ShardError, match=str(size)):
            list(scan(header, shard="s"))
        return
    (member,) = scan(header + bytes(size + padding(size)) + END_OF_ARCHIVE, shard="s")
    assert (member.name, member.size, member.data_offset) == (name, size, len(header))


LETTERS = st.characters(min_codepoint=1, max_codepoint=127)
SIZES = st.one_of(st.integers(0, 2000), st.integers(0, 8**11 - 1), st.just(8**11 - 1))


@given(
    st.one_of(
        st.lists(st.text(LETTERS, min_size=1, max_size=90), min_size=1, max_size=8),
        st.lists(st.text(LETTERS, min_size=7, max_size=7), min_size=1, max_size=8),
    ),
    st.lists(st.text(LETTERS, min_size=1, max_size=10), min_size=1, max_size=3),
    st.data(),
)
def test_headers_made_together_are_those_made_one_by_one(keys, endings, data):
    endings = [f".{ending}x" for ending in endings]
    names = [key + ending for key in keys for ending in endings]
    sizes = data.draw(st.lists(SIZES, min_size=len(names), max_size=len(names)))
    together = member_headers(keys, endings, np.array(sizes))
    assert together.tobytes() == b"".join(map(member_header, names, sizes))


def _first(header: bytes) -> tarfile.TarInfo:
    """Give the first header as tarfile reads it, wherever its data may end."""
    stream = io.BytesIO(header)
    with tarfile.TarFile(fileobj=stream, errors="surrogateescape") as archive:
        info = archive.next()
    assert info is not None
    return info


@given(st.data())
def test_a_damaged_shard_gives_a_shard_error_or_samples_that_lie_inside(data):
    broken = bytearray(SHARD)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    broken = broken[: data.draw(st.integers(0, len(broken)))]
    try:
        index, _ = SampleIndex.build(broken, shard="s")
    except ShardError:
        return
    assert not index.num_members or index.member_offsets.min() >= 512
    assert ((index.member_offsets + index.member_sizes) <= len(broken)).all()
    again = SampleIndex.from_buffer(index.to_bytes(), name="i")
    assert again.digest == index.digest


INDEX = SampleIndex.build(SHARD, shard="s")[0].to_bytes()
MANIFEST = Manifest(
    names=("a.tar", "b.tar"),
    sizes=SampleIndex.build(SHARD, shard="s")[0].member_sizes[:2],
    counts=SampleIndex.build(SHARD, shard="s")[0].member_sizes[2:4],
    index_digests=("0" * 32, "1" * 32),
).to_json_bytes()


def mutated(data, original: bytes) -> bytes:
    broken = bytearray(original)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(broken) - 1))
        action = data.draw(st.sampled_from(["set", "set", "cut", "insert"]))
        if action == "set":
            broken[at] = data.draw(st.integers(0, 255))
        elif action == "cut":
            del broken[at : at + data.draw(st.integers(1, 40))]
        else:
            broken[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        if not broken:
            break
    return bytes(broken)


@given(st.data())
def test_a_damaged_index_is_refused_or_stays_inside_the_shard(data):
    try:
        index = SampleIndex.from_buffer(mutated(data, INDEX), name="i")
    except IndexFileError:
        return
    for sample in range(index.num_samples):
        index.key(sample)
        for member in range(index.sample_starts[sample], index.sample_starts[sample + 1]):
            assert index.fields[index.member_fields[member]] is not None
            end = int(index.member_offsets[member]) + int(index.member_sizes[member])
            assert 0 <= end <= index.shard_bytes


@given(st.data())
def test_a_damaged_manifest_is_refused_or_is_the_same_manifest(data):
    broken = mutated(data, MANIFEST)
    try:
        manifest = Manifest.from_json_bytes(broken, name="m")
    except ManifestError:
        return
    assert manifest.digest == Manifest.from_json_bytes(MANIFEST, name="m").digest


@given(st.binary(max_size=2000))
def test_noise_is_never_a_shard_with_samples(noise):
    try:
        index, _ = SampleIndex.build(noise, shard="s")
    except ShardError:
        return
    assert index.num_samples == 0
