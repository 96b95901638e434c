"""The raster of a plan: each cell shows a reader that reads there, and no cell is left out."""

from __future__ import annotations

import numpy as np
import pytest

import shardloader as sl
from shardloader.planning import picture as raster
from shardloader.planning.picture import NOBODY, picture
from shardloader.planning.stretches import Change, stretches


def readers_of_cells(parts, seen):
    """The readers of each cell by looking at every batch, as a dict of sets."""
    order = parts[0].schedule.order
    found: dict[tuple[int, int], set[tuple[int, int]]] = {}
    first_step = parts[0].first_step
    begin = parts[0].dealing
    first_pass = (begin.first + begin.consumed) // order.num_samples
    for part in parts:
        workers = max(1, part.num_workers)
        for rank in range(part.dealing.world_size):
            read = part.schedule.reader(rank).steps(np.arange(part.dealing.num_batches(rank)))
            for step, size in enumerate(read.size[: part.dealing.num_batches(rank)]):
                column = np.searchsorted(seen.columns, first_step + step, side="right") - 1
                for shard, number in zip(
                    read.shard[step, :size], read.passes[step, :size], strict=True
                ):
                    turn = np.flatnonzero(order.line(number).shards == shard)[0]
                    turn += (number - first_pass) * len(order.counts)
                    row = np.searchsorted(seen.rows, turn, side="right") - 1
                    found.setdefault((row, column), set()).add((rank, step % workers))
        first_step += part.steps
    return found


CASES = {
    "one topology": ({"world_size": 3, "num_workers": 2}, ()),
    "no workers": ({"world_size": 2}, ()),
    "a rank more, then a larger batch": (
        {"world_size": 2, "num_workers": 2},
        (Change(7, world_size=3), Change(12, batch_size=8)),
    ),
    "join": ({"world_size": 7, "even": "join"}, ()),
    "several passes": ({"world_size": 2, "steps_per_epoch": 40, "epoch": 1}, ()),
}


@pytest.mark.parametrize("columns", [600, 9])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_cell_shows_a_reader_that_reads_there(case, columns):
    options, changes = case
    plan = sl.plan([9, 0, 30, 4, 17, 40], batch_size=3, shuffle=sl.Shuffle(window=5), **options)
    parts = stretches(plan, changes)
    seen = picture(parts, most_columns=columns)
    expected = readers_of_cells(parts, seen)
    assert seen.is_exact
    assert {tuple(cell) for cell in np.argwhere(seen.rank != NOBODY).tolist()} == set(expected)
    for cell, readers in expected.items():
        assert (int(seen.rank[cell]), int(seen.worker[cell])) in readers
    assert len(seen.columns) - 1 <= columns
    assert seen.changes == tuple(change.step for change in changes)


@pytest.mark.parametrize("window", [None, 1, 5, 1000])
def test_where_a_reader_may_be_holds_where_it_is(window):
    plan = sl.plan(
        [9, 0, 30, 4, 17, 40] * 4,
        batch_size=3,
        world_size=2,
        num_workers=2,
        shuffle=sl.Shuffle(window=window) if window else False,
    )
    seen = picture([plan], most_exact=0)
    assert not seen.is_exact
    for row, column in readers_of_cells([plan], seen):
        assert seen.rank[row, column] != NOBODY


def test_many_shards_share_rows_and_many_steps_columns():
    seen = picture([sl.plan([2] * 5000, batch_size=2, world_size=2)])
    assert seen.rank.shape == (raster.MOST_ROWS, 599)
    assert (seen.rows[0], seen.rows[-1], seen.columns[-1]) == (0, 5000, 2500)
    assert set(np.diff(seen.rows).tolist()) == {8, 9}


def test_readers_of_one_row_are_shown_in_proportion():
    plan = sl.plan([6000], batch_size=1, world_size=3, grid=sl.Grid(ranks=1, workers=1, batch=3))
    shown = picture([plan]).rank[0]
    times = np.bincount(shown, minlength=3)
    assert times.sum() == len(shown)
    assert np.abs(times / len(shown) - 1 / 3).max() < 0.02


def test_progress_is_told_of_every_rank_of_every_stretch():
    told: list[int] = []
    plan = sl.plan([100], batch_size=5, world_size=3)
    picture(stretches(plan, [Change(2, world_size=5)]), advance=told.append)
    assert sum(told) == 8


def test_a_plan_without_steps_has_no_picture():
    with pytest.raises(sl.UsageError, match="nothing is left"):
        picture([sl.plan([0], batch_size=3)])


def test_steps_too_large_to_be_looked_at_are_refused():
    plan = sl.plan([10**9], batch_size=10**7, world_size=4)
    with pytest.raises(sl.UsageError, match="plot fewer ranks, or a smaller batch"):
        picture([plan])


def test_more_ranks_than_can_be_drawn_are_refused():
    with pytest.raises(sl.UsageError, match="a plot shows 16,384 ranks at most"):
        picture([sl.plan([10**6], batch_size=1, world_size=16_385)])
