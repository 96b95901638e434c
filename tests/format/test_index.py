"""The sample index: its shape, its file, its digest, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from shardloader.errors import IndexFileError
from shardloader.format.index import SampleIndex
from tests.shards import sample_members, tar_bytes

ARRAYS = (
    "sample_starts",
    "member_offsets",
    "member_sizes",
    "member_fields",
    "key_starts",
    "key_bytes",
)


@pytest.fixture
def index() -> SampleIndex:
    return SampleIndex.build(tar_bytes(sample_members(5)), shard="s.tar")[0]


def parts(index: SampleIndex) -> tuple[dict[str, Any], dict[str, Any]]:
    about = {"version": 1, "shard_bytes": index.shard_bytes, "fields": list(index.fields)}
    return {name: getattr(index, name).copy() for name in ARRAYS}, about


def saved(arrays: dict[str, Any], about: Any, mark: str = "shardloader-index") -> bytes:
    text = about if isinstance(about, str) else json.dumps(about)
    data: bytes = safetensors.numpy.save(arrays, metadata={mark: text})
    return data


def test_arrays_have_the_declared_dtypes_and_say_where_the_bytes_lie(index):
    shard = tar_bytes(sample_members(5))
    assert (index.num_samples, index.num_members, index.shard_bytes) == (5, 10, len(shard))
    assert index.fields == ("cls", "txt")
    assert [str(getattr(index, name).dtype) for name in ARRAYS] == [
        "int64",
        "int64",
        "int64",
        "uint32",
        "int64",
        "uint8",
    ]
    start = index.member_offsets[2]
    assert shard[start : start + index.member_sizes[2]] == sample_members(5)[2][1]
    assert [index.key(number) for number in range(5)] == [f"{n:06d}" for n in range(5)]


def test_the_size_of_a_compressed_file_is_kept_and_is_no_part_of_the_digest(index):
    of_compressed = replace(index, compressed_bytes=123)
    read = SampleIndex.from_buffer(of_compressed.to_bytes(), name="i")
    assert (read.compressed_bytes, read.file_bytes, read.shard_bytes) == (
        123,
        123,
        index.shard_bytes,
    )
    assert read.digest == index.digest
    assert index.file_bytes == index.shard_bytes
    assert b"compressed" not in index.to_bytes()  # the file of a plain shard is as it was


@pytest.mark.parametrize("number", [-1, 5])
def test_a_key_outside_the_shard_is_an_index_error(index, number):
    with pytest.raises(IndexError):
        index.key(number)


def test_a_writers_index_equals_a_scanners(index):
    samples = [
        (f"{n:06d}", [("txt", 512 + n * 2048, 20), ("cls", 1536 + n * 2048, 1)]) for n in range(5)
    ]
    made = SampleIndex.of_samples(samples, shard_bytes=index.shard_bytes)
    assert made.digest == index.digest
    assert made.to_bytes() == index.to_bytes()


def test_a_sample_without_fields_is_refused():
    with pytest.raises(ValueError, match="at least one field"):
        SampleIndex.of_samples([("a", [])], shard_bytes=1024)


def test_a_file_reads_back_as_views_and_as_the_library_reads_it(index):
    data = index.to_bytes()
    again = SampleIndex.from_buffer(data, name="i")
    library = safetensors.numpy.load(data)
    for name in ARRAYS:
        assert np.array_equal(getattr(again, name), library[name])
        assert np.array_equal(getattr(again, name), getattr(index, name))
        assert not getattr(again, name).flags.owndata
        assert not getattr(again, name).flags.writeable
    assert again.digest == index.digest


def test_an_empty_shard_has_an_index_too():
    index, _ = SampleIndex.build(bytes(1024), shard="s")
    again = SampleIndex.from_buffer(index.to_bytes(), name="i")
    assert (again.num_samples, again.num_members, again.fields) == (0, 0, ())
    assert again.digest == index.digest


def test_keys_and_fields_of_any_bytes_survive():
    samples = [("ca\udcff\u732b", [("\udc80x", 512, 1)])]
    index = SampleIndex.of_samples(samples, shard_bytes=2048)
    again = SampleIndex.from_buffer(index.to_bytes(), name="i")
    assert (again.key(0), again.fields) == ("ca\udcff\u732b", ("\udc80x",))


def test_offsets_beyond_4_gib_keep_their_value():
    places = [2**32 - 1, 2**32 + 511, 2**40]
    index = SampleIndex.of_samples(
        [(str(n), [("bin", place, 2**33 if n else 0)]) for n, place in enumerate(places)],
        shard_bytes=2**41,
    )
    again = SampleIndex.from_buffer(index.to_bytes(), name="i")
    assert again.member_offsets.tolist() == places
    assert again.member_sizes.tolist() == [0, 2**33, 2**33]


def test_the_digest_is_the_same_in_every_release(index):
    assert index.digest == "adef38bad58af2d4d994f748f0aa51f4"


@pytest.mark.parametrize(
    "change",
    [
        {"shard_bytes": 99_999},
        {"fields": ("cls", "txu")},
        {"member_offsets": np.arange(10, dtype=np.int64)},
        {"key_bytes": np.zeros(30, dtype=np.uint8)},
    ],
)
def test_the_digest_covers_every_part(index, change):
    assert replace(index, **change).digest != index.digest


@pytest.mark.parametrize(
    ("array", "value", "words"),
    [
        ("sample_starts", [0, 2, 4, 3, 8, 10], "rise"),
        ("sample_starts", [0, 2, 4, 4, 8, 10], "rise"),
        ("sample_starts", [0, 2, 2**63 - 1, 6, 8, 10], "rise"),
        ("sample_starts", [1, 2, 4, 6, 8, 10], "rise"),
        ("sample_starts", [0, 2, 4, 6, 8, 11], "rise"),
        ("sample_starts", [], "key for every sample"),
        ("key_starts", [0, 6, 5, 18, 24, 30], "rise"),
        ("key_starts", [0, 6, 12, 18, 24, 31], "rise"),
        ("key_starts", [0, -6, 12, 18, 24, 30], "rise"),
        ("member_offsets", [-1] + [0] * 9, "negative"),
        ("member_sizes", [-1] + [0] * 9, "negative"),
        ("member_sizes", [2**62] + [0] * 9, "lie in the shard"),
        ("member_offsets", [2**63 - 1] + [0] * 9, "lie in the shard"),
        ("member_offsets", [11_264 - 19] + [0] * 9, "lie in the shard"),
        ("member_sizes", [1] * 9, "size for every member"),
        ("member_fields", [2] + [0] * 9, "field numbers"),
    ],
)
def test_arrays_that_contradict_each_other_are_refused(index, array, value, words):
    arrays, about = parts(index)
    arrays[array] = np.array(value, dtype=arrays[array].dtype)
    with pytest.raises(IndexFileError, match=words):
        SampleIndex.from_buffer(saved(arrays, about), name="s.tar.index")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("version", 2, "version 2"),
        ("version", "1", "version '1'"),
        ("version", True, "version True"),
        ("shard_bytes", -1, "size"),
        ("shard_bytes", 2**63, "size"),
        ("shard_bytes", True, "size"),
        ("compressed_bytes", -1, "size"),
        ("compressed_bytes", "9", "size"),
        ("compressed_bytes", True, "size"),
        ("fields", ["txt", "cls"], "sorted"),
        ("fields", ["cls", "cls"], "sorted"),
        ("fields", [1, 2], "metadata"),
        ("fields", "ab", "size and a list"),
        ("fields", ["cls", "\ud800"], "metadata"),
    ],
)
def test_other_versions_and_odd_metadata_are_refused_in_words(index, key, value, words):
    arrays, about = parts(index)
    with pytest.raises(IndexFileError, match=words):
        SampleIndex.from_buffer(saved(arrays, {**about, key: value}), name="i")


def test_a_safetensors_file_of_something_else_is_refused(index):
    arrays, about = parts(index)
    other_dtype = {**arrays, "member_sizes": arrays["member_sizes"].astype(np.float64)}
    matrix = {**arrays, "member_sizes": arrays["member_sizes"].reshape(2, 5)}
    for data, words in (
        (saved(arrays, about, mark="format"), "mark"),
        (saved(arrays, "[" * 100_000), "metadata"),
        (saved(arrays, "[]"), "metadata"),
        (saved({**arrays, "more": arrays["key_bytes"]}, about), "tensors"),
        (saved({"weight": arrays["key_bytes"]}, about), "tensors"),
        (saved(other_dtype, about), "I64"),
        (saved(matrix, about), "shape"),
    ):
        with pytest.raises(IndexFileError, match=words):
            SampleIndex.from_buffer(data, name="i")


def test_a_damaged_file_is_refused_whatever_its_header_says(index):
    data = index.to_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for tensor, entry in (
        ("key_bytes", {"dtype": "U8", "shape": [30], "data_offsets": [0, 10**30]}),
        ("key_bytes", {"dtype": "U8", "shape": [30], "data_offsets": [-30, 0]}),
        ("key_bytes", {"dtype": "U8", "shape": [30], "data_offsets": [0.0, 30.0]}),
        ("key_bytes", {"dtype": "U8", "shape": [10**30], "data_offsets": [0, 30]}),
        ("key_bytes", []),
        ("__metadata__", []),
    ):
        text = json.dumps({**header, tensor: entry}).encode()
        with pytest.raises(IndexFileError):
            SampleIndex.from_buffer(
                len(text).to_bytes(8, "little") + text + data[8 + length :], name="i"
            )
    for broken in (
        b"",
        b"\2" + bytes(7) + b"[]",
        data[:7],
        data[:40],
        data[:-1],
        data + b"x",
        b"\xff" * 8 + data[8:],
    ):
        with pytest.raises(IndexFileError, match="i: "):
            SampleIndex.from_buffer(broken, name="i")
