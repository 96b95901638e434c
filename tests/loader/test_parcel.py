"""What crosses from a worker comes out as it went in, and lies in blocks that are used again."""

from __future__ import annotations

import gc
import pickle
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardloader.loader.parcel import LARGE_BYTES, Parcel
from shardloader.loader.ring import MOST_BLOCKS, ONCE, Receiver, Ring, Sender


class Crossing:
    """Both sides in one process."""

    def __init__(self, most: int = 4) -> None:
        self.ring = Ring.of(1)
        self.sender = Sender(self.ring, 0, most=most)
        self.receiver = Receiver(self.ring)

    def cross(self, batch: Any) -> Any:
        parcel = Parcel(batch, self.sender, self.ring.token)
        return pickle.loads(bytes(ForkingPickler.dumps(parcel)))

    @property
    def num_in_use(self) -> int:
        gc.collect()
        return int(self.ring.in_use.sum())

    @property
    def num_blocks(self) -> int:
        return len(self.receiver._blocks)


@pytest.fixture(scope="module")
def crossing():
    return Crossing()


def told(value: Any) -> Any:
    """A value with its types, dtypes, shapes and strides, comparable."""
    if isinstance(value, torch.Tensor):
        bits = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return torch.Tensor, value.dtype, value.shape, value.stride(), bits
    if isinstance(value, np.ndarray):
        native = value.astype(value.dtype.newbyteorder("="))  # as numpy pickles arrays
        return np.ndarray, native.dtype, value.shape, value.flags.writeable, native.tobytes()
    if isinstance(value, dict):
        return dict, [(name, told(each)) for name, each in value.items()]
    if isinstance(value, list | tuple):
        return type(value), list(map(told, value))
    return type(value), value


DTYPES = [torch.uint8, torch.bool, torch.int64, torch.float32, torch.bfloat16, torch.uint16]
DTYPES += [torch.complex64, torch.float64]
SHAPES = st.lists(st.integers(1, 5), max_size=4) | st.just([3, 64, 200])
PIECES = st.one_of(
    st.builds(
        lambda dtype, shape, order: (
            torch.arange(int(np.prod(shape)), dtype=torch.float32)
            .view(shape)
            .to(dtype)
            .permute(sorted(range(len(shape)), key=lambda dim: (order * (dim + 1)) % 7))
        ),
        st.sampled_from(DTYPES),
        SHAPES,
        st.integers(1, 6),
    ),
    st.builds(
        lambda dtype, shape: np.arange(int(np.prod(shape))).reshape(shape).astype(dtype),
        st.sampled_from(["u1", ">i4", "<f8", "S3", "<U2", "M8[s]"]),
        SHAPES,
    ),
    st.lists(st.text(st.characters(exclude_categories=[])), max_size=4),
    st.lists(st.binary(max_size=4), max_size=4),
    st.integers(1, 3).map(lambda n: ["äx" * 9000, "", "b" * 5] * n),
    st.integers(1, 3).map(lambda n: [b"\0\xff" * 9000, b""] * n),
    st.just([{"a": [1, {"b": None}]}, {"a": []}]),
    st.none() | st.integers() | st.text(max_size=3),
)
BATCHES = st.recursive(
    PIECES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=5,
)


@given(batch=BATCHES)
def test_a_batch_comes_out_as_it_went_in(crossing, batch):
    assert told(crossing.cross(batch)) == told(batch)


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(0, 3),
        torch.ones(3, requires_grad=True),
        torch.ones(2, 3).to_sparse(),
        torch.arange(40_000).view(200, 200)[:, ::2],
        torch.zeros(20_000, dtype=torch.float32).expand(3, 20_000),
        torch.view_as_complex(torch.ones(9, 2)).conj(),
        np.array([None, {}], dtype=object),
        np.zeros((0, 4)),
        np.asfortranarray(np.arange(90_000).reshape(300, 300)),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own, on any sparse tensor
def test_what_is_no_plain_memory_crosses_too(crossing, batch):
    came = crossing.cross({"x": batch})["x"]
    if isinstance(batch, torch.Tensor):
        assert came.dtype == batch.dtype
        assert torch.equal(came.to_dense(), batch.to_dense())
    else:
        assert (came == batch).all()


def large(value: int = 1) -> torch.Tensor:
    return torch.full((LARGE_BYTES,), value, dtype=torch.uint8)


def test_a_block_is_used_again_once_its_tensor_is_gone():
    crossing = Crossing()
    for value in range(5):
        came = crossing.cross({"x": large(value)})
        assert crossing.num_in_use == 1
        assert came["x"][0] == value
        del came
        assert crossing.num_in_use == 0
    assert crossing.num_blocks == 1


VIEWS = {
    "slice": lambda x: x[5:],
    "a slice of a slice": lambda x: x[5:][::3],
    "another shape": lambda x: x.view(2, -1)[1],
    "another dtype": lambda x: x.view(torch.int32),
    "detached": lambda x: x.detach(),
    "array": lambda x: x.numpy(),
    "a view of the array": lambda x: x.numpy()[3:].view(np.int8),
    "memoryview": lambda x: memoryview(x.numpy())[2:],
    "storage": lambda x: x.untyped_storage(),
    "split": lambda x: x.split(1000)[3],
    "array and back": lambda x: torch.from_numpy(x.numpy()[1:]),
    "dlpack": lambda x: np.from_dlpack(x)[7:],
    "transposed": lambda x: x.view(2, -1).T,
}


def bytes_of(view: Any) -> bytes:
    return view.numpy().tobytes() if isinstance(view, torch.Tensor) else bytes(view)


@pytest.mark.parametrize("kind", VIEWS)
def test_a_block_is_not_used_again_while_the_loop_sees_it_in_any_view(kind):
    crossing = Crossing()
    view = VIEWS[kind](crossing.cross({"x": large(7)})["x"])
    assert crossing.num_in_use == 1
    before = bytes_of(view)
    others = [crossing.cross({"x": large(value)}) for value in range(9)]
    assert bytes_of(view) == before
    del view, others
    assert crossing.num_in_use == 0


def test_a_loop_that_keeps_every_batch_finds_each_unchanged():
    crossing = Crossing(most=3)
    kept = [crossing.cross({"x": large(value), "n": value}) for value in range(40)]
    assert all((batch["x"] == batch["n"]).all() for batch in kept)
    assert crossing.num_blocks == 3
    del kept
    assert crossing.num_in_use == 0


def test_large_pieces_of_one_batch_are_let_go_one_by_one():
    crossing = Crossing()
    kept = [crossing.cross({"image": large(), "mask": large()})["mask"] for _ in range(2)]
    assert crossing.num_in_use == 2
    del kept


def test_small_pieces_keep_no_block():
    crossing = Crossing()
    kept = [crossing.cross({"image": large(), "label": torch.tensor([3])})["label"]]
    assert crossing.num_in_use == 0
    del kept


def test_texts_leave_their_block_on_arrival():
    crossing = Crossing()
    texts = ["x" * 1000] * 100
    kept = crossing.cross({"txt": texts})
    assert kept["txt"] == texts
    assert crossing.num_blocks == 1
    assert crossing.num_in_use == 0


def test_blocks_follow_the_size_of_batches():
    crossing = Crossing(most=2)
    for size in (LARGE_BYTES, 5 * LARGE_BYTES, LARGE_BYTES, 9 * LARGE_BYTES, 5 * LARGE_BYTES):
        sent = torch.arange(size, dtype=torch.int32)
        assert torch.equal(crossing.cross(sent), sent)
    assert crossing.num_blocks == 2
    assert crossing.num_in_use == 0


def test_a_block_that_is_much_too_large_is_not_taken():
    crossing = Crossing()
    crossing.cross(torch.zeros(100 * LARGE_BYTES, dtype=torch.uint8))
    crossing.cross(large())
    assert crossing.num_blocks == 2


def test_blocks_that_are_used_once_have_no_number():
    ring = Ring.of(2)
    sender = Sender(ring, 1, most=1000)
    places = [sender.take(LARGE_BYTES) for _ in range(MOST_BLOCKS + 2)]
    assert [place.number for place in places] == [*range(MOST_BLOCKS), ONCE, ONCE]
    assert all(place.block is not None for place in places)
    assert ring.in_use.sum(dim=1).tolist() == [0, MOST_BLOCKS]


def test_blocks_of_a_size_that_batches_no_longer_have_make_way():
    crossing = Crossing(most=16)
    for size in range(LARGE_BYTES, 40 * LARGE_BYTES, LARGE_BYTES):
        for _ in range(3):
            crossing.cross(torch.zeros(size, dtype=torch.uint8))
    assert crossing.num_blocks <= 8


def test_blocks_go_with_the_receiver_and_the_last_batch():
    crossing = Crossing()
    kept = crossing.cross({"x": large(5)})
    gone = weakref.ref(crossing.receiver)
    del crossing.receiver
    gc.collect()
    assert gone() is None
    assert (kept["x"] == 5).all()
