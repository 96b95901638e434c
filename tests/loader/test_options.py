"""What ShardLoader takes and refuses, and how trainers build it anew."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Sized

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import shardloader as sl
from shardloader.loader.options import PASSED_ON, REFUSED
from tests.corpora import (
    contents,
    dataset_of,
    kept_corpus,
    loader_of,
    make_corpus,
    raises_in_worker,
)

COUNTS = (3, 4, 2)


def make(**options):
    return loader_of(kept_corpus(COUNTS), **{"batch_size": 2, **options})


def test_a_shard_loader_is_a_stateful_data_loader_to_those_who_ask():
    loader = make(num_workers=0)
    assert isinstance(loader, StatefulDataLoader)
    assert isinstance(loader, DataLoader)
    assert isinstance(loader.dataset, IterableDataset)  # no DistributedSampler is put in
    assert (loader.batch_size, loader.num_workers) == (2, 0)


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("sampler", [0, 1], "ShardDataset(shuffle=, seed=)"),
        ("batch_sampler", [[0]], "use batch_size="),
        ("shuffle", True, "ShardDataset(shuffle=Shuffle(window=...))"),
        ("drop_last", True, 'ShardDataset(even="drop")'),
        ("in_order", False, "leave it out"),
        ("snapshot_every_n_steps", 10, "leave it out"),
    ],
)
def test_an_option_that_would_decide_what_is_read_is_refused_by_name(name, value, instead):
    assert name in REFUSED
    with pytest.raises(sl.UsageError) as caught:
        make_with(**{name: value})
    assert f"{name}=" in str(caught.value)
    assert instead in str(caught.value)


def make_with(**options):
    return sl.ShardLoader(dataset_of(kept_corpus(COUNTS)), batch_size=2, **options)


def test_the_values_of_refused_options_that_decide_nothing_are_taken():
    loader = make_with(
        sampler=None,
        batch_sampler=None,
        shuffle=False,
        drop_last=False,
        in_order=True,
        snapshot_every_n_steps=1,
    )
    assert contents(loader) == contents(make())
    assert contents(make_with(shuffle=None, drop_last=None, in_order=None)) == contents(make())


def test_an_unknown_option_is_refused_with_those_there_are():
    with pytest.raises(sl.UsageError, match="no option batch=: its own are dataset, batch_size"):
        make_with(batch=3)


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, True, "4", 2**31])
def test_a_batch_size_that_makes_no_sense_is_refused(batch_size):
    with pytest.raises(sl.UsageError, match="batch_size must be"):
        make(batch_size=batch_size)


@pytest.mark.parametrize("num_workers", [-1, 0.5, None, 2**16])
def test_a_number_of_workers_that_makes_no_sense_is_refused(num_workers):
    with pytest.raises(sl.UsageError, match="num_workers must be"):
        make(num_workers=num_workers)


def test_another_dataset_is_refused():
    with pytest.raises(sl.UsageError, match="takes a ShardDataset, and got a list"):
        sl.ShardLoader([1, 2, 3])  # type: ignore[arg-type]


def test_a_folder_and_a_loader_are_no_dataset_and_the_way_to_one_is_told():
    with pytest.raises(sl.UsageError, match=r"write ShardLoader\(ShardDataset\('corpus/'\)\)"):
        sl.ShardLoader("corpus/")  # type: ignore[arg-type]
    with pytest.raises(sl.UsageError, match="give the ShardDataset itself"):
        sl.ShardLoader(make())


def test_no_batches_are_refused_and_samples_one_by_one_are_told_of():
    with pytest.raises(sl.UsageError, match="iterate the ShardDataset itself"):
        make(batch_size=None)
    with pytest.raises(sl.UsageError, match="iterate the ShardDataset itself"):
        make(batch_size=None, accumulate=2)
    assert make(batch_size=None, global_batch=4).batch_size == 4
    assert sl.ShardLoader(dataset_of(kept_corpus(COUNTS))).batch_size == 1
    assert sl.ShardLoader(dataset_of(kept_corpus(COUNTS)), global_batch=4).batch_size == 4


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"batch_size": None}], ids=repr)
def test_a_loader_of_a_loader_is_told_that_it_is_one(options):
    with pytest.raises(sl.UnsupportedError, match="it is one itself") as caught:
        next(iter(DataLoader(make(), **options)))
    assert isinstance(caught.value, sl.UsageError)
    assert isinstance(caught.value, TypeError)


def test_samples_by_number_are_told_of_by_all_that_have_none():
    loader = make()
    for each in (loader, loader.dataset, loader.dataset.source):
        with pytest.raises(sl.UnsupportedError, match=r"as_map\(\)"):
            each[0]


def test_what_has_no_length_does_not_seem_to_have_one():
    """Trainers ask `isinstance(dataset, Sized)` before len."""
    loader = make()
    assert not isinstance(loader.dataset, Sized)
    assert not isinstance(loader.dataset.source, Sized)


@pytest.mark.parametrize("way", [pickle.dumps, copy.deepcopy])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_is_not_sent_or_copied_deeply_and_what_to_send_is_told(way, num_workers):
    loader = make(num_workers=num_workers)
    for _ in range(2):  # before and after it has read
        with pytest.raises(sl.UnsupportedError, match=r"loader.state_dict\(\)"):
            way(loader)
        next(iter(loader))
    sent = pickle.loads(pickle.dumps((loader.dataset.source, loader.state_dict())))
    made = sl.ShardLoader(sent[0], batch_size=2)
    made.load_state_dict(sent[1])
    assert contents(made) == contents(make())[1:]


def test_a_copy_that_shares_all_is_the_same_loader():
    loader = make()
    next(iter(loader))
    twin = copy.copy(loader)
    assert (type(twin), twin.step, len(twin)) == (type(loader), 1, len(loader))
    assert contents(twin) == contents(make())
    assert loader.epoch == 1


def test_a_dataset_with_a_batch_size_of_its_own_is_refused():
    with pytest.raises(sl.UsageError, match="of 4: give batch_size= to ShardLoader alone"):
        sl.ShardLoader(dataset_of(kept_corpus(COUNTS), batch_size=4))


def test_an_unknown_meta_is_refused():
    with pytest.raises(sl.UsageError, match="'all', 'mask', 'none'"):
        make(meta="some")


def test_lightning_can_build_the_loader_anew_from_its_attributes():
    loader = make(batch_size=4)
    rebuilt = type(loader)(
        dataset=loader.dataset,
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        sampler=None,
        batch_sampler=None,
        shuffle=False,
        drop_last=False,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
    assert contents(rebuilt) == contents(loader)


def test_every_option_passed_on_is_one_of_data_loaders():
    vars_of = {*vars(make()), "multiprocessing_context"}
    assert set(PASSED_ON) <= vars_of


def test_a_loaders_dataset_refuses_in_words_to_be_iterated_by_others():
    with pytest.raises(sl.UsageError, match="iterate the ShardLoader itself"):
        iter(make().dataset)
    with pytest.raises(sl.UsageError, match="already divided over ranks and workers"):
        next(iter(DataLoader(make().dataset, batch_size=2)))


def test_a_loaders_dataset_refuses_in_words_in_the_workers_of_a_foreign_loader():
    with raises_in_worker(sl.UsageError, "iterate the ShardLoader itself"):
        next(iter(DataLoader(make().dataset, batch_size=2, num_workers=1)))


def test_the_epoch_of_a_loaders_dataset_is_the_loaders():
    with pytest.raises(sl.UsageError, match=r"loader.set_epoch\(3\)"):
        make().dataset.set_epoch(3)


def test_the_dataset_can_be_taken_out_for_a_loader_of_ones_own():
    loader = make()
    assert sl.ShardLoader(loader.dataset.source, batch_size=2).state_dict() == loader.state_dict()


def test_a_loader_that_nobody_holds_is_gone_at_once():
    """Its workers and its log go with it: a circle would keep them until a collection."""
    loader = make()
    list(loader)
    watch = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert watch() is None
    finally:
        gc.enable()


def test_a_generator_of_the_callers_own_is_used_for_the_workers_seed():
    one, two = torch.Generator(), torch.Generator()
    one.manual_seed(5)
    two.manual_seed(5)
    list(make_with(generator=one, num_workers=1))
    assert not torch.equal(one.get_state(), two.get_state())


def test_the_constructor_opens_nothing_and_asks_nobody_for_the_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")  # half a source, an error once it is asked
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    loader = sl.ShardLoader(sl.ShardDataset(tmp_path / "later"), batch_size=2)
    iterator = iter(loader)
    make_corpus(tmp_path / "later", COUNTS)
    with pytest.raises(sl.TopologyError, match="WORLD_SIZE"):
        next(iterator)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert contents(iterator) == contents(make())


def test_a_folder_that_is_not_there_and_one_without_shards_are_refused_in_words(tmp_path):
    with pytest.raises(sl.UsageError, match="nowhere"):
        len(loader_of(tmp_path / "nowhere", batch_size=2))
    with pytest.raises(sl.UsageError, match="has no"):
        len(loader_of(tmp_path, batch_size=2))
