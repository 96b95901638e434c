"""The rules of "Epochs" in the design, one test each."""

from __future__ import annotations

import logging
from itertools import islice

import pytest

import shardloader as sl
from shardloader.loader import progress
from tests.corpora import content, contents, each_once, kept_corpus, loader_of, valid_of

COUNTS = (5, 0, 4, 7)
NUM_SAMPLES = sum(COUNTS)
STEPS = 6  # of 3 samples, the last with one


@pytest.fixture
def make():
    def make_loader(**options):
        return loader_of(kept_corpus(COUNTS), **{"batch_size": 3, **options})

    return make_loader


@pytest.fixture
def epochs(make):
    """The first three epochs, as one loader gives them."""
    loader = make()
    return [contents(loader) for _ in range(3)]


def messages(caplog, level=logging.WARNING):
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


def test_iterating_again_gives_another_epoch(make, epochs):
    loader = make()
    assert loader.epoch == 0
    first, second = valid_of(loader), valid_of(loader)
    assert loader.epoch == 2
    assert first != second
    assert each_once(first, NUM_SAMPLES)
    assert each_once(second, NUM_SAMPLES)


def test_the_epoch_advances_with_its_last_batch_before_any_stop_iteration(make):
    loader = make()
    iterator = iter(loader)
    for _ in range(STEPS - 1):
        next(iterator)
        assert loader.epoch == 0
    next(iterator)
    assert loader.epoch == 1


def test_zip_and_islice_never_see_the_end_and_the_epoch_advances_all_the_same(make, epochs):
    loader = make()
    by_zip = [content(batch) for _, batch in zip(range(STEPS), loader, strict=False)]
    by_islice = contents(islice(loader, STEPS))
    assert [by_zip, by_islice] == epochs[:2]
    assert contents(loader) == epochs[2]


def test_an_iterator_at_its_end_stays_there(make):
    loader = make()
    iterator = iter(loader)
    list(iterator)
    for _ in range(3):
        assert next(iterator, None) is None
    assert loader.epoch == 1


def test_a_broken_off_epoch_starts_again_from_its_beginning_and_says_so_once(make, epochs, caplog):
    loader = make()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert contents(islice(loader, 2)) == epochs[0][:2]
        assert contents(loader) == epochs[0]
    (message,) = messages(caplog)
    assert f"broken off with {NUM_SAMPLES - 6} samples unread" in message
    assert "load the state" in message
    assert contents(loader) == epochs[1]


def test_loading_the_state_after_a_break_goes_on(make, epochs, caplog):
    loader = make()
    with caplog.at_level(logging.WARNING):
        list(islice(loader, 2))
        loader.load_state_dict(loader.state_dict())
        assert contents(loader) == epochs[0][2:]
    assert messages(caplog) == []


def test_an_iterator_that_has_given_nothing_follows_load_state_dict(make, epochs):
    other = make()
    list(islice(other, 4))
    loader = make()
    iterator = iter(loader)
    loader.load_state_dict(other.state_dict())
    assert contents(iterator) == epochs[0][4:]


def test_an_iterator_that_has_given_nothing_follows_set_epoch(make, epochs):
    loader = make()
    iterator = iter(loader)
    loader.set_epoch(2)
    assert contents(iterator) == epochs[2]
    assert loader.epoch == 3


def test_an_iterator_that_gave_batches_before_a_load_refuses_to_go_on(make, epochs):
    loader = make()
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    next(iterator)
    loader.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(sl.StaleIteratorError, match=r"iter\(loader\)"):
            next(iterator)
    assert contents(loader) == epochs[0][1:]


def test_an_iterator_overtaken_by_a_later_one_refuses_to_go_on(make, epochs):
    loader = make()
    old = iter(loader)
    next(old)
    new = iter(loader)
    assert content(next(old)) == epochs[0][1]  # the new one has not begun
    next(new)
    with pytest.raises(sl.StaleIteratorError, match="given 2 batches"):
        next(old)
    assert contents(new) == epochs[0][1:]


def test_set_epoch_with_the_present_epoch_keeps_the_loaded_position(make, epochs, caplog):
    state = _state_after(make, 4)
    loader = make()
    loader.load_state_dict(state)
    with caplog.at_level(logging.INFO):
        loader.set_epoch(0)
    assert caplog.records == []
    assert contents(loader) == epochs[0][4:]


def test_set_epoch_with_the_epoch_just_finished_gives_an_empty_pass_and_logs_it(
    make, epochs, caplog
):
    state = _state_after(make, STEPS)
    loader = make()
    loader.load_state_dict(state)
    with caplog.at_level(logging.INFO):
        loader.set_epoch(0)
    assert "had finished epoch 0" in messages(caplog, logging.INFO)[0]
    assert loader.steps_left == 0
    assert len(loader) == STEPS
    assert loader.state_dict() == state
    assert contents(loader) == []
    loader.set_epoch(1)
    assert contents(loader) == epochs[1]


def test_an_empty_pass_is_followed_by_the_next_epoch_also_without_set_epoch(make, epochs):
    loader = make()
    loader.load_state_dict(_state_after(make, STEPS))
    loader.set_epoch(0)
    assert [contents(loader), contents(loader)] == [[], epochs[1]]


def test_set_epoch_after_the_finished_one_takes_the_empty_pass_back(make, epochs):
    loader = make()
    loader.load_state_dict(_state_after(make, STEPS))
    loader.set_epoch(0)
    loader.set_epoch(1)
    assert contents(loader) == epochs[1]


def test_set_epoch_with_another_epoch_drops_the_position_and_tells_what_is_unread(
    make, epochs, caplog
):
    loader = make()
    loader.load_state_dict(_state_after(make, 4))
    with caplog.at_level(logging.WARNING):
        loader.set_epoch(2)
    (message,) = messages(caplog)
    assert f"{NUM_SAMPLES - 12} samples unread" in message
    assert contents(loader) == epochs[2]


def test_set_epoch_on_a_running_iterator_holds_from_the_next_iter_on(make, epochs):
    loader = make()
    iterator = iter(loader)
    first = content(next(iterator))
    loader.set_epoch(2)
    assert [first, *contents(iterator)] == epochs[0]
    assert loader.epoch == 2
    assert contents(loader) == epochs[2]


def test_leaving_an_epoch_by_set_epoch_tells_how_many_samples_stay_unread(make, epochs, caplog):
    loader = make()
    next(iter(loader))
    loader.set_epoch(1)
    with caplog.at_level(logging.WARNING):
        assert contents(loader) == epochs[1]
    (message,) = messages(caplog)
    assert f"epoch 0 was broken off with {NUM_SAMPLES - 3} samples unread and was left" in message


def test_set_epoch_reaches_the_loader_through_its_sampler(make, epochs):
    loader = make()
    iterator = iter(loader)
    loader.sampler.set_epoch(1)
    assert contents(iterator) == epochs[1]


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", None, True, 2**62])
def test_set_epoch_refuses_what_is_no_epoch(make, epoch):
    with pytest.raises(sl.UsageError, match="set_epoch"):
        make().set_epoch(epoch)


def test_len_is_a_whole_epoch_and_steps_left_the_rest(make):
    loader = make()
    iterator = iter(loader)
    for received in range(STEPS):
        assert (len(loader), loader.steps_left) == (STEPS, STEPS - received)
        next(iterator)
    assert (len(loader), loader.steps_left) == (STEPS, STEPS)


def test_len_after_a_load_is_that_of_a_whole_epoch_in_the_present_topology(make):
    loader = make(batch_size=2)
    loader.load_state_dict(_state_after(make, 3))
    assert len(loader) == 8
    assert loader.steps_left == 4


@pytest.mark.parametrize("even", ["pad", "drop", "join"])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 16, 17, 100])
def test_len_is_exact_for_every_end_of_an_epoch(make, even, batch_size):
    for rank in range(3):
        loader = make(rank=rank, world_size=3, even=even, batch_size=batch_size)
        assert [len(loader)] * 2 == [len(list(loader)), len(list(loader))]


def test_len_and_iter_have_no_effect_on_the_position(make):
    loader = make()
    list(islice(loader, 2))
    state = loader.state_dict()
    len(loader)
    iter(loader)
    assert loader.state_dict() == state


def test_under_join_the_rank_without_a_last_batch_is_at_the_end_with_its_stop_iteration(make):
    short = make(rank=1, batch_size=3, world_size=5, even="join")  # 15 samples, and one for rank 0
    iterator = iter(short)
    next(iterator)
    assert (short.epoch, short.steps_left) == (0, 0)
    assert short.state_dict()["consumed"] == 15
    assert next(iterator, None) is None
    assert short.epoch == 1
    assert short.state_dict()["consumed"] == 0


def test_skip_leaves_steps_out(make, epochs):
    loader = make()
    loader.skip(2)
    assert loader.steps_left == STEPS - 2
    assert contents(loader) == epochs[0][2:]


def test_skip_in_the_middle_of_an_epoch_puts_its_iterator_out_of_date(make, epochs):
    loader = make()
    iterator = iter(loader)
    next(iterator)
    loader.skip(2)
    with pytest.raises(sl.StaleIteratorError, match="skip"):
        next(iterator)
    assert contents(loader) == epochs[0][3:]


def test_skip_past_the_end_starts_the_next_epoch(make, epochs):
    loader = make()
    loader.skip(STEPS + 5)
    assert contents(loader) == epochs[1]


def test_skip_then_iter_begins_the_epoch_that_set_epoch_asked_for(make, epochs):
    loader = make()
    next(iter(loader))
    loader.set_epoch(2)
    loader.skip(1)
    assert contents(loader) == epochs[2]


def test_a_skipped_loader_has_the_state_of_one_that_read(make):
    loader = make()
    loader.skip(4)
    assert loader.state_dict() == _state_after(make, 4)


@pytest.mark.parametrize("steps", [-1, 0.5, None])
def test_skip_refuses_what_is_no_number_of_steps(make, steps):
    with pytest.raises(sl.UsageError, match="steps must be"):
        make().skip(steps)


def _state_after(make, steps):
    loader = make()
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    return loader.state_dict()


def test_an_iterator_at_its_end_refuses_too_once_a_state_was_loaded():
    loader = loader_of(kept_corpus((4, 3)), batch_size=2)
    state = loader.state_dict()
    iterator = iter(loader)
    list(iterator)
    assert list(iterator) == []
    loader.load_state_dict(state)
    with pytest.raises(sl.StaleIteratorError):
        next(iterator)


def test_a_start_that_fails_moves_nothing(monkeypatch):
    loader = loader_of(kept_corpus((4, 3)), batch_size=2)
    next(iter(loader))
    before = loader.state_dict()

    def disagree(*_, **__):
        raise sl.AgreementError("they differ")

    monkeypatch.setattr("shardloader.loader.progress.Progress._agree", disagree)
    with pytest.raises(sl.AgreementError):
        next(iter(loader))
    assert loader.state_dict() == before


def test_a_position_moved_while_a_batch_is_fetched_stays_moved():
    def load(samples):
        loader.load_state_dict(state)
        return {"n": len(samples)}

    loader = loader_of(kept_corpus((4, 3)), batch_size=2, collate_fn=load)
    state = loader.state_dict()
    with pytest.raises(sl.StaleIteratorError):
        next(iter(loader))
    assert loader.state_dict() == state


def test_steps_skipped_at_the_start_of_an_epoch_are_those_it_would_have_begun_with():
    """Also where the epoch takes another grid than the one that the state was made on."""
    first = loader_of(kept_corpus((30, 21)), batch_size=4)
    list(first)
    whole, skipping = (loader_of(kept_corpus((30, 21)), batch_size=3) for _ in range(2))
    for loader in (whole, skipping):
        loader.load_state_dict(first.state_dict())
    skipping.skip(2)
    assert contents(skipping) == contents(whole)[2:]


def test_a_topology_of_more_ranks_than_there_are_processes_is_told_once(caplog, monkeypatch):
    monkeypatch.setattr(progress, "group_size", lambda: 2)
    loader = loader_of(kept_corpus(COUNTS), batch_size=2, world_size=4)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            list(loader)
    (message,) = messages(caplog)
    assert "4 ranks and torch.distributed 2 processes" in message
