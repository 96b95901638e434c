from __future__ import annotations

import pytest

from shardloader.errors import UsageError
from shardloader.order.position import Position

LENGTH = 100
LOADED = Position().load(epoch=5, consumed=40)
FINISHED = Position().load(epoch=5, consumed=0)  # saved after the last batch of epoch 4
RUNNING = Position(epoch=5).receive(40, is_last=False)


def test_training_starts_at_the_beginning_of_epoch_0():
    assert (Position().epoch, Position().consumed) == (0, 0)
    assert Position().begin(length=LENGTH) == (Position(), None)


def test_a_loaded_position_is_where_the_next_iterator_begins():
    position, note = LOADED.begin(length=LENGTH)
    assert (position.epoch, position.consumed, note) == (5, 40, None)


def test_batches_move_the_position_and_the_last_one_ends_the_epoch():
    position = LOADED.receive(60, is_last=False)
    assert (position.epoch, position.consumed) == (5, 60)
    assert position.running
    assert not position.loaded
    assert position.receive(100, is_last=True) == Position(epoch=6)


def test_an_epoch_broken_off_starts_again_from_its_beginning_and_says_so_once():
    position, note = RUNNING.begin(length=LENGTH)
    assert position == Position(epoch=5)
    assert note is not None
    assert "epoch 5 was broken off with 60 samples unread and starts again from its begin" in note
    assert position.begin(length=LENGTH) == (position, None)


@pytest.mark.parametrize("position", [LOADED, Position(epoch=5)])
def test_set_epoch_with_the_epoch_at_hand_keeps_the_position(position):
    assert position.set_epoch(5, length=LENGTH) == (position, None)


def test_set_epoch_with_the_epoch_that_the_state_had_finished_gives_an_empty_pass():
    position, note = FINISHED.set_epoch(4, length=LENGTH)
    assert position.empty
    assert note is not None
    assert "had finished epoch 4: its pass is empty, and epoch 5 comes next" in note
    after, note = position.begin(length=LENGTH)
    assert (after.epoch, after.consumed, after.empty, note) == (5, 0, False, None)
    # The usual loop calls set_epoch(5) next, and epoch 5 is whole.
    assert not position.set_epoch(5, length=LENGTH)[0].empty


@pytest.mark.parametrize("epoch", [0, 3, 6])
def test_set_epoch_with_any_other_starts_that_epoch_from_its_beginning(epoch):
    position, note = FINISHED.set_epoch(epoch, length=LENGTH)
    assert position == Position(epoch=epoch)
    assert note is not None
    assert f"set_epoch({epoch}) leaves the loaded state" in note
    assert "beginning of epoch 5: no sample" in note
    assert Position(epoch=5).set_epoch(epoch, length=LENGTH) == (Position(epoch=epoch), None)
    position, note = LOADED.set_epoch(epoch, length=LENGTH)
    assert position == Position(epoch=epoch)
    assert note is not None
    assert f"set_epoch({epoch}) drops the position 40 of epoch 5, with 60 samples unread" in note


def test_only_a_loaded_state_has_finished_an_epoch():
    assert Position(epoch=5).set_epoch(4, length=LENGTH) == (Position(epoch=4), None)
    assert LOADED.set_epoch(4, length=LENGTH)[0] == Position(epoch=4)


def test_while_an_iterator_runs_set_epoch_applies_at_the_next_one():
    position, note = RUNNING.set_epoch(9, length=LENGTH)
    assert (position.epoch, position.consumed, note) == (5, 40, None)
    assert position.receive(100, is_last=True) == Position(epoch=9)
    left, note = position.begin(length=LENGTH)
    assert left == Position(epoch=9)
    assert note is not None
    assert "epoch 5 was broken off with 60 samples unread and was left" in note


@pytest.mark.parametrize("epoch", [-1, True, 1.0, None, 2**62])
def test_an_epoch_that_is_no_count_is_refused(epoch):
    with pytest.raises(UsageError, match=r"^set_epoch\(epoch\) must be "):
        Position().set_epoch(epoch, length=LENGTH)


def test_skipping_moves_on_without_reading():
    assert LOADED.skip(60, is_last=False) == Position(epoch=5, consumed=60)
    assert LOADED.skip(100, is_last=True) == Position(epoch=6)


def test_skipping_obeys_the_epoch_that_was_asked_for():
    pending, _ = RUNNING.set_epoch(9, length=LENGTH)
    assert pending.skip(60, is_last=False) == Position(epoch=9)
    same, _ = RUNNING.set_epoch(5, length=LENGTH)
    assert same.skip(60, is_last=False) == Position(epoch=5, consumed=60)
