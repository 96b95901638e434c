"""The rules of "Checkpoints" in the design, one test each."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from itertools import islice

import numpy as np
import psutil
import pytest

import shardloader as sl
from tests.corpora import contents, each_once, kept_corpus, loader_of, loaders_of, valid_of

COUNTS = (5, 0, 4, 7)
STEPS = 6


def make(**options):
    return loader_of(kept_corpus(COUNTS), **{"batch_size": 3, **options})


def state_after(steps, **options):
    loader = make(**options)
    list(islice(loader, steps))
    return loader.state_dict()


def test_a_state_is_plain_json_with_the_same_keys_at_every_moment():
    loader = make(seed=np.int64(7), shuffle=sl.Shuffle(window=4))
    states = [loader.state_dict()]
    states += [loader.state_dict() for _ in loader]
    loader.load_state_dict(states[2])
    states.append(loader.state_dict())
    loader.set_epoch(5)
    states.append(loader.state_dict())
    assert {tuple(state) for state in states} == {tuple(states[0])}
    for state in states:
        assert json.loads(json.dumps(state)) == state
        assert len(json.dumps(state)) < 1024


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False},
        {"shuffle": sl.Shuffle(window=2**62 - 1)},
        {"seed": 2**63 - 1},
        {"grid": sl.Grid(ranks=2**20, workers=2**20, batch=2**20)},
        {"steps_per_epoch": 2**30},
        {"world_size": 2**20},
        {"num_workers": 3},
    ],
)
def test_a_state_is_smaller_than_a_kilobyte_in_every_configuration(options):
    loader = make(**options)
    assert len(pickle.dumps(loader.state_dict())) < 1024
    assert len(json.dumps(loader.state_dict())) < 512


def test_a_state_is_the_same_whatever_the_size_of_the_corpus_and_the_window():
    small = loader_of(kept_corpus((1,)), batch_size=1, shuffle=sl.Shuffle(window=10**9))
    big = loader_of(kept_corpus((40,) * 20), batch_size=1, shuffle=sl.Shuffle(window=10**9))
    assert len(json.dumps(small.state_dict())) == len(json.dumps(big.state_dict()))


def test_a_state_is_a_fresh_value():
    loader = make()
    state = loader.state_dict()
    kept = copy.deepcopy(state)
    state["grid"][0] = 99
    state["consumed"] = 5
    assert loader.state_dict() == kept
    next(iter(loader))
    assert kept["consumed"] == 0


def test_a_state_counts_what_was_received_not_what_workers_hold():
    loader = make(num_workers=2, prefetch_factor=4)
    iterator = iter(loader)
    assert loader.state_dict()["consumed"] == 0
    next(iterator)
    assert loader.state_dict()["consumed"] == 3


def test_a_state_starts_no_workers():
    before = psutil.Process().children()
    loader = make(num_workers=2)
    loader.state_dict()
    loader.load_state_dict(loader.state_dict())
    len(loader)
    iter(loader)
    assert psutil.Process().children() == before


def test_a_state_changes_nothing():
    taken, untaken = make(), make()
    with_states = []
    taken.state_dict()
    for batch in taken:
        taken.state_dict()
        with_states.append(batch)
    assert contents(with_states) == contents(untaken)


def test_every_rank_has_the_same_state_at_every_step():
    loaders = loaders_of(kept_corpus(COUNTS), 3, batch_size=2)
    for _ in zip(*loaders, strict=True):
        states = [loader.state_dict() for loader in loaders]
        assert states == states[:1] * 3


def test_the_state_of_the_last_step_starts_a_whole_next_epoch():
    state = state_after(STEPS)
    assert (state["epoch"], state["consumed"]) == (1, 0)
    loader = make()
    loader.load_state_dict(state)
    other = make()
    list(other)
    assert contents(loader) == contents(other)


def test_a_loaded_state_is_the_state():
    for steps in (0, 3, STEPS):
        state = state_after(steps)
        loader = make()
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert loader.state_dict() == state


def test_a_state_loads_into_the_loader_that_made_it():
    loader = make()
    states = [loader.state_dict()]
    arrived = []
    for batch in loader:
        arrived.append(batch)
        states.append(loader.state_dict())
    expected = contents(arrived)
    for step in (4, 0, 5, 2):
        loader.load_state_dict(states[step])
        assert contents(loader) == expected[step:]


DIFFERENT = {
    "seed": ({"seed": 1}, "the state has seed 0, this loader 1"),
    "window": ({"shuffle": sl.Shuffle(window=5)}, "window 10000, this loader 5"),
    "shuffle": ({"shuffle": False}, "window 10000, this loader None"),
    "steps_per_epoch": ({"steps_per_epoch": 3}, "steps_per_epoch None, this loader 3"),
}


@pytest.mark.parametrize(("options", "words"), DIFFERENT.values(), ids=list(DIFFERENT))
def test_a_state_of_another_order_is_refused_in_words(options, words):
    loader = make(**options)
    before = loader.state_dict()
    with pytest.raises(sl.CheckpointError, match=words) as caught:
        loader.load_state_dict(state_after(2))
    assert "to start afresh, don't load it" in str(caught.value)
    assert loader.state_dict() == before


def test_a_state_of_another_dataset_is_refused_in_words():
    other = loader_of(kept_corpus((5, 4, 7)), batch_size=3)
    with pytest.raises(sl.CheckpointError, match="differs in dataset: the state has dataset '"):
        other.load_state_dict(state_after(2))


BROKEN = {
    "a later version": ({"version": 2}, r"format version 1, and this one has version 2"),
    "no version": ({"version": None}, "names its format version"),
    "consumed too much": ({"consumed": 17}, "16 positions, and the state has consumed 17"),
    "consumed less than nothing": ({"consumed": -1}, "consumed must be at least 0"),
    "a grid of two": ({"grid": [1, 2]}, "three integers"),
    "a grid of nothing": ({"grid": [0, 1, 3]}, "ranks"),
    "an epoch in words": ({"epoch": "one"}, "epoch must be an integer"),
    "an unknown key": ({"workers": {}}, "workers"),
}


@pytest.mark.parametrize(("change", "words"), BROKEN.values(), ids=list(BROKEN))
def test_a_broken_state_is_refused_in_words_and_changes_nothing(change, words):
    loader = make()
    with pytest.raises(sl.CheckpointError, match=words):
        loader.load_state_dict({**state_after(2), **change})
    assert loader.state_dict() == make().state_dict()


@pytest.mark.parametrize("state", [{}, {"_snapshot": {}, "_steps_since_snapshot": 0}, [], None, 3])
def test_what_is_no_state_is_refused_in_words(state):
    with pytest.raises(sl.CheckpointError, match=r"state_dict\(\)"):
        make().load_state_dict(state)


def test_a_state_with_a_key_less_is_refused_by_the_keys_name():
    state = state_after(2)
    del state["window"]
    with pytest.raises(sl.CheckpointError, match=r"lacks \['window'\]"):
        make().load_state_dict(state)


def test_a_changed_global_batch_is_logged(caplog):
    loader = make(batch_size=2)
    with caplog.at_level(logging.WARNING):
        loader.load_state_dict(state_after(2))
    assert "global batch changes from 3 to 2 samples" in caplog.text


def test_the_same_global_batch_in_another_topology_is_not_worth_a_word(caplog):
    with caplog.at_level(logging.INFO):
        loader = make(batch_size=1, world_size=3)
        loader.load_state_dict(state_after(2))
    assert caplog.records == []


def test_the_grid_of_the_checkpoint_is_kept_through_epochs_while_the_global_batch_stays():
    loader = make(batch_size=1, world_size=3, num_workers=0)
    loader.load_state_dict(state_after(2, num_workers=2))
    for _ in range(2):
        assert loader.state_dict()["grid"] == [1, 2, 3]
        list(loader)
    assert loader.state_dict()["grid"] == [1, 2, 3]


def test_an_epoch_that_starts_with_another_global_batch_takes_the_present_topology_as_grid():
    loader = make(batch_size=2)
    loader.load_state_dict(state_after(2))
    assert loader.state_dict()["grid"] == [1, 1, 3]
    list(loader)
    assert loader.state_dict()["grid"] == [1, 1, 2]


def test_a_given_grid_outlives_every_topology():
    grid = sl.Grid(ranks=4, workers=2, batch=2)
    one, two = make(grid=grid, batch_size=8), make(grid=grid, batch_size=3, num_workers=0)
    whole = [valid_of(one), valid_of(one)]
    two.load_state_dict(one.state_dict() | {"epoch": 0})
    assert two.state_dict()["grid"] == [4, 2, 2]
    # step k holds other samples, since the global batch differs, but the order is one
    for order in whole:
        assert each_once(valid_of(two), len(order))


def test_a_given_grid_makes_the_order_of_another_topology(caplog):
    grid = sl.Grid(ranks=3, workers=1, batch=1)
    three = loaders_of(kept_corpus(COUNTS), 3, batch_size=1)
    one = make(grid=grid)
    for step, batch in enumerate(zip(*three, strict=True)):
        if step == 0:
            iterator = iter(one)
        expected = sorted(each["__index__"].item() for each in batch if each["__valid__"].all())
        whole = next(iterator)
        assert sorted(whole["__index__"][whole["__valid__"]].tolist()) == expected


def test_another_grid_than_the_states_is_said_to_wait_for_the_next_epoch(caplog):
    loader = make(grid=sl.Grid(ranks=2, workers=1, batch=1))
    with caplog.at_level(logging.INFO):
        loader.load_state_dict(state_after(2))
    assert "grid= holds from the next epoch on" in caplog.text
    list(loader)
    assert loader.state_dict()["grid"] == [2, 1, 1]


def test_an_endless_order_keeps_its_grid_and_does_not_promise_another(caplog):
    state = state_after(2, steps_per_epoch=4)
    loader = make(steps_per_epoch=4, grid=sl.Grid(ranks=2, workers=1, batch=1))
    with caplog.at_level(logging.INFO):
        loader.load_state_dict(state)
    assert "next epoch" not in caplog.text
    list(loader)
    assert loader.state_dict()["grid"] == [1, 1, 3]


def test_without_a_shuffle_the_order_is_the_datasets_own_in_any_topology():
    for world_size, batch_size in ((1, 3), (2, 2), (4, 1)):
        loaders = loaders_of(
            kept_corpus(COUNTS), world_size, batch_size=batch_size, shuffle=False, even="join"
        )
        given = sorted(
            (step, rank, batch["__index__"].tolist())
            for rank, loader in enumerate(loaders)
            for step, batch in enumerate(loader)
        )
        assert [number for *_, index in given for number in index] == list(range(16))


def test_resume_decodes_no_sample_that_is_not_delivered():
    calls = []

    def decode(data):
        calls.append(bytes(data))
        return str(data, "ascii")

    options = {"decode": {"txt": decode}, "fields": ("txt",), "shuffle": sl.Shuffle(window=6)}
    whole = make(**options, decode_threads=0)  # threads would go on decoding meanwhile
    iterator = iter(whole)
    list(islice(iterator, 4))
    state = whole.state_dict()
    calls.clear()
    loader = make(**options)
    loader.load_state_dict(state)
    delivered = [text for batch in loader for text in batch["txt"]]
    assert [call.decode() for call in calls] == delivered


def test_step_counts_from_the_epochs_start_also_after_a_resume():
    loader = loader_of(kept_corpus(COUNTS), batch_size=2)
    assert loader.step == 0
    for number, _ in enumerate(loader, start=1):
        assert loader.step == (number if number < len(loader) else 0)
        if number == 3:
            state = loader.state_dict()
    resumed = loader_of(kept_corpus(COUNTS), batch_size=4)
    resumed.load_state_dict(state)
    assert (resumed.step, resumed.steps_left) == (1, -(-(sum(COUNTS) - 6) // 4))
