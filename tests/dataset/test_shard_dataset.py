"""The dataset itself: fields, decoders, transforms, the map-style view, and what it refuses."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import shardloader as sl
from tests.corpora import (
    content,
    contents,
    dataset_of,
    kept_corpus,
    loader_of,
    loaders_of,
    make_corpus_with,
)
from tests.shards import tar_bytes

COUNTS = (3, 0, 4, 2)
NUM_SAMPLES = 9


def with_draw(sample, rng):
    return {**sample, "draw": int(rng.integers(2**40))}


def with_global_draws(sample):
    return {
        **sample,
        "draw": (random.random(), float(np.random.rand()), float(torch.rand(()))),  # noqa: NPY002
    }


def only_number(sample):
    return 5


def test_fields_are_those_asked_for_whatever_their_case():
    (sample, *_) = dataset_of(kept_corpus(COUNTS), fields=(".TXT",))
    assert set(sample) == {"__key__", "txt", "__valid__", "__index__"}


def test_fields_may_be_given_by_anything_that_is_iterated():
    for fields in (["txt"], {"txt"}, (name for name in ["txt"]), {"txt": 1}.keys()):
        (sample, *_) = dataset_of(kept_corpus(COUNTS), fields=fields)
        assert "txt" in sample
        assert "cls" not in sample


@pytest.mark.parametrize("fields", ["txt", 5, [1], b"cls"])
def test_fields_that_are_no_list_of_names_are_refused(fields):
    with pytest.raises(sl.UsageError, match="a list of field names"):
        dataset_of(kept_corpus(COUNTS), fields=fields)


def test_decode_none_gives_bytes():
    (sample, *_) = dataset_of(kept_corpus(COUNTS), decode=None, shuffle=False)
    assert sample["cls"] == b"0"
    assert sample["txt"].startswith(b"text 0 ")


def test_a_decoder_of_the_callers_own_is_laid_over_the_default():
    (sample, *_) = dataset_of(kept_corpus(COUNTS), decode={"txt": len}, shuffle=False)
    assert (sample["txt"], sample["cls"]) == (20, 0)


def test_a_field_that_is_missing_is_named_with_shard_and_key(tmp_path):
    folder = make_corpus_with(tmp_path, [[("txt", b"a")]])
    with pytest.raises(sl.SampleError) as caught:
        list(dataset_of(folder, fields=("txt", "cls")))
    for word in ("shard-0000.tar", "'000000'", "lacks ['cls']", "it has ['txt']", "fields="):
        assert word in str(caught.value)


def test_bare_samples_tell_their_number_and_whether_they_are_valid():
    samples = list(dataset_of(kept_corpus(COUNTS), rank=1, world_size=2))
    assert [sample["__valid__"] for sample in samples] == [True] * 4 + [False]
    assert all(sample["__key__"] == f"{sample['__index__']:06d}" for sample in samples)


def test_meta_none_leaves_samples_as_they_are():
    (sample, *_) = dataset_of(kept_corpus(COUNTS), meta="none")
    assert set(sample) == {"__key__", "txt", "cls"}


def test_rng_is_keyed_by_seed_epoch_and_sample_and_nothing_else():
    options = {"transform": with_draw, "batch_size": 2}
    one = loader_of(kept_corpus(COUNTS), **options)
    draws = [_draws([one]), _draws([one])]
    assert draws[0] != draws[1]
    assert len(set(draws[0].values())) == NUM_SAMPLES
    assert _draws(loaders_of(kept_corpus(COUNTS), 3, **options)) == draws[0]
    assert _draws([loader_of(kept_corpus(COUNTS), num_workers=2, **options)]) == draws[0]
    assert _draws([loader_of(kept_corpus(COUNTS), seed=1, **options)]) != draws[0]
    resumed = loader_of(kept_corpus(COUNTS), **options)
    resumed.skip(2)
    assert _draws([resumed]).items() < draws[0].items()
    view = dataset_of(kept_corpus(COUNTS), transform=with_draw).as_map()
    assert {i: view[i]["draw"] for i in range(NUM_SAMPLES)} == draws[0]


def test_reseed_makes_global_draws_the_same_in_any_number_of_workers():
    options = {"transform": with_global_draws, "reseed": True, "batch_size": 2}
    one = _draws([loader_of(kept_corpus(COUNTS), num_workers=1, **options)])
    two = _draws([loader_of(kept_corpus(COUNTS), num_workers=2, **options)])
    assert one == two
    assert len(set(one.values())) == NUM_SAMPLES


def test_reseed_is_refused_in_the_main_process():
    refused = pytest.raises(sl.UsageError, match="num_workers >= 1, or a transform that takes rng")
    dataset = dataset_of(kept_corpus(COUNTS), transform=with_global_draws, reseed=True)
    with refused:
        sl.ShardLoader(dataset, batch_size=2)
    with refused:
        next(iter(dataset))


def divided_by_zero(sample):
    return {"cls": sample["cls"] // 0}


def _draws(loaders):
    draws: dict[int, Any] = {}
    for loader in loaders:
        for batch in loader:
            draw = batch["draw"]
            draw = draw.tolist() if isinstance(draw, torch.Tensor) else draw
            for number, each in zip(batch["__index__"].tolist(), draw, strict=True):
                assert draws.setdefault(number, each) == each  # a pad is drawn as its sample
    return draws


def test_a_transform_that_returns_no_mapping_is_refused_with_the_key():
    with pytest.raises(sl.UsageError, match="this one returned a int") as raised:
        list(dataset_of(kept_corpus(COUNTS), transform=only_number, shuffle=False))
    (note,) = raised.value.__notes__
    assert note.startswith("in transform= of the sample with the key '000000' of ")


def test_what_a_transform_raises_comes_as_it_is_with_a_note_that_names_the_sample():
    with pytest.raises(ZeroDivisionError) as raised:
        list(dataset_of(kept_corpus(COUNTS), transform=divided_by_zero, shuffle=False))
    assert "the key '000000'" in raised.value.__notes__[0]


def test_a_builtin_may_be_a_transform():
    (sample, *_) = dataset_of(kept_corpus(COUNTS), transform=dict, shuffle=False)
    assert sample["cls"] == 0


def test_as_map_is_the_corpus_by_number():
    view = dataset_of(kept_corpus(COUNTS)).as_map()
    assert len(view) == NUM_SAMPLES
    assert [view[i]["__key__"] for i in range(NUM_SAMPLES)] == [f"{i:06d}" for i in range(9)]
    assert view[-1] == view[np.int64(8)]
    assert [sample["cls"] for sample in view] == list(range(9))


@pytest.mark.parametrize("index", [9, -10, 10**12, -(10**12)])
def test_as_map_raises_index_error_past_either_end(index):
    with pytest.raises(IndexError, match="has 9 samples"):
        dataset_of(kept_corpus(COUNTS)).as_map()[index]


@pytest.mark.parametrize("index", [slice(2), "a", 1.0, None])
def test_as_map_refuses_what_is_no_number(index):
    with pytest.raises(sl.UsageError, match="index must be an integer"):
        dataset_of(kept_corpus(COUNTS)).as_map()[index]


def test_as_map_pickles_before_and_after_reading():
    view = dataset_of(kept_corpus(COUNTS)).as_map()
    fresh = pickle.loads(pickle.dumps(view))
    assert view[4] == fresh[4]
    assert pickle.loads(pickle.dumps(view))[5] == fresh[5]


def test_as_map_serves_a_data_loader_with_a_sampler_of_its_own():
    view = dataset_of(kept_corpus(COUNTS), fields=("cls",)).as_map()
    loader = DataLoader(view, batch_size=3, shuffle=True, num_workers=2)
    assert sorted(int(each) for batch in loader for each in batch["cls"]) == list(range(9))


def test_an_empty_corpus_has_no_samples_and_an_empty_map():
    dataset = dataset_of(kept_corpus((0, 0)))
    assert dataset.num_samples == len(dataset.as_map()) == 0
    assert list(dataset) == []
    with pytest.raises(IndexError):
        dataset.as_map()[0]


def test_a_dataset_has_no_len():
    with pytest.raises(TypeError):
        len(dataset_of(kept_corpus(COUNTS)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**63}, "seed must be less than"),
        ({"seed": None}, "seed must be an integer"),
        ({"even": "padded"}, "even= is one of 'pad'"),
        ({"on_error": "warn"}, "on_error= is 'raise'"),
        ({"on_error": None}, "on_error= is 'raise'"),
        ({"topology": (0, 1)}, "topology= takes a Topology"),
        ({"grid": (1, 1, 1)}, "grid= takes a Grid"),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"meta": 3}, "meta= is one of"),
        ({"decode": "none"}, "decode"),
        ({"shuffle": 100}, "window"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_opened(options, words):
    with pytest.raises(sl.UsageError, match=words):
        sl.ShardDataset("/nowhere", **options)


@pytest.mark.parametrize("epoch", [-1, 0.5, None])
def test_set_epoch_refuses_what_is_no_epoch(epoch):
    with pytest.raises(sl.UsageError, match="set_epoch"):
        dataset_of(kept_corpus(COUNTS)).set_epoch(epoch)


def test_steps_per_epoch_goes_round_and_round():
    dataset = dataset_of(kept_corpus((3,)), steps_per_epoch=7)
    numbers = [sample["__index__"] for sample in dataset]
    dataset.set_epoch(1)
    numbers += [sample["__index__"] for sample in dataset]
    assert len(numbers) == 14
    for start in range(0, 12, 3):
        assert sorted(numbers[start : start + 3]) == [0, 1, 2]


def test_a_dataset_pickles_and_copies_at_every_moment_and_reads_the_same():
    dataset = dataset_of(kept_corpus(COUNTS), batch_size=2)
    fresh = pickle.loads(pickle.dumps(dataset))
    iterator = iter(dataset)
    first = content(next(iterator))
    state = dataset.state_dict()
    halfway = pickle.loads(pickle.dumps(dataset))
    assert halfway.state_dict()["taken"] == 0  # an iterator stays where it is
    assert [first, *contents(iterator)] == contents(fresh) == contents(halfway)
    dataset.load_state_dict(state)
    loaded = pickle.loads(pickle.dumps(dataset))
    copied = copy.deepcopy(dataset)
    rest = contents(dataset)
    assert contents(loaded) == contents(copied) == rest
    assert [first, *rest] == contents(fresh)


def test_a_pickle_holds_no_open_shard():
    dataset = dataset_of(kept_corpus(COUNTS))
    before = len(pickle.dumps(dataset.recipe))
    list(dataset)
    assert len(pickle.dumps(dataset.recipe)) == before
    assert pickle.loads(pickle.dumps(dataset))._reader is None


def test_names_of_the_loaders_own_in_a_foreign_shard_are_left_out(tmp_path):
    members = [("0.__key__", b"other"), ("0.__valid__", b"no"), ("0.txt", b"x")]
    (tmp_path / "a.tar").write_bytes(tar_bytes(members))
    (sample,) = dataset_of(tmp_path, meta="none")
    assert sample == {"__key__": "0", "txt": "x"}
