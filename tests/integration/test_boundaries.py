"""Where epochs begin and end, without workers and with them, started anew or kept.

The cases C02, C05, C07, B04 and F05 of shared/cases, and set_epoch wherever it may be called.
Every resumed epoch is compared with what fresh loaders gave. The rules themselves have a test each
in tests/loader/test_epochs.py; what is asked here is whether workers follow them.
"""

from __future__ import annotations

import logging
from itertools import islice

import pytest

import shardloader as sl
from tests.corpora import content, contents, each_once, kept_corpus, loader_of, valid_of

COUNTS = (5, 0, 4, 6, 1)
NUM_SAMPLES = sum(COUNTS)
STEPS = 6  # of 3 samples, the last with one: the two lanes have three batches and two, and a tail
GRID = sl.Grid(ranks=1, workers=2, batch=3)
HANG_S = 60  # a batch that takes so long is a hang, and an error

# num_workers and persistent_workers
WITH_WORKERS = [(1, False), (1, True), (2, False), (2, True)]
LAYOUTS = [(0, False), *WITH_WORKERS]


def name_of(layout):
    num_workers, persistent = layout
    return f"{num_workers}{' kept' if persistent else ''}"


def in_layouts(layouts):
    return pytest.mark.parametrize("layout", layouts, ids=name_of)


def make(layout, counts=COUNTS, **options):
    """A loader of one order, whatever the layout."""
    num_workers, persistent = layout
    return loader_of(
        kept_corpus(counts),
        num_workers=num_workers,
        persistent_workers=persistent,
        **{"grid": GRID, "batch_size": 3, "timeout": HANG_S if num_workers else 0, **options},
    )


def fresh_epochs(num_epochs, **options):
    """Each epoch as a loader gives it that has done nothing else, without workers."""
    found = []
    for epoch in range(num_epochs):
        loader = make((0, False), **options)
        loader.set_epoch(epoch)
        found.append(contents(loader))
    return found


@pytest.fixture(scope="module")
def epochs():
    return fresh_epochs(6)


def state_at(epoch, received):
    """The state after so many batches of an epoch, of a loader without workers."""
    loader = make((0, False))
    loader.set_epoch(epoch)
    list(islice(loader, received))
    return loader.state_dict()


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def test_the_epochs_differ(epochs):
    """Or nothing below could tell one from another."""
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)
    for epoch in epochs:
        numbers = [
            n for index, valid, _ in epoch for n, yes in zip(index, valid, strict=True) if yes
        ]
        assert each_once(numbers, NUM_SAMPLES)


@in_layouts(LAYOUTS)
def test_c02_a_state_of_each_boundary_point_gives_whole_epochs(layout, epochs):
    """Before the first batch, with the last one, after StopIteration, and just after the load."""
    source, resumed = make(layout), make(layout)
    boundaries = [source.state_dict()]
    for epoch in range(2):
        iterator = iter(source)
        assert source.state_dict() == boundaries[epoch]
        assert contents(islice(iterator, STEPS)) == epochs[epoch]
        boundaries.append(source.state_dict())
        assert list(iterator) == []
        assert source.state_dict() == boundaries[epoch + 1]
    for loader, first in ((resumed, 2), (resumed, 1), (source, 0)):
        loader.load_state_dict(boundaries[first])
        assert loader.state_dict() == boundaries[first]
        assert [contents(loader), contents(loader)] == epochs[first : first + 2]


@in_layouts(LAYOUTS)
def test_c05_the_rest_of_a_resumed_epoch_is_followed_by_whole_ones(layout, epochs):
    """In a new loader and, its workers in the midst of the epoch, in the old."""
    source, resumed = make(layout), make(layout)
    source.set_epoch(1)
    received = 0
    for more in (1, 2, 2):
        assert contents(islice(source, more)) == epochs[1][received : received + more]
        received += more
        state = source.state_dict()
        resumed.load_state_dict(state)
        assert [contents(resumed), contents(resumed)] == [epochs[1][received:], epochs[2]]
        source.load_state_dict(state)
    assert [contents(source) for _ in range(3)] == [epochs[1][received:], *epochs[2:4]]


FEW = {  # the samples of shards of which, in batches of one, a worker of two runs out early
    "one sample each": (1, 1, 1),
    "a worker that never has any": (1,),
}


@pytest.mark.parametrize("counts", FEW.values(), ids=list(FEW))
@in_layouts(LAYOUTS)
def test_c07_a_worker_that_had_finished_stays_so_for_that_epoch_alone(layout, counts):
    options = {"counts": counts, "batch_size": 1, "grid": sl.Grid(ranks=1, workers=2, batch=1)}
    epochs = fresh_epochs(2, **options)
    source, resumed = make(layout, **options), make(layout, **options)
    iterator = iter(source)
    for received in range(sum(counts)):
        resumed.load_state_dict(source.state_dict())
        assert contents(resumed) == epochs[0][received:]
        next(iterator)
    assert contents(resumed) == contents(source) == epochs[1]


@pytest.mark.parametrize("even", ["pad", "drop", "join"])
@pytest.mark.parametrize("layout", [*LAYOUTS, (3, False)], ids=name_of)
def test_b04_len_and_what_is_left_are_the_real_numbers_of_batches(layout, even):
    """Ten samples in batches of four; torch's own warning about a wrong length is an error here."""
    loader = make(layout, counts=(3, 7), batch_size=4, even=even, grid=None)
    whole = 2 if even == "drop" else 3
    assert len(loader) == len(list(loader)) == whole
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    assert (len(loader), loader.steps_left) == (whole, whole - 1)
    assert len(list(loader)) == whole - 1
    assert (len(loader), loader.steps_left) == (whole, whole)


@pytest.mark.parametrize("taken", [0, 1])
@in_layouts(LAYOUTS)
def test_f05_a_state_restored_after_iter_is_followed_or_refused(layout, taken, epochs):
    loader = make(layout)
    before = loader.state_dict()
    iterator = iter(loader)
    assert len(loader) == STEPS
    assert loader.state_dict() == before
    list(islice(iterator, taken))
    loader.load_state_dict(state_at(1, 2))
    if taken:
        for _ in range(2):
            with pytest.raises(sl.StaleIteratorError, match=f"had given {taken} batches"):
                next(iterator)
        iterator = iter(loader)
    assert contents(iterator) == epochs[1][2:]
    assert contents(loader) == epochs[2]


@in_layouts(LAYOUTS)
def test_set_epoch_forgotten_called_once_and_called_each_epoch(layout, epochs, caplog):
    """Whoever forgets it has other samples each epoch all the same; nobody is told anything."""
    with caplog.at_level(logging.INFO):
        forgotten = make(layout)
        assert [contents(forgotten) for _ in range(3)] == epochs[:3]
        forgotten.set_epoch(2)
        assert [contents(forgotten), contents(forgotten)] == epochs[2:4]
        called = make(layout)
        for epoch in (0, 2, 2, 5, 0):
            called.set_epoch(epoch)
            assert contents(called) == epochs[epoch]
    assert messages(caplog) == []


@in_layouts(LAYOUTS)
def test_the_loop_that_counts_epochs_itself_goes_on_where_it_was(layout, epochs, caplog):
    """`for epoch in range(saved, 3): loader.set_epoch(epoch)`, with the epoch that was running."""
    loader = make(layout)
    for saved, received in [(0, 2), (0, STEPS), (1, STEPS - 1)]:
        state = state_at(saved, received)
        caplog.clear()
        loader.load_state_dict(state)
        with caplog.at_level(logging.INFO):
            for epoch in range(saved, 3):
                loader.set_epoch(epoch)
                rest = received if epoch == saved else 0
                assert contents(loader) == epochs[epoch][rest:]
        told = [f"the loaded state had finished epoch {saved}: its pass is empty, and epoch "]
        assert [each[: len(told[0])] for each in messages(caplog)] == told * (received == STEPS)


@in_layouts(WITH_WORKERS)
def test_set_epoch_on_a_live_iterator_waits_for_the_next_one(layout, epochs, caplog):
    loader = make(layout)
    iterator = iter(loader)
    loader.set_epoch(1)  # it has given nothing, and follows
    first = content(next(iterator))
    with caplog.at_level(logging.INFO):
        loader.set_epoch(4)
        loader.set_epoch(3)
        assert [first, *contents(iterator)] == epochs[1]
        assert contents(loader) == epochs[3]
        iterator = iter(loader)
        next(iterator)
        loader.set_epoch(4)  # the one that runs
        assert contents(iterator) == epochs[4][1:]
        assert messages(caplog) == []
        list(islice(loader, 2))
        loader.set_epoch(0)
        assert contents(loader) == epochs[0]
    (message,) = messages(caplog)
    assert f"epoch 5 was broken off with {NUM_SAMPLES - 6} samples unread and was left" in message


@in_layouts(WITH_WORKERS)
def test_set_epoch_after_a_load_keeps_the_position_of_its_epoch_alone(layout, epochs, caplog):
    """With the same epoch, with the one the state had finished, and with another."""
    loader = make(layout)
    with caplog.at_level(logging.INFO):
        assert contents(islice(loader, 2)) == epochs[0][:2]  # workers that hold something else

        loader.load_state_dict(state_at(1, 3))
        loader.set_epoch(1)
        assert [contents(loader), contents(loader)] == [epochs[1][3:], epochs[2]]
        assert messages(caplog) == []

        loader.load_state_dict(state_at(1, STEPS))
        loader.set_epoch(1)
        assert loader.state_dict() == state_at(1, STEPS)
        assert [contents(loader), contents(loader)] == [[], epochs[2]]
        assert messages(caplog) == [
            "the loaded state had finished epoch 1: its pass is empty, and epoch 2 comes next"
        ]

        for other in (0, 3):
            caplog.clear()
            loader.load_state_dict(state_at(1, 3))
            loader.set_epoch(other)
            assert contents(loader) == epochs[other]
            (message,) = messages(caplog)
            assert f"drops the position 9 of epoch 1, with {NUM_SAMPLES - 9} samples" in message
            assert f"epoch {other} starts from its beginning" in message


@in_layouts([(0, False), (2, True)])
def test_set_epoch_before_a_load_is_overruled_by_it(layout, epochs):
    loader = make(layout)
    next(iter(loader))
    loader.set_epoch(3)
    loader.load_state_dict(state_at(1, 2))
    assert [contents(loader), contents(loader)] == [epochs[1][2:], epochs[2]]


@in_layouts([(0, False), (2, True)])
def test_an_epoch_broken_off_again_and_again_begins_anew_and_says_so_once(layout, epochs, caplog):
    loader = make(layout)
    with caplog.at_level(logging.WARNING):
        for received in (1, STEPS - 1, 3):
            assert contents(islice(loader, received)) == epochs[0][:received]
        assert [contents(loader), valid_of(loader)[:1]] == [epochs[0], [epochs[1][0][0][0]]]
    (message,) = messages(caplog)
    assert (
        f"epoch 0 was broken off with {NUM_SAMPLES - 3} samples unread and starts again" in message
    )
