"""Shards are appended while a run is in mid-epoch: it ends the epoch on what it began with."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

import shardloader as sl
from shardloader.loader import progress
from shardloader.order import agreement
from tests.corpora import each_once

BEFORE, AFTER = 40, 65
_OF_DATASET = ("steps_per_epoch", "on_error", "even")


def write(folder, start, stop, *, append=False):
    with sl.ShardWriter(folder, max_samples=10, append=append) as writer:
        for number in range(start, stop):
            writer.write({"__key__": f"{number:04d}", "cls": number})


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    write(folder, 0, BEFORE)
    return folder


def loader_of(corpus, *, rank=0, world_size=1, num_workers=0, on_change="next-epoch", **options):
    dataset = sl.ShardDataset(
        corpus,
        shuffle=sl.Shuffle(window=7),
        on_change=on_change,
        topology=sl.Topology(rank=rank, world_size=world_size),
        **{name: options.pop(name) for name in _OF_DATASET if name in options},
    )
    loader: Any = sl.ShardLoader(dataset, batch_size=3, num_workers=num_workers, **options)
    return loader


def valid_of(batches):
    """The numbers of the valid samples, each of which is its own class."""
    valid = []
    for batch in batches:
        assert batch["cls"].tolist() == batch["__index__"].tolist()
        valid += batch["__index__"][batch["__valid__"]].tolist()
    return valid


def numbers(batches):
    return [batch["cls"].tolist() for batch in batches]


def interrupted(corpus, steps=4):
    """A state in mid-epoch, and what the rest of the epoch would have been."""
    loader = loader_of(corpus)
    iterator = iter(loader)
    first = list(islice(iterator, steps))
    state = loader.state_dict()
    return first, state, numbers(iterator)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_epoch_goes_on_with_what_it_began_with_and_the_next_has_all(corpus, num_workers):
    _, state, rest = interrupted(corpus)
    write(corpus, BEFORE, AFTER, append=True)
    loader = loader_of(corpus, num_workers=num_workers, persistent_workers=num_workers > 0)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert len(loader) == -(-BEFORE // 3)
    assert numbers(loader) == rest
    started = loader.state_dict()
    assert (started["epoch"], started["consumed"]) == (1, 0)
    assert started["dataset"] != state["dataset"]
    assert len(loader) == -(-AFTER // 3)
    assert each_once(valid_of(loader), AFTER)
    assert each_once(valid_of(loader), AFTER)


def test_a_state_taken_in_the_rest_of_the_epoch_is_still_of_what_it_began_with(corpus):
    _, state, rest = interrupted(corpus)
    write(corpus, BEFORE, AFTER, append=True)
    loader = loader_of(corpus)
    loader.load_state_dict(state)
    iterator = iter(loader)
    assert numbers(islice(iterator, 2)) == rest[:2]
    again = loader.state_dict()
    assert again["dataset"] == state["dataset"]
    write(corpus, AFTER, AFTER + 9, append=True)
    loader = loader_of(corpus)
    loader.load_state_dict(again)
    assert numbers(loader) == rest[2:]
    assert each_once(valid_of(loader), AFTER + 9)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_of_another_number_end_the_epoch_together(corpus, world_size):
    first, state, _ = interrupted(corpus)
    write(corpus, BEFORE, AFTER, append=True)
    loaders = [loader_of(corpus, rank=rank, world_size=world_size) for rank in range(world_size)]
    for loader in loaders:
        loader.load_state_dict(state)
    rest = [index for loader in loaders for index in valid_of(loader)]
    assert each_once([*valid_of(first), *rest], BEFORE)
    assert each_once([index for loader in loaders for index in valid_of(loader)], AFTER)


def test_a_state_of_an_epochs_beginning_takes_all_at_once(corpus):
    loader = loader_of(corpus)
    list(loader)
    state = loader.state_dict()
    write(corpus, BEFORE, AFTER, append=True)
    loader = loader_of(corpus)
    loader.load_state_dict(state)
    assert loader.state_dict()["epoch"] == 1
    assert each_once(valid_of(loader), AFTER)


@pytest.mark.parametrize("start_over", ["break", "set_epoch"])
def test_an_epoch_that_is_started_over_has_all_that_is_there(corpus, start_over):
    _, state, rest = interrupted(corpus)
    write(corpus, BEFORE, AFTER, append=True)
    loader = loader_of(corpus)
    loader.load_state_dict(state)
    if start_over == "break":
        assert numbers(islice(iter(loader), 1)) == rest[:1]
    else:
        loader.set_epoch(7)
        loader.set_epoch(0)
        assert loader.state_dict()["dataset"] != state["dataset"]
    assert len(batches := list(loader)) == -(-AFTER // 3)
    assert each_once(valid_of(batches), AFTER)


def test_a_node_that_does_not_see_the_new_shards_yet_is_told_of_before_a_batch(corpus, monkeypatch):
    _, state, _ = interrupted(corpus)
    stands: list[Any] = [None, None]

    def meet(topology, stand, verdict, **options):
        stands[topology.rank] = stand

    monkeypatch.setattr(progress, "can_meet", lambda topology: True)
    monkeypatch.setattr(progress, "meet", meet)
    late = loader_of(corpus, rank=1, world_size=2)
    len(late)  # opened before
    write(corpus, BEFORE, AFTER, append=True)
    for loader in (late, loader_of(corpus, rank=0, world_size=2)):
        loader.load_state_dict(state)
        next(iter(loader))
    told = agreement.verdict(stands)
    assert told is not None
    assert "differ in next_dataset" in told
    assert "were shards appended" in told


def test_without_being_asked_for_a_state_of_before_is_refused_with_the_way_out(corpus):
    _, state, _ = interrupted(corpus)
    write(corpus, BEFORE, AFTER, append=True)
    with pytest.raises(sl.CheckpointError, match="give ShardDataset on_change='next-epoch'"):
        loader_of(corpus, on_change="raise").load_state_dict(state)


def test_a_dataset_that_was_never_this_one_is_refused(corpus, tmp_path):
    write(tmp_path / "other", 0, 50)
    _, state, _ = interrupted(tmp_path / "other")
    with pytest.raises(sl.CheckpointError, match="it differs in dataset"):
        loader_of(corpus).load_state_dict(state)


def test_a_list_of_shards_has_no_earlier_manifest(corpus):
    _, state, _ = interrupted(sorted(corpus.glob("*.tar")))
    write(corpus, BEFORE, AFTER, append=True)
    with pytest.raises(sl.CheckpointError, match="it differs in dataset"):
        loader_of(sorted(corpus.glob("*.tar"))).load_state_dict(state)


def test_a_kept_manifest_that_was_changed_is_refused(corpus):
    _, state, _ = interrupted(corpus)
    write(corpus, BEFORE, AFTER, append=True)
    kept = corpus / f"manifest-{state['dataset']}.json"
    kept.write_bytes((corpus / "manifest.json").read_bytes())
    with pytest.raises(sl.ManifestError, match="named by its digest"):
        loader_of(corpus).load_state_dict(state)


def test_shards_that_the_epoch_began_with_and_are_gone_are_missed_at_once(corpus):
    _, state, _ = interrupted(corpus)
    write(corpus, BEFORE, AFTER, append=True)
    loader = loader_of(corpus)
    len(loader)  # opened while all was there
    sorted(corpus.glob("*.tar"))[1].unlink()
    with pytest.raises(sl.ManifestError, match="can't be found"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"on_change": "now"}, "on_change= is"), ({"steps_per_epoch": 5}, "an endless order")],
)
def test_what_makes_no_sense_is_refused(corpus, options, says):
    with pytest.raises(sl.UsageError, match=says):
        loader_of(corpus, **options)
