"""Steps in groups: what a group holds, when it is complete, and one global batch on any ranks."""

from __future__ import annotations

import json
import logging
from itertools import islice

import pytest

import shardloader as sl
from tests.corpora import contents, each_once, kept_corpus, loader_of, loaders_of, valid_of

COUNTS = (9, 0, 7, 7)  # 23 samples


def groups_of(loaders):
    """Of each optimiser step of what is left of an epoch, the valid samples of all ranks."""
    found, current = [], []
    for batches in zip(*loaders, strict=True):
        current += valid_of(batches)
        complete = {loader.step % loader.accumulate == 0 for loader in loaders}
        assert len(complete) == 1
        if complete == {True}:
            found.append(current)
            current = []
    assert current == []
    return found


@pytest.mark.parametrize("even", ["pad", "drop"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("skipped", [0, 1, 4])
def test_each_batch_tells_the_valid_samples_of_its_group(even, num_workers, skipped):
    loaders = loaders_of(
        kept_corpus(COUNTS), 2, batch_size=2, accumulate=3, even=even, num_workers=num_workers
    )
    for loader in loaders:
        loader.skip(skipped)
    told, held, group = [], [], 0
    for batches in zip(*loaders, strict=True):
        told.append({batch["__group_valid__"] for batch in batches})
        group += sum(int(batch["__valid__"].sum()) for batch in batches)
        held.append(0)
        if loaders[0].step % 3 == 0:
            held = [each or group for each in held]
            group = 0
    assert told == [{each} for each in held]


def test_a_group_of_one_step_tells_itself_and_without_groups_there_is_no_entry():
    (batch, *_) = loader_of(kept_corpus(COUNTS), batch_size=4, accumulate=1)
    assert batch["__group_valid__"] == batch["__global_valid__"] == 4
    (batch, *_) = loader_of(kept_corpus(COUNTS), batch_size=4)
    assert "__group_valid__" not in batch
    (batch, *_) = loader_of(kept_corpus(COUNTS), batch_size=4, accumulate=2, meta="none")
    assert set(batch) == {"txt", "cls"}


def test_loss_scale_weighs_by_the_group():
    (batch, *_) = loader_of(kept_corpus(COUNTS), batch_size=4, accumulate=3, world_size=1)
    assert sl.loss_scale(batch) == 1 / 12


@pytest.mark.parametrize("even", ["pad", "drop"])
def test_an_optimiser_step_has_the_same_samples_on_any_ranks_in_every_epoch(even):
    def epochs(world_size, batch_size):
        loaders = loaders_of(
            kept_corpus((40, 41)),
            world_size,
            global_batch=12,
            batch_size=batch_size,
            even=even,
            grid=sl.Grid(ranks=2, workers=1, batch=6),
        )
        return [[sorted(group) for group in groups_of(loaders)] for _ in range(2)]

    reference = epochs(2, 6)
    assert [len(epoch) for epoch in reference] == [7 if even == "pad" else 6] * 2
    for world_size, batch_size in ((1, 12), (1, 1), (3, 4), (4, 2), (12, 1)):
        others = epochs(world_size, batch_size)
        # In smaller steps the last, short group has more before "drop" leaves out the rest.
        whole = None if even == "pad" else 6
        assert [epoch[:whole] for epoch in others] == reference


def test_a_run_that_goes_on_elsewhere_keeps_its_optimiser_steps_over_the_next_epochs():
    def loaders(world_size, batch_size, state=None):
        made = loaders_of(kept_corpus((30, 20)), world_size, global_batch=8, batch_size=batch_size)
        for loader in made if state else []:
            loader.load_state_dict(json.loads(json.dumps(state)))
        return made

    undisturbed = loaders(2, 4)
    whole = [[sorted(group) for group in groups_of(undisturbed)] for _ in range(3)]
    first = loaders(2, 4)
    done = groups_of(first)
    second = loaders(1, 3, first[0].state_dict())
    assert (second[0].batch_size, second[0].accumulate) == (2, 4)
    done += groups_of(second)
    third = loaders(4, 4, second[0].state_dict())
    done += groups_of(third)
    assert [sorted(group) for group in done] == [group for epoch in whole for group in epoch]


def test_a_position_in_mid_group_goes_on_with_the_rest_of_the_group():
    loader = loader_of(kept_corpus((12,)), batch_size=2, accumulate=3)
    before = contents(islice(loader, 2))
    resumed = loader_of(kept_corpus((12,)), batch_size=2, accumulate=3)
    resumed.load_state_dict(loader.state_dict())
    told = [(batch["__group_valid__"], resumed.step % 3 == 0) for batch in resumed]
    assert told == [(2, True), (6, False), (6, False), (6, True)]
    assert len(before) == 2


def test_what_holds_is_told_once_the_topology_is_known():
    loader = loader_of(kept_corpus(COUNTS), world_size=3, rank=1, global_batch=24, batch_size=5)
    assert (loader.batch_size, loader.accumulate, loader.global_batch) == (4, 2, 24)
    assert len(loader) == len(list(loader)) == 2
    plain = loader_of(kept_corpus(COUNTS), world_size=3, batch_size=5)
    assert (plain.batch_size, plain.accumulate, plain.global_batch) == (5, 1, 15)


def test_a_global_batch_that_the_ranks_cannot_share_is_refused_when_they_are_known():
    loader = loader_of(kept_corpus(COUNTS), world_size=3, global_batch=16)
    for use in (len, iter_and_next, lambda loader: loader.state_dict()):
        with pytest.raises(sl.UsageError, match="16 samples are no multiple of 3 ranks: take 15"):
            use(loader)


def iter_and_next(loader):
    return next(iter(loader))


@pytest.mark.parametrize("options", [{"batch_size": 2, "accumulate": 2}, {"global_batch": 4}])
def test_join_is_refused_with_groups_of_several_steps(options):
    loader = loader_of(kept_corpus(COUNTS), even="join", **{"batch_size": 2, **options})
    with pytest.raises(sl.UsageError, match=r'its share of the group .* use even="pad" or'):
        next(iter(loader))
    alone = loader_of(kept_corpus(COUNTS), even="join", batch_size=4, accumulate=1)
    assert each_once(valid_of(alone), 23)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"batch_size": 4}, {"batch_size": 4, "accumulate": 2}, "from 4 to 8 samples"),
        ({"global_batch": 8, "batch_size": 4}, {"batch_size": 4}, "from 8 to 4 samples"),
        ({"global_batch": 8, "batch_size": 4}, {"batch_size": 8}, None),
        ({"global_batch": 8, "batch_size": 4}, {"batch_size": 2, "accumulate": 4}, None),
    ],
)
def test_a_change_of_the_global_batch_is_logged_with_old_and_new(caplog, before, after, told):
    loader = loader_of(kept_corpus((64,)), **before)
    loader.skip(2)
    other = loader_of(kept_corpus((64,)), **after)
    with caplog.at_level(logging.WARNING, "shardloader"):
        other.load_state_dict(loader.state_dict())
    assert [told in record.getMessage() for record in caplog.records] == ([True] if told else [])


def test_a_second_change_in_one_epoch_is_logged_against_the_first(caplog):
    """Not against the grid, which keeps what the epoch began with."""
    first = loader_of(kept_corpus((64,)), batch_size=4)
    first.skip(2)
    second = loader_of(kept_corpus((64,)), batch_size=8)
    second.load_state_dict(first.state_dict())
    second.skip(1)
    third = loader_of(kept_corpus((64,)), batch_size=4)
    caplog.clear()
    third.load_state_dict(second.state_dict())
    assert "from 8 to 4 samples" in caplog.text


def test_a_batch_of_a_group_alone_is_refused_where_the_group_is_to_be_counted():
    loader = loader_of(kept_corpus((10,)), batch_size=2, accumulate=2)
    batches = list(loader)
    with pytest.raises(sl.UsageError, match=r"a whole group of steps, 4 by the plan, .* hold 2:"):
        sl.loss_scale(batches[0], sync=True)
    assert sl.loss_scale(batches[:2], sync=True) == 1 / 4
    assert sl.loss_scale(batches[4], sync=True) == 1 / 2  # a group of one step


@pytest.mark.parametrize(("skipped", "is_told"), [(2, False), (3, True)])
def test_a_state_taken_within_an_optimiser_step_is_told(caplog, skipped, is_told):
    options = {"batch_size": 2, "accumulate": 2}
    loader = loader_of(kept_corpus((64,)), **options)
    loader.skip(skipped)
    resumed = loader_of(kept_corpus((64,)), **options)
    resumed.load_state_dict(loader.state_dict())
    assert ("within an optimiser step, 2 of its 4 samples consumed" in caplog.text) == is_told
