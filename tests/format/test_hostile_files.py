"""Indexes and manifests that someone made to do harm: refused before use, in words, and cheaply."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import IndexFileError, ManifestError
from shardloader.format.index import SampleIndex
from shardloader.format.manifest import Manifest
from shardloader.format.strict_json import strict_json
from shardloader.reading.shard import Shard
from tests.shards import sample_members, tar_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

SHARD = tar_bytes(sample_members(5))
INDEX = SampleIndex.build(SHARD, shard="s.tar")[0]
INDEX_FILE = INDEX.to_bytes()
ARRAYS = ("sample_starts", "member_offsets", "member_sizes", "member_fields", "key_starts")
BIGGEST = 2**63 - 1
HEADER_BYTES = 8 + int.from_bytes(INDEX_FILE[:8], "little")


def manifest() -> Manifest:
    return Manifest(
        names=("a.tar", "b/c.tar"),
        sizes=np.array([1024, 2**40]),
        counts=np.array([0, 7]),
        index_digests=("0" * 32, "a1" * 16),
        content_digests=("c" * 32, "d" * 32),
    )


MANIFEST_FILE = manifest().to_json_bytes()


def with_array(name: str, values: Any, dtype: Any = None) -> bytes:
    arrays = {each: getattr(INDEX, each).copy() for each in (*ARRAYS, "key_bytes")}
    arrays[name] = np.array(values, dtype=dtype or arrays[name].dtype)
    about = {"version": 1, "shard_bytes": len(SHARD), "fields": list(INDEX.fields)}
    saved: bytes = safetensors.numpy.save(arrays, metadata={"shardloader-index": json.dumps(about)})
    return saved


def with_header(edit: Callable[[dict[str, Any]], object] | bytes) -> bytes:
    """The index file with another header; its data stays."""
    if isinstance(edit, bytes):
        text = edit
    else:
        header = json.loads(INDEX_FILE[8:HEADER_BYTES])
        edit(header)
        text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + INDEX_FILE[HEADER_BYTES:]


def is_refused(data: bytes) -> str:
    with pytest.raises(IndexFileError) as caught:
        SampleIndex.from_buffer(data, name="hostile.index")
    assert "hostile.index" in str(caught.value)
    assert "shardloader index" in str(caught.value)
    return str(caught.value)


def use_all_of(index: SampleIndex) -> None:
    """Do what readers do with an index; whatever it says, that may not go wrong."""
    if index.shard_bytes != len(SHARD):
        return
    shard = Shard(memoryview(SHARD), index, name="s.tar")
    for sample in range(index.num_samples):
        assert isinstance(index.key(sample), str)
        shard.fields(sample)
    shard.layout(None)
    shard.layout(frozenset(index.fields[:1]))
    shard.is_as_indexed()
    assert len(index.digest) == 32


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("sample_starts", [0, BIGGEST, 4, 6, 8, 10]),
        ("sample_starts", [0, BIGGEST, -BIGGEST - 1, 6, 8, 10]),
        ("sample_starts", [0, -2, 4, 6, 8, 10]),
        ("key_starts", [0, BIGGEST, 12, 18, 24, 30]),
        ("key_starts", [0, BIGGEST, -BIGGEST - 1, 18, 24, 30]),
        ("key_starts", [0, 6, 12, 18, 24, 2**62]),
        ("member_offsets", [BIGGEST] * 10),
        ("member_offsets", [BIGGEST - 511, *range(1, 10)]),
        ("member_offsets", [-BIGGEST - 1] * 10),
        ("member_offsets", [0] * 10),
        ("member_offsets", INDEX.member_offsets[::-1]),
        ("member_offsets", INDEX.member_offsets - 512),
        ("member_offsets", np.repeat(INDEX.member_offsets[::2], 2)),
        ("member_sizes", [BIGGEST] * 10),
        ("member_sizes", [-1] * 10),
        ("member_sizes", INDEX.member_sizes + 520),
        ("member_sizes", [len(SHARD) - 512] + [0] * 9),
        ("member_fields", [2**32 - 1] * 10),
        ("member_fields", [2] * 10),
    ],
)
def test_numbers_that_lead_astray_are_refused(name, values):
    is_refused(with_array(name, values))


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("dtype", ["i4", "u8", "f8", "i8", "?", "u1"])
def test_another_dtype_or_shape_is_refused(name, dtype):
    array = getattr(INDEX, name)
    if array.dtype != np.dtype(dtype):
        assert "tensor of" in is_refused(with_array(name, array, dtype))
    is_refused(with_array(name, array.reshape(1, -1)))
    is_refused(with_array(name, array[:-1]))
    is_refused(with_array(name, [*array, array[-1]]))


def test_a_huge_count_makes_nothing_of_its_size():
    claims = [
        with_header(lambda h: h["member_sizes"].update(shape=[2**60])),
        with_header(lambda h: h["member_sizes"].update(shape=[2**60], data_offsets=[0, 2**63])),
        with_header(lambda h: h["member_sizes"].update(shape=[10**400])),
        with_header(lambda h: h["member_sizes"].update(shape=[-1])),
        with_header(lambda h: h["member_sizes"].update(data_offsets=[-80, 0])),
        with_header(lambda h: h["member_sizes"].update(data_offsets=[10**30, 10**31])),
        (2**63).to_bytes(8, "little") + INDEX_FILE[8:],
        (2**64 - 1).to_bytes(8, "little") + INDEX_FILE[8:],
        (10**8).to_bytes(8, "little") + INDEX_FILE[8:],
    ]
    tracemalloc.start()
    for data in claims:
        is_refused(data)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


def test_tensors_that_share_bytes_or_leave_some_out_are_refused():
    def share(header: dict[str, Any]) -> None:
        header["member_sizes"]["data_offsets"] = header["member_offsets"]["data_offsets"]

    assert "each byte once" in is_refused(with_header(share))
    assert "each byte once" in is_refused(INDEX_FILE + b"\0")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"null",
        b"NaN",
        b'{"a": Infinity}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"9" * 5000,
        b'"\xff"',
        '{"\u00e9": 1}'.encode("utf-16"),
    ],
)
def test_a_header_that_is_no_json_object_is_refused(header):
    is_refused(with_header(header))


def test_a_key_that_is_there_twice_is_refused():
    text = INDEX_FILE[8:HEADER_BYTES].rstrip()
    assert "twice" in is_refused(with_header(b'{"key_bytes":{},' + text[1:]))
    about = '{"version":1,"version":1,"shard_bytes":1,"fields":[]}'
    twice = with_header(lambda h: h["__metadata__"].update({"shardloader-index": about}))
    assert "twice" in is_refused(twice)


@pytest.mark.parametrize(
    "about",
    [
        {"version": 1, "shard_bytes": -1, "fields": ["cls", "txt"]},
        {"version": 1, "shard_bytes": 2**63, "fields": ["cls", "txt"]},
        {"version": 1, "shard_bytes": 10**400, "fields": ["cls", "txt"]},
        {"version": 1, "shard_bytes": True, "fields": ["cls", "txt"]},
        {"version": 1, "shard_bytes": 1e5, "fields": ["cls", "txt"]},
        {"version": 1, "shard_bytes": None, "fields": ["cls", "txt"]},
        {"version": 1, "shard_bytes": len(SHARD), "fields": "ab"},
        {"version": 1, "shard_bytes": len(SHARD), "fields": ["txt", "txt"]},
        {"version": 1, "shard_bytes": len(SHARD), "fields": ["txt", "cls"]},
        {"version": 1, "shard_bytes": len(SHARD), "fields": [None, 1]},
        {"version": 1, "shard_bytes": len(SHARD), "fields": [["txt"]]},
        {"version": 1, "shard_bytes": len(SHARD), "fields": ["\ud800"]},
        {"version": 1.0, "shard_bytes": len(SHARD), "fields": []},
        {"version": 0, "shard_bytes": len(SHARD), "fields": []},
        {"version": [1]},
        [1],
        None,
        1,
    ],
)
def test_metadata_of_wrong_types_is_refused(about):
    text = json.dumps(about)
    is_refused(with_header(lambda h: h["__metadata__"].update({"shardloader-index": text})))


@pytest.mark.parametrize("metadata", [None, [], "x", 1, {"shardloader-index": 1}, {}])
def test_metadata_that_is_no_text_is_refused(metadata):
    is_refused(with_header(lambda h: h.update(__metadata__=metadata)))


def test_an_index_cut_anywhere_is_refused():
    for length in range(len(INDEX_FILE)):
        is_refused(INDEX_FILE[:length])


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80, 0xFF])
def test_a_flipped_byte_anywhere_is_refused_or_gives_an_index_that_can_be_used(flip):
    for at in range(len(INDEX_FILE)):
        data = bytearray(INDEX_FILE)
        data[at] ^= flip
        with suppress(IndexFileError):
            use_all_of(SampleIndex.from_buffer(data, name="hostile.index"))


@given(
    st.sampled_from([*ARRAYS, "key_bytes"]),
    st.lists(st.integers(-(2**63), BIGGEST) | st.integers(-2, 12_000), max_size=12),
)
def test_any_numbers_are_refused_or_can_be_used(name, values):
    dtype = getattr(INDEX, name).dtype
    wrapped = np.array(values, dtype=np.int64).astype(dtype)
    with suppress(IndexFileError):
        use_all_of(SampleIndex.from_buffer(with_array(name, wrapped), name="hostile.index"))


def refused_manifest(data: bytes) -> str:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_json_bytes(data, name="hostile/manifest.json")
    assert "hostile/manifest.json" in str(caught.value)
    return str(caught.value)


def test_a_manifest_cut_anywhere_is_refused():
    for length in range(len(MANIFEST_FILE) - 1):  # the last byte is a line's end
        refused_manifest(MANIFEST_FILE[:length])


@pytest.mark.parametrize("flip", [0x01, 0x02, 0x20, 0x80])
def test_a_flipped_byte_anywhere_is_refused_or_only_in_the_content_digests(flip):
    for at in range(len(MANIFEST_FILE)):
        data = bytearray(MANIFEST_FILE)
        data[at] ^= flip
        with suppress(ManifestError):
            found = Manifest.from_json_bytes(data, name="hostile/manifest.json")
            assert found.digest == manifest().digest


def shards_with(key: str, column: Any) -> bytes:
    document = json.loads(MANIFEST_FILE)
    document["shards"][key] = column
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "a/../../b.tar",
        "a\0b.tar",
        "..\\..\\b.tar",
        "C:\\b.tar",
        "a.tar",
        "file:///etc/passwd",
        "",
        " /../x.tar/..",
    ],
)
def test_a_name_that_could_lead_elsewhere_is_refused(name):
    refused_manifest(shards_with("names", ["a.tar", name]))


@pytest.mark.parametrize("key", ["names", "sizes", "samples", "index_digests", "content_digests"])
@pytest.mark.parametrize(
    "column",
    [
        {},
        "ab",
        1,
        True,
        [None, None],
        [[], []],
        [{}, {}],
        [True, False],
        [1.5, 2.5],
        [-1, 5],
        [2**63, 1],
        [2**62, 2**62],
        [10**400, 1],
        ["x", "y"],
        [1],
        ["a.tar"],
        [],
    ],
)
def test_columns_of_wrong_types_or_values_are_refused(key, column):
    if key == "names" and column == ["x", "y"]:
        assert "changed or damaged" in refused_manifest(shards_with(key, column))
    else:
        refused_manifest(shards_with(key, column))


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        (b'"version":1', b'"version":1,"version":1'),
        (b'"sizes":[1024', b'"sizes":[1,1],"sizes":[1024'),
        (b'"sizes":[1024', b'"sizes":[NaN'),
        (b'"sizes":[1024', b'"sizes":[Infinity'),
        (b'"sizes":[1024', b'"sizes":[-Infinity'),
        (b'"sizes":[1024', b'"sizes":[1e999'),
        (b'"sizes":[1024', b'"sizes":[' + b"9" * 5000),
        (b'"sizes":[1024', b'"sizes":[' + b"[" * 60_000),
        (b'"names":["a', b'"names":["\xff'),
        (b'"names":["a', b'"names":["\\ud800'),
    ],
)
def test_json_that_says_two_things_or_nothing_is_refused(found, instead):
    assert MANIFEST_FILE.count(found) == 1
    refused_manifest(MANIFEST_FILE.replace(found, instead))


def test_a_manifest_in_another_encoding_is_refused():
    for encoding in ("utf-16", "utf-32", "utf-8-sig"):
        refused_manifest(MANIFEST_FILE.decode().encode(encoding))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_what_json_writes_reads_back_the_same(value):
    if "Infinity" in json.dumps(value):
        with suppress(ValueError):
            strict_json(json.dumps(value))
        return
    assert strict_json(json.dumps(value)) == value
    assert strict_json(json.dumps(value).encode()) == value
