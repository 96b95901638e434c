from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import SampleError
from shardloader.reading.decode import DEFAULT_DECODERS, resolve
from shardloader.writing.encode import encode_sample, key_problem

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


def encoded(field: str, value: Any) -> bytes:
    (pair,) = encode_sample({"__key__": "k", field: value}).fields
    return pair[1]


def decoded(field: str, value: Any) -> Any:
    return resolve("default").decode(field, encoded(field, value))


@given(JSON)
def test_json_reads_back_the_same(value: Any) -> None:
    back = decoded("json", value)
    assert back == value
    assert repr(back) == repr(value)  # also the order of keys, and 1 against 1.0 and True


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_reads_back_the_same(value: str) -> None:
    assert decoded("txt", value) == value


@given(st.integers())
def test_whole_numbers_read_back_the_same(value: int) -> None:
    assert decoded("cls", value) == value


def test_numpy_numbers_and_arrays_read_back_the_same() -> None:
    assert decoded("count", np.int16(-3)) == -3
    for array in (np.arange(6).reshape(2, 3).T, np.array(3, np.float32), np.array(["é", "ab"])):
        back = decoded("npy", array)
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("field", sorted({*DEFAULT_DECODERS, "jpg", "anything", "left.jpg"}))
def test_every_field_takes_bytes_as_they_are(field: str) -> None:
    for value in (
        b"\0\xff{",
        bytearray(b"\0\xff{"),
        memoryview(b"\0\xff{"),
        memoryview(b"{\xff\0")[::-1],
    ):
        assert encoded(field, value) == b"\0\xff{"


def test_a_buffer_that_is_used_again_is_copied() -> None:
    buffer = bytearray(b"first")
    data = encoded("bin", buffer)
    buffer[:] = b"later"
    assert data == b"first"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("txt", None),
        ("txt", 1.5),
        ("txt", "\ud800"),
        ("json", math.nan),
        ("json", [math.inf]),
        ("json", {1: "a"}),
        ("json", [{"a": ({None: 1},)}]),
        ("json", {"a": {1}}),
        ("json", b"x".__class__),
        ("json", "\udcff"),
        ("cls", True),
        ("cls", np.bool_(1)),
        ("cls", 1.0),
        ("cls", "\ud800"),
        ("index", "7"),
        ("npy", [1, 2]),
        ("npy", np.array([object])),
        ("npy", np.ma.MaskedArray([1, 2], [True, False])),
        ("jpg", np.zeros((2, 2, 3), np.uint8)),
        ("seg.png", "text"),
        ("pickle", {"a": 1}),
        ("bin", 7),
        ("xyz", "text"),
    ],
)
def test_what_would_not_read_back_is_refused_with_key_field_and_type(field: str, value) -> None:
    with pytest.raises(SampleError) as caught:
        encode_sample({"__key__": "the key", field: value})
    for part in ("'the key'", repr(field), f"type {type(value).__name__}:"):
        assert part in str(caught.value)


def test_what_refers_to_itself_or_has_no_end_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (loop, deep):
        with pytest.raises(SampleError, match="'json'"):
            encoded("json", value)


def test_fields_are_in_byte_order_of_their_names() -> None:
    sample = {"txt": "", "é": b"", "a.b": b"", "z": b"", "a": b"", "__key__": "k", "a-": b""}
    names = [name for name, _ in encode_sample(sample).fields]
    assert names == ["a", "a-", "a.b", "txt", "z", "é"]


@pytest.mark.parametrize(
    "field", ["", "JPG", "a/b", "__url__", "a\0b", "İ", "\udcff", "x" * 256, 3, None]
)
def test_a_field_that_would_not_read_back_is_refused(field: Any) -> None:
    with pytest.raises(SampleError, match="'the key'"):
        encode_sample({"__key__": "the key", field: b""})


def test_names_that_are_reserved_only_together_are_refused() -> None:
    encode_sample({"__key__": "__init__", "py": b""})
    encode_sample({"__key__": "a", "b__": b""})
    with pytest.raises(SampleError, match="reserved"):
        encode_sample({"__key__": "__a", "b__": b""})


@pytest.mark.parametrize(
    "key", ["a/../b", "./a", "a/./b", "__meta__/a", "\ud800", "é" * 2049, "a//"]
)
def test_more_keys_that_are_refused(key: str) -> None:
    assert key_problem(key) is not None


@pytest.mark.parametrize("key", ["0", "a b", "-", "v1.0/x", "a\\b", "__x", "猫/é", "a" * 4096])
def test_more_keys_that_are_fine(key: str) -> None:
    assert key_problem(key) is None
    assert encode_sample({"__key__": key, "txt": ""}).key == key
