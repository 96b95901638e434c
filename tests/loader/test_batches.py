"""What a batch holds, what it weighs, and what a broken sample does to it."""

from __future__ import annotations

import logging
from types import MappingProxyType

import numpy as np
import pytest
import torch

import shardloader as sl
from tests.corpora import (
    content,
    contents,
    kept_corpus,
    loader_of,
    loaders_of,
    make_corpus,
    make_corpus_with,
    raises_in_worker,
    valid_of,
)

COUNTS = (3, 4, 2)


def make(**options):
    return loader_of(kept_corpus(COUNTS), **{"batch_size": 4, **options})


def test_a_batch_holds_the_fields_and_the_entries_with_their_types():
    batch = next(iter(make()))
    assert list(batch) == [
        "txt",
        "cls",
        "__valid__",
        "__global_valid__",
        "__world_size__",
        "__index__",
        "__key__",
    ]
    assert batch["__valid__"].dtype == torch.bool
    assert batch["__index__"].dtype == torch.int64
    assert (type(batch["__global_valid__"]), type(batch["__world_size__"])) == (int, int)


def test_meta_says_which_entries_come():
    mask = next(iter(make(meta="mask")))
    assert set(mask) == {"txt", "cls", "__valid__", "__global_valid__", "__world_size__"}
    assert set(next(iter(make(meta="none")))) == {"txt", "cls"}


def test_collate_fn_gets_a_list_of_samples_and_the_entries_are_merged_after_it():
    seen = []

    def collate(samples):
        seen.append(samples)
        return MappingProxyType({"n": len(samples), "__valid__": "overwritten"})

    batch = next(iter(make(collate_fn=collate)))
    assert batch["n"] == 4
    assert batch["__valid__"].tolist() == [True] * 4
    assert [sample["__key__"] for sample in seen[0]] == batch["__key__"]


def test_a_collate_fn_that_returns_a_tuple_needs_no_meta():
    def pair(samples):
        return [sample["txt"] for sample in samples], torch.tensor([s["cls"] for s in samples])

    texts, classes = next(iter(make(collate_fn=pair, meta="none")))
    assert len(texts) == len(classes) == 4
    with pytest.raises(sl.UsageError, match='returned a tuple: return a mapping, or give meta="no'):
        next(iter(make(collate_fn=pair)))


def test_pads_repeat_samples_and_are_marked_and_come_last():
    loaders = loaders_of(kept_corpus(COUNTS), 2, batch_size=4)  # 9 samples: one step, and one left
    last = [list(loader)[-1] for loader in loaders]
    assert [batch["__valid__"].tolist() for batch in last] == [
        [True, False, False, False],
        [False] * 4,
    ]
    assert {batch["__global_valid__"] for batch in last} == {1}
    assert all(len(batch["txt"]) == 4 for batch in last)


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 4), (2, 3), (2, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("even", ["pad", "join"])
def test_sums_times_loss_scale_average_to_the_mean_over_the_global_batch(
    world_size, batch_size, even
):
    """DDP averages over ranks; a rank's gradient is its sum of losses times loss_scale."""
    loaders = loaders_of(kept_corpus(COUNTS), world_size, batch_size=batch_size, even=even)
    for step in range(max(map(len, loaders))):
        batches = [next(iter_) for iter_ in _iterators(loaders, step)]
        numbers = [number for batch in batches for number in valid_of([batch])]
        scaled = [sum(valid_of([batch])) * sl.loss_scale(batch) for batch in batches]
        assert sum(scaled) / world_size == pytest.approx(np.mean(numbers))


def _iterators(loaders, step):
    """Fresh iterators at `step`, of the ranks that have one."""
    for loader in loaders:
        loader.load_state_dict({**loader.state_dict(), "epoch": 0, "consumed": 0})
        loader.skip(step)
        if loader.epoch == 0 and loader.steps_left:
            yield iter(loader)


@pytest.fixture
def broken(tmp_path):
    """Nine samples of which number 5 has a class that is no number."""
    samples = [
        [("txt", b"text %d " % number), ("cls", b"%d" % number if number != 5 else b"five")]
        for number in range(9)
    ]
    return make_corpus_with(tmp_path, samples)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_broken_field_is_named_by_shard_key_field_and_offset_and_nothing_comes_after(
    broken, num_workers
):
    loader = loader_of(broken, batch_size=2, shuffle=False, num_workers=num_workers)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    with raises_in_worker(sl.DecodeError, "'000005'") as messages:
        next(iterator)
    (message,) = messages
    offset = (broken / "shard-0000.tar").read_bytes().index(b"five")
    for word in ("shard-0000.tar", "'000005'", "'cls'", f"byte {offset}"):
        assert word in message
    for _ in range(2):
        with pytest.raises(sl.StaleIteratorError, match="raised an error is at its end"):
            next(iterator)
    assert loader.state_dict()["consumed"] == 4


def test_an_error_in_the_first_batch_leaves_the_position_and_a_new_iterator_tries_again(broken):
    loader = loader_of(broken, batch_size=6, shuffle=False)
    for _ in range(2):
        with pytest.raises(sl.DecodeError):
            next(iter(loader))
    assert loader.state_dict()["consumed"] == 0


def test_persistent_workers_live_on_after_an_error(broken):
    loader = loader_of(broken, batch_size=2, shuffle=False, num_workers=2, persistent_workers=True)
    with raises_in_worker(sl.DecodeError, "'000005'"):
        list(loader)
    state = loader.state_dict()
    loader.load_state_dict(state)
    loader.skip(1)
    assert [batch["__index__"].tolist() for batch in loader] == [[6, 7], [8, 8]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stop_iteration_in_a_transform_is_no_silent_end(num_workers):
    def transform(sample):
        raise StopIteration

    with raises_in_worker(RuntimeError, "StopIteration"):
        next(iter(make(transform=transform, num_workers=num_workers)))


def test_a_field_that_one_sample_lacks_is_refused_with_both_keys(tmp_path):
    samples = [[("txt", b"a"), ("cls", b"1")], [("txt", b"b")]]
    loader = loader_of(make_corpus_with(tmp_path, samples), batch_size=2, shuffle=False)
    with pytest.raises(sl.SampleError, match=r"'000000' and '000001' differ in \['cls'\]"):
        next(iter(loader))


def test_a_shard_that_was_changed_since_it_was_indexed_is_refused(tmp_path):
    loader = loader_of(make_corpus(tmp_path, (3, 4)), batch_size=2)
    shard = tmp_path / "shard-0001.tar"
    shard.write_bytes(shard.read_bytes() + bytes(512))
    with pytest.raises(sl.ManifestError, match=r"shard-0001.tar: the shard has \d+ bytes, and had"):
        len(loader)


def test_a_shard_that_is_gone_is_refused(tmp_path):
    loader = loader_of(make_corpus(tmp_path, (3, 4)), batch_size=2)
    (tmp_path / "shard-0001.tar").unlink()
    with pytest.raises(sl.ManifestError, match=r"shard-0001.tar: the manifest lists this shard"):
        len(loader)


def test_a_batch_can_be_given_twice_from_one_state():
    loader = make()
    state = loader.state_dict()
    first = content(next(iter(loader)))
    loader.load_state_dict(state)
    assert content(next(iter(loader))) == first


def test_a_rank_from_the_environment_is_logged(monkeypatch, caplog):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    loader = sl.ShardLoader(sl.ShardDataset(kept_corpus(COUNTS)), batch_size=1)
    with caplog.at_level(logging.INFO):
        assert loader.topology == sl.Topology(rank=1, world_size=3)
        list(loader)
    assert caplog.text.count("rank 1 of 3, from RANK and WORLD_SIZE of torchrun") == 1
    assert contents(loader) == contents(
        _second_epoch(loader_of(kept_corpus(COUNTS), rank=1, world_size=3))
    )


def _second_epoch(loader):
    loader.set_epoch(1)
    return loader


def with_a_lambda(sample):
    is_late = int(sample["__key__"]) >= 4
    return {"n": sample["cls"], "function": (lambda: None) if is_late else None}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_that_can_not_cross_from_a_worker_is_refused_and_no_hang(num_workers):
    """Also where it is not the first."""
    loader = loader_of(
        kept_corpus((4, 3)),
        batch_size=2,
        num_workers=num_workers,
        transform=with_a_lambda,
        shuffle=False,
    )
    if num_workers == 0:
        assert len(list(loader)) == 4
        return
    iterator = iter(loader)
    assert [next(iterator)["n"].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with raises_in_worker(sl.UsageError, "its 'function' can't be pickled"):
        next(iterator)
