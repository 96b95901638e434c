from __future__ import annotations

import json
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from shardloader.errors import CheckpointError
from shardloader.order.checkpoint import KEYS, MAY_LACK, Checkpoint, starting_grid
from shardloader.order.epoch import Order
from shardloader.order.grid import Grid

GRID = Grid(ranks=2, workers=3, batch=4)


def a_checkpoint(**changed: Any) -> Checkpoint:
    values: dict[str, Any] = {
        "dataset": "xxh3:cafe",
        "seed": 7,
        "epoch": 2,
        "consumed": 48,
        "grid": GRID,
        "window": 100,
        "steps_per_epoch": None,
        "global_batch": 8,
    }
    return Checkpoint(**{**values, **changed})


def a_state(**changed: Any) -> dict[str, Any]:
    return {**a_checkpoint().to_state(), **changed}


def test_a_state_is_plain_json_with_the_same_keys_at_every_moment():
    for checkpoint in (a_checkpoint(), a_checkpoint(consumed=0, window=None, steps_per_epoch=9)):
        state = checkpoint.to_state()
        assert tuple(state) == KEYS
        assert json.loads(json.dumps(state)) == state
    assert a_checkpoint().to_state() == {
        "version": 1,
        "dataset": "xxh3:cafe",
        "seed": 7,
        "epoch": 2,
        "consumed": 48,
        "grid": [2, 3, 4],
        "window": 100,
        "steps_per_epoch": None,
        "global_batch": 8,
    }


def test_a_state_of_a_huge_run_has_some_300_bytes():
    state = a_checkpoint(
        dataset="xxh3-128:" + "f" * 32,
        seed=2**63 - 1,
        epoch=2**62 - 1,
        consumed=2**63 - 1,
        grid=Grid(ranks=2**20, workers=2**10, batch=2**20),
        window=2**40,
        steps_per_epoch=2**39,
    ).to_state()
    assert len(json.dumps(state)) < 300


def test_every_call_returns_fresh_values():
    checkpoint = a_checkpoint()
    state = checkpoint.to_state()
    state["grid"][0] = 99
    state["epoch"] = 99
    assert checkpoint.to_state() == a_checkpoint().to_state()


@pytest.mark.parametrize("make", [dict, OrderedDict, MappingProxyType])
def test_a_state_comes_back_from_any_mapping(make):
    assert Checkpoint.from_state(make(a_state())) == a_checkpoint()


def test_numpys_integers_are_taken_and_written_as_pythons():
    given = {
        name: np.int64(value)
        for name, value in a_state().items()
        if isinstance(value, int) and name != "version"
    }
    checkpoint = Checkpoint.from_state(a_state(**given, grid=tuple(np.arange(2, 5))))
    assert checkpoint == a_checkpoint()
    assert json.dumps(checkpoint.to_state()) == json.dumps(a_state())


@pytest.mark.parametrize("state", [None, [], "state", 3, [("version", 1)]])
def test_what_is_no_mapping_is_refused_by_its_type(state):
    with pytest.raises(CheckpointError, match=f"and this is a {type(state).__name__}"):
        Checkpoint.from_state(state)


@pytest.mark.parametrize("key", [key for key in KEYS if key not in {"version", *MAY_LACK}])
def test_a_state_that_lacks_a_key_is_refused_by_the_key(key):
    state = a_state()
    del state[key]
    with pytest.raises(CheckpointError, match=rf"lacks \['{key}'\] and has none besides"):
        Checkpoint.from_state(state)


def test_a_state_of_before_states_told_the_global_batch_loads_without_it():
    state = a_state()
    del state["global_batch"]
    assert Checkpoint.from_state(state) == a_checkpoint(global_batch=None)


def test_a_state_with_other_keys_besides_is_refused_by_those():
    with pytest.raises(CheckpointError, match=r"lacks none and has \['3', 'rank'\] besides: load"):
        Checkpoint.from_state(a_state(rank=0) | {3: 4})


@pytest.mark.parametrize("state", [{}, {"_snapshot": {}, "_steps_since": 3}, {"version": None}])
def test_a_state_of_something_else_is_told_by_its_keys(state):
    with pytest.raises(CheckpointError, match="names its format version, and this one") as refused:
        Checkpoint.from_state(state)
    assert str(sorted(state)) in str(refused.value)


@pytest.mark.parametrize("version", [0, 2, "1", True, [1]])
def test_another_format_version_is_refused_with_both(version):
    with pytest.raises(CheckpointError, match="format version 1, and this one has version") as no:
        Checkpoint.from_state(a_state(version=version))
    assert repr(version) in str(no.value)


@pytest.mark.parametrize("name", ["seed", "epoch", "consumed", "window", "steps_per_epoch"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "3", [1], 2**63])
def test_values_that_no_state_has_are_refused_by_name(name, value):
    with pytest.raises(CheckpointError, match=rf"not a state of a loader: {name} must be "):
        Checkpoint.from_state(a_state(**{name: value}))


@pytest.mark.parametrize("name", ["seed", "epoch", "consumed"])
def test_numbers_that_must_be_there_are_not_none(name):
    with pytest.raises(CheckpointError, match=rf"{name} must be an integer, and is None"):
        Checkpoint.from_state(a_state(**{name: None}))


@pytest.mark.parametrize("name", ["window", "steps_per_epoch"])
def test_a_window_or_an_epoch_of_nothing_is_refused(name):
    with pytest.raises(CheckpointError, match=rf"{name} must be at least 1, and is 0"):
        Checkpoint.from_state(a_state(**{name: 0}))


@pytest.mark.parametrize("grid", [None, [], [1, 2], [0, 1, 1], [1.0, 1, 1], "1,1,1", [True, 1, 1]])
def test_a_grid_that_is_none_is_refused(grid):
    with pytest.raises(CheckpointError, match=r"not a state of a loader: .*[gG]rid"):
        Checkpoint.from_state(a_state(grid=grid))


@pytest.mark.parametrize("dataset", [None, 3, b"cafe"])
def test_a_datasets_digest_is_text(dataset):
    with pytest.raises(CheckpointError, match=r"a state's dataset is a digest, and was "):
        Checkpoint.from_state(a_state(dataset=dataset))


@pytest.mark.parametrize(
    ("name", "other", "argument"),
    [
        ("dataset", "xxh3:beef", "dataset"),
        ("seed", 8, "seed"),
        ("window", 101, "shuffle"),
        ("window", None, "shuffle"),
        ("steps_per_epoch", 9, "steps_per_epoch"),
    ],
)
def test_a_state_of_another_order_is_refused_with_both_values_and_the_ways_out(
    name, other, argument
):
    state, loader = a_checkpoint(), a_checkpoint(**{name: other})
    with pytest.raises(CheckpointError) as refused:
        state.check_matches(loader)
    message = str(refused.value)
    assert f"it differs in {argument}: " in message
    assert f"the state has {name} {getattr(state, name)!r}, this loader {other!r}" in message
    assert "To go on, " in message
    assert message.endswith("to start afresh, don't load it")


def test_position_and_grid_may_differ_between_a_state_and_its_loader():
    other = a_checkpoint(epoch=0, consumed=0, grid=Grid(ranks=1, workers=1, batch=1))
    a_checkpoint().check_matches(other)


@pytest.mark.parametrize("steps_per_epoch", [None, 10])
def test_no_more_is_consumed_than_an_epoch_holds(steps_per_epoch):
    order = Order(
        counts=np.array([50, 30]), seed=7, window=100, grid=GRID, steps_per_epoch=steps_per_epoch
    )
    assert order.epoch_length == 80
    a_checkpoint(consumed=80).check_fits(order)
    with pytest.raises(CheckpointError, match=r"has 80 positions, and the state has consumed 81"):
        a_checkpoint(consumed=81).check_fits(order)


def test_another_position_of_the_same_order():
    moved = a_checkpoint().at(epoch=3, consumed=0)
    assert moved == a_checkpoint(epoch=3, consumed=0)
    with pytest.raises(CheckpointError, match="consumed must be at least 0"):
        a_checkpoint().at(epoch=3, consumed=-1)


SAME_BATCH = Grid(ranks=4, workers=1, batch=2)
OTHER_BATCH = Grid(ranks=3, workers=1, batch=2)
GIVEN = Grid(ranks=7, workers=7, batch=7)


@pytest.mark.parametrize("given", [None, GIVEN])
@pytest.mark.parametrize("present", [GRID, SAME_BATCH, OTHER_BATCH])
def test_the_grid_stays_in_mid_epoch_and_for_ever_with_steps_per_epoch(present, given):
    rest: dict[str, Any] = {"given": given}
    assert starting_grid(GRID, present, consumed=1, steps_per_epoch=None, **rest) == GRID
    assert starting_grid(GRID, present, consumed=0, steps_per_epoch=5, **rest) == GRID


def test_an_epoch_that_starts_with_the_same_global_batch_keeps_its_grid():
    grid = starting_grid(GRID, SAME_BATCH, given=None, consumed=0, steps_per_epoch=None)
    assert grid == GRID


def test_an_epoch_that_starts_with_another_global_batch_takes_the_present_topology():
    grid = starting_grid(GRID, OTHER_BATCH, given=None, consumed=0, steps_per_epoch=None)
    assert grid == OTHER_BATCH


@pytest.mark.parametrize(("global_batch", "kept"), [(8, True), (24, True), (12, False), (4, False)])
def test_where_steps_are_grouped_a_grid_stays_whose_steps_make_whole_groups(global_batch, kept):
    for present in (SAME_BATCH, OTHER_BATCH):
        grid = starting_grid(
            GRID,
            present,
            given=None,
            consumed=0,
            steps_per_epoch=None,
            global_batch=global_batch,
        )
        assert grid == (GRID if kept else present)


@pytest.mark.parametrize("present", [SAME_BATCH, OTHER_BATCH])
def test_a_grid_that_was_given_holds_at_the_start_of_every_epoch(present):
    grid = starting_grid(GRID, present, given=GIVEN, consumed=0, steps_per_epoch=None)
    assert grid == GIVEN


@pytest.mark.parametrize(
    "version", [True, 1.0, "1", np.array([1, 1]), [1], 2**20000, None, 2], ids=list("abcdefgh")
)
def test_only_the_number_one_is_the_version_of_these_states(version):
    state = a_state() | {"version": version}
    with pytest.raises(CheckpointError, match="version"):
        Checkpoint.from_state(state)
