"""Batches are on the device before they are asked for, and nothing else about them changes."""

from __future__ import annotations

import gc
import logging
import pickle
import weakref
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data._utils.pin_memory import pin_memory

import shardloader as sl
from shardloader.dataset.skipping import Carrier
from shardloader.loader.device import Ahead, ToPin, checked_device, rebuilt, side_of
from tests.corpora import contents, kept_corpus, loader_of
from tests.loader.sides import NOT_THERE, FakeSide

COUNTS = (5, 7, 4, 8)
Pair = namedtuple("Pair", "left right")  # noqa: PYI024


@dataclass(frozen=True, slots=True)
class Held:
    image: torch.Tensor
    name: str


class Movable:
    def __init__(self, where="host"):
        self.where = where

    def to(self, device):
        return Movable(device)


def on(side, **options):
    """A loader whose device is the fake one."""
    loader = loader_of(kept_corpus(COUNTS), **{"batch_size": 2, "device": "cuda", **options})
    loader._engine._find_side = lambda _: side
    return loader


def plain(**options):
    return loader_of(kept_corpus(COUNTS), **{"batch_size": 2, **options})


def ahead_of(batches, side, *, depth=2, may_take=lambda _: True):
    return Ahead(iter(batches), side, depth=depth, may_take=may_take)


def tensors(number, stop=None):
    return ({"x": torch.full((4,), each)} for each in range(number, stop or number + 3))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_state_and_epochs_are_those_without_a_device(num_workers):
    side = FakeSide(is_eager=False)
    loader, other = on(side, num_workers=num_workers), plain(num_workers=num_workers)
    for _ in range(2):
        for ours, theirs in zip(loader, other, strict=True):
            assert contents([ours]) == contents([theirs])
            assert loader.state_dict() == other.state_dict()
    assert side.count("wait") == 2 * len(loader)
    assert loader.stats() == other.stats()


def test_the_state_counts_what_the_loop_received_and_not_what_is_on_its_way():
    loader, other = on(FakeSide()), plain()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    resumed = on(FakeSide())
    resumed.load_state_dict(loader.state_dict())
    assert contents(resumed) == contents(islice(iter(other), 3, None))


def test_a_loop_that_breaks_off_loads_or_sets_the_epoch_loses_nothing():
    loader, other = on(FakeSide()), plain()
    next(iter(loader))
    next(iter(other))
    assert contents(loader) == contents(other)  # broken off: from the beginning
    for each in (loader, other):
        each.set_epoch(5)
    assert contents(loader) == contents(other)
    running = iter(loader)
    next(running)
    loader.load_state_dict(other.state_dict())
    with pytest.raises(sl.StaleIteratorError):
        next(running)
    assert contents(loader) == contents(other)


def test_no_copy_is_used_before_the_loops_stream_waits_for_it():
    side = FakeSide(is_eager=False)
    given = ahead_of(tensors(0, 4), side)
    for number in range(4):
        batch = next(given)
        assert batch["x"].tolist() == [number] * 4
    there = FakeSide(is_eager=False)
    held = ahead_of(tensors(0, 4), there)
    next(held)
    assert there.num_done == 1  # the others are begun, and nobody waited for them
    assert [copy[0].item() for _, copy in there.begun] == [0, NOT_THERE, NOT_THERE]


def test_the_device_keeps_memory_for_the_loops_stream_and_the_host_until_the_copy_is_done():
    side = FakeSide(is_eager=False)
    given = ahead_of(tensors(0, 5), side, depth=3)
    batch = next(given)
    assert ("keep", batch["x"].data_ptr()) in side.calls
    waiting = [weakref.ref(host) for host, _ in side.begun[1:]]
    side.begun[1:] = [(host.clone(), there) for host, there in side.begun[1:]]
    gc.collect()
    assert all(host() is not None for host in waiting)
    for _ in given:
        pass
    gc.collect()
    assert all(host() is None for host in waiting)


def test_as_many_are_ahead_as_was_said_and_none_that_would_have_to_be_waited_for():
    side = FakeSide()
    given = ahead_of(tensors(0, 10), side, depth=3)
    next(given)
    assert len(side.begun) == 4
    made = {0, 1}
    slow = FakeSide()
    given = ahead_of(tensors(0, 10), slow, depth=3, may_take=made.__contains__)
    next(given)
    assert len(slow.begun) == 2
    made.update({2, 3, 4})
    next(given)
    assert len(slow.begun) == 5


def test_without_workers_one_batch_is_read_ahead():
    side = FakeSide()
    loader = on(side, device_prefetch=5, meta="none", fields=("cls",))
    next(iter(loader))
    assert side.count("event") == 2


def test_an_error_comes_in_its_turn():
    def fails():
        yield from tensors(0, 2)
        raise sl.DataError("the third is bad")

    given = ahead_of(fails(), FakeSide(), depth=5)
    assert [next(given)["x"][0].item() for _ in range(2)] == [0, 1]
    for _ in range(2):
        with pytest.raises(sl.DataError, match="the third"):
            next(given)


def test_a_loop_that_lets_go_lets_go_of_what_was_ahead():
    side = FakeSide()
    loader = on(side, num_workers=0)
    batches = iter(loader)
    next(batches)
    held = weakref.ref(side.begun[-1][1])
    side.begun.clear()
    side.num_done = 0
    del batches
    gc.collect()
    assert held() is None


def test_every_tensor_goes_and_texts_arrays_and_numbers_stay():
    array = np.arange(3)
    batch: dict[str, Any] = {
        "image": torch.ones(2),
        "ragged": [torch.ones(1), torch.ones(5)],
        "texts": ["a", "bc"],
        "nested": {"tokens": (torch.zeros(2), "x"), "array": array},
        "pair": Pair(torch.ones(1), 3),
        "held": Held(torch.ones(2), "n"),
        "ordered": OrderedDict(a=torch.ones(1)),
        "view": MappingProxyType({"a": torch.ones(1)}),
        "movable": Movable(),
        "own": UserDict(a=torch.ones(1)),
    }
    moved, texts = [], batch["texts"]

    def move(tensor):
        moved.append(tensor)
        return tensor + 100

    there = rebuilt(batch, move, lambda value: value.to("there"))
    assert len(moved) == 9
    assert there["image"].tolist() == [101, 101]
    assert there["texts"] is texts
    assert there["nested"]["array"] is array
    assert there["nested"]["tokens"][1] == "x"
    assert isinstance(there["pair"], Pair)
    assert there["pair"].right == 3
    assert isinstance(there["held"], Held)
    assert there["held"].image.tolist() == [101, 101]
    assert type(there["ordered"]) is OrderedDict
    assert type(there["own"]) is UserDict
    assert there["own"]["a"].item() == 101
    assert there["movable"].where == "there"
    assert batch["held"].image.tolist() == [1, 1]  # the batch itself is as it was
    assert batch["own"]["a"].item() == 1


def test_an_object_with_a_to_of_its_own_is_moved_when_it_is_given():
    side = FakeSide()
    given = ahead_of([{"x": Movable()}, {"x": Movable()}], side)
    assert next(given)["x"].where == "there"
    assert side.count("moved") == 1  # the second one is held, and not moved yet


def test_pinning_in_dataloaders_thread_changes_no_container(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 100)
    batch = (torch.ones(1), Held(torch.ones(1), "n"), ["a"])
    carrier = pickle.loads(pickle.dumps(Carrier(ToPin(batch))))
    pinned = pin_memory(carrier)
    image, held, texts = next(ahead_of([pinned], FakeSide())).batch
    assert (image.item(), held.image.item(), held.name, texts) == (101, 101, "n", ["a"])
    assert type(pinned.batch.batch) is tuple


def test_what_travels_with_a_batch_stays_with_it():
    faults: Any = ("a fault",)
    sent = Carrier({"x": torch.ones(1)}, faults)
    carrier = next(ahead_of([sent], FakeSide()))
    assert type(carrier) is Carrier
    assert carrier.faults is faults


def test_the_mask_goes_to_the_device_and_what_is_a_number_stays():
    side = FakeSide()
    batch = next(iter(on(side)))
    there = {copy.data_ptr() for _, copy in side.begun}
    assert batch["__valid__"].data_ptr() in there
    assert type(batch["__global_valid__"]) is int
    assert type(batch["__key__"][0]) is str
    assert type(batch["txt"][0]) is str


def test_a_machine_without_a_gpu_leaves_batches_where_they_are_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    loader = plain(device="cuda")
    with caplog.at_level(logging.WARNING, "shardloader"):
        assert contents(loader) == contents(plain())
        list(loader)
    said = [record for record in caplog.records if "no GPU" in record.getMessage()]
    assert len(said) == 1


def test_the_device_is_looked_for_at_the_first_iter_and_once():
    asked: list[Any] = []
    loader = plain(device="cuda")
    loader._engine._find_side = asked.append
    len(loader)
    loader.state_dict()
    iter(loader)
    assert not asked
    list(loader)
    list(loader)
    assert asked == [torch.device("cuda")]


def test_the_host_is_a_device_that_needs_nothing():
    assert side_of(torch.device("cpu")) is None
    assert contents(plain(device="cpu", pin_memory=False)) == contents(plain())


@pytest.mark.parametrize("device", ["mps", "gpu", 3.5, "cuda:x", ""])
def test_what_is_no_device_is_refused(device):
    with pytest.raises(sl.UsageError, match="device="):
        checked_device(device)


@pytest.mark.parametrize(
    "options", [{"pin_memory": False}, {"pin_memory_device": "cuda"}, {"device_prefetch": 0}]
)
def test_options_that_contradict_the_device_are_refused(options):
    with pytest.raises(sl.UsageError, match=next(iter(options))):
        sl.ShardLoader(sl.ShardDataset(kept_corpus(COUNTS)), 2, device="cuda", **options)


def test_pinning_that_was_asked_for_as_well_is_the_same():
    assert contents(on(FakeSide(), pin_memory=True)) == contents(plain())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_on_a_gpu_batches_are_those_of_the_host(num_workers):
    loader, other = plain(device="cuda", num_workers=num_workers), plain()
    for _ in range(2):
        for ours, theirs in zip(loader, other, strict=True):
            assert ours["cls"].device.type == "cuda"
            host = rebuilt(ours, lambda tensor: tensor.cpu(), lambda value: value)
            assert contents([host]) == contents([theirs])
            assert loader.state_dict() == other.state_dict()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
def test_on_a_gpu_memory_is_not_used_again_under_a_loop_that_lags():
    side = side_of(torch.device("cuda"))
    batches = ({"x": torch.full((1 << 20,), float(each))} for each in range(40))
    sums = []
    weights = torch.ones(1 << 11, 1 << 11, device="cuda")
    for batch in ahead_of(batches, side, depth=3):
        for _ in range(5):
            weights = weights @ weights * 1e-4  # the device is behind the loop
        sums.append(batch["x"].sum())
    assert [each.item() for each in sums] == [float(each) * (1 << 20) for each in range(40)]
