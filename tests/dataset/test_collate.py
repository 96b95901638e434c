"""How samples become a batch when nobody says."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

import shardloader as sl
from shardloader.dataset.collate import collate
from tests.corpora import loader_of, make_corpus_with


def joined(*values):
    return collate([{"__key__": str(n), "x": value} for n, value in enumerate(values)])["x"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 2), torch.tensor([1, 2])),
        ((1, 2.5), torch.tensor([1.0, 2.5])),
        ((0.5, 1.5), torch.tensor([0.5, 1.5])),
        ((True, False), torch.tensor([True, False])),
        ((np.float32(1), np.float32(2)), torch.tensor([1.0, 2.0])),
        ((np.ones(2, np.uint8),) * 2, torch.ones(2, 2, dtype=torch.uint8)),
        ((torch.ones(3), torch.zeros(3)), torch.tensor([[1.0] * 3, [0.0] * 3])),
        ((np.zeros((0, 2)),) * 2, torch.zeros(2, 0, 2, dtype=torch.float64)),
    ],
)
def test_numbers_and_arrays_become_a_tensor_of_their_dtype(values, expected):
    got = joined(*values)
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)


@pytest.mark.parametrize(
    "values",
    [
        ("a", "b"),
        (b"a", b""),
        ({"a": 1}, [2]),
        (None, None),
        (None, "a"),
    ],
)
def test_all_else_stays_a_list(values):
    assert joined(*values) == list(values)


@pytest.mark.parametrize("kind", ["<U3", "S3", "datetime64[s]", "O", [("a", "i4")]])
def test_arrays_that_torch_has_no_dtype_for_stay_a_list(kind):
    got = joined(np.zeros(2, kind), np.zeros(2, kind))
    assert isinstance(got, list)
    assert got[0].dtype == np.dtype(kind)


@pytest.mark.parametrize(
    "values",
    [
        (np.ones(2), np.ones(3)),
        (np.ones(2), np.ones(2, np.float32)),
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), torch.ones(2, dtype=torch.int64)),
    ],
)
def test_ragged_arrays_are_refused_with_their_field(values):
    with pytest.raises(sl.SampleError, match=r"one shape and dtype, and the field 'x' has"):
        joined(*values)


@pytest.mark.parametrize(
    "values",
    [
        (1, None),
        (None, 1),
        ("a", 1),
        (True, 1),
        (True, "a"),
        (1.5, [1]),
        (np.ones(1), None),
        (np.ones(1), torch.ones(1)),
        (torch.ones(1), "a"),
    ],
)
def test_a_field_that_is_a_number_today_and_something_else_tomorrow_is_refused(values):
    with pytest.raises(sl.SampleError, match="the field 'x' has"):
        joined(*values)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_an_integer_that_no_tensor_holds_is_refused_with_a_way_out(value):
    with pytest.raises(sl.SampleError, match=f"the field 'x' has {value}: read it as text"):
        joined(1, value)
    assert joined(2**63 - 1, -(2**63)).tolist() == [2**63 - 1, -(2**63)]


def test_arrays_of_another_byte_order_are_turned_round():
    got = joined(np.array([1.5, 2], ">f4"), np.array([3, 4], ">f4"))
    assert torch.equal(got, torch.tensor([[1.5, 2.0], [3.0, 4.0]]))


def test_an_array_stored_in_another_byte_order_arrives(tmp_path):
    file = io.BytesIO()
    np.save(file, np.array([1, 2**40], ">i8"))
    folder = make_corpus_with(tmp_path, [[("npy", file.getvalue())]] * 2)
    (batch,) = loader_of(folder, batch_size=2)
    assert batch["npy"].tolist() == [[1, 2**40]] * 2


def test_no_samples_make_an_empty_batch():
    assert collate([]) == {}


def test_samples_with_other_fields_are_refused_with_their_keys():
    with pytest.raises(sl.SampleError, match=r"keys 'a' and 'b' differ in \['y', 'z'\]"):
        collate([{"__key__": "a", "x": 1, "y": 1}, {"__key__": "b", "x": 1, "z": 1}])


def test_a_transform_may_leave_out_the_key():
    assert collate([{"x": 1}, {"x": 2}])["x"].tolist() == [1, 2]
