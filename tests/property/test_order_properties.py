"""What the order promises, for any counts, grid, window, topology, policy and position.

The slow reference of `tests.order.reference` is written from the design alone; where a property
needs to know the truth, it comes from there.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardloader.order.audit import tally
from shardloader.order.checkpoint import Checkpoint, starting_grid
from shardloader.order.grid import Grid
from tests.property.order_cases import (
    GRIDS,
    TOPOLOGIES,
    Case,
    Topo,
    batches,
    cases,
    read_by,
    rest_of,
    valid_samples,
)


def through_json(case: Case) -> Checkpoint:
    """The checkpoint of a case's position, saved and loaded again."""
    checkpoint = Checkpoint(
        dataset="xxh3:cafe",
        seed=case.seed,
        epoch=case.epoch,
        consumed=case.consumed,
        grid=case.order.grid,
        window=case.window,
        steps_per_epoch=case.steps_per_epoch,
    )
    loaded = Checkpoint.from_state(json.loads(json.dumps(checkpoint.to_state())))
    assert loaded == checkpoint
    loaded.check_matches(checkpoint)
    loaded.check_fits(case.order)
    return loaded


# --- position to sample -----------------------------------------------------------------------


@given(cases())
def test_a_pass_holds_every_sample_once(case):
    order = case.order
    samples = order.one_pass(case.epoch).locate(np.arange(order.num_samples))
    assert sorted(samples.index.tolist()) == list(range(order.num_samples))


@given(cases())
def test_shard_and_number_in_the_shard_say_the_same_as_the_index(case):
    order = case.order
    samples = order.one_pass(case.epoch).locate(np.arange(order.num_samples))
    first_of = np.cumsum((0, *case.counts))
    assert (first_of[samples.shard] + samples.sample == samples.index).all()
    assert (samples.sample < order.counts[samples.shard]).all()
    assert (samples.sample >= 0).all()


@given(cases())
def test_a_pass_agrees_with_the_reference(case):
    order = case.order
    got = order.one_pass(case.epoch).locate(np.arange(order.num_samples)).index.tolist()
    assert got == [index for _, index in case.reference.one_pass(case.epoch)]


@given(cases(least_samples=1), st.data())
def test_any_positions_in_any_shape_give_what_the_whole_pass_gives(case, data):
    order = case.order
    whole = order.one_pass(case.epoch).locate(np.arange(order.num_samples)).index
    some = data.draw(
        st.lists(st.integers(0, order.num_samples - 1), min_size=1, max_size=12), label="positions"
    )
    positions = np.array(some * 2, dtype=np.int64).reshape(2, len(some))
    got = order.one_pass(case.epoch).locate(positions)
    assert got.index.shape == positions.shape
    assert (got.index == whole[positions]).all()


@given(cases())
def test_without_a_shuffle_on_a_grid_of_one_the_order_is_the_datasets_own(case):
    order = replace(case, window=None, grid=(1, 1, case.grid[2])).order
    samples = order.one_pass(case.epoch).locate(np.arange(order.num_samples))
    assert samples.index.tolist() == list(range(order.num_samples))


@given(cases())
def test_a_sample_travels_at_most_two_windows_and_stays_in_its_lane(case):
    order = case.order
    positions = np.arange(order.num_samples)
    places = order.lanes.places(positions)
    line = order.line(case.epoch)
    index = order.one_pass(case.epoch).locate(positions).index
    came_from = np.argsort(line.locate(positions).index)[index]
    assert (np.abs(came_from - places.at) <= 2 * (case.window or 0)).all()
    assert (came_from >= places.lane_start).all()
    assert (came_from < places.lane_stop).all()


@given(cases())
def test_lanes_partition_the_line_and_are_entered_round_robin(case):
    ranks, workers, _ = case.grid
    lanes = case.order.lanes
    numbers = lanes.lane_numbers(np.arange(lanes.num_samples))
    assert numbers.tolist() == [
        ranks * workers if key[1] else key[2] * workers + key[3] % workers
        for key, _ in case.reference.one_pass(0)
    ]
    at = np.sort(lanes.places(np.arange(lanes.num_samples)).at)
    assert at.tolist() == list(range(lanes.num_samples))


# --- who reads what ---------------------------------------------------------------------------


@given(cases())
def test_every_slot_of_every_rank_agrees_with_the_reference(case):
    want = case.reference.steps(
        case.epoch, case.consumed, case.topology.world_size, case.topology.batch_size, case.even
    )
    assert batches(case.schedule) == [
        [[(slot.index, slot.valid) for slot in batch] for batch in step] for step in want
    ]


@given(cases())
def test_global_valid_is_what_all_ranks_together_hold_and_every_rank_knows_it(case):
    schedule = case.schedule
    held = [sum(valid for batch in step for _, valid in batch) for step in batches(case.schedule)]
    for rank in range(case.topology.world_size):
        assert read_by(schedule, rank).global_valid.tolist() == held


@given(cases(even="pad", endless=False))
def test_under_pad_every_sample_of_the_rest_is_valid_once_and_every_batch_is_full(case):
    steps = batches(case.schedule)
    assert all(len(batch) == case.topology.batch_size for step in steps for batch in step)
    assert sorted(index for step in steps for index in valid_samples(step)) == rest_of(case)
    pads = sum(not valid for step in steps for batch in step for _, valid in batch)
    assert pads == case.schedule.dealing.num_pads


@given(cases(even="pad"))
def test_a_pad_repeats_a_sample_of_its_step_and_of_its_rank_if_it_has_one(case):
    for step in batches(case.schedule):
        of_step = {index for batch in step for index, valid in batch if valid}
        for batch in step:
            own = [index for index, valid in batch if valid]
            pads = [index for index, valid in batch if not valid]
            assert batch == [(index, True) for index in own] + [(index, False) for index in pads]
            assert set(pads) <= (set(own) or of_step)


@given(cases(even="drop", endless=False))
def test_under_drop_every_step_is_full_and_fewer_samples_than_a_step_are_omitted(case):
    steps = batches(case.schedule)
    read = Counter(index for step in steps for index in valid_samples(step))
    left = Counter(rest_of(case))
    assert all(
        len(batch) == case.topology.batch_size and all(valid for _, valid in batch)
        for step in steps
        for batch in step
    )
    assert read <= left
    omitted = (left - read).total()
    assert omitted == case.schedule.dealing.num_omitted < case.topology.step


@given(cases(even="join", endless=False))
def test_under_join_every_sample_of_the_rest_is_read_once_and_nothing_is_repeated(case):
    dealing = case.schedule.dealing
    steps = batches(case.schedule)
    assert sorted(index for step in steps for batch in step for index, _ in batch) == rest_of(case)
    assert all(valid for step in steps for batch in step for _, valid in batch)
    for rank in range(dealing.world_size):
        # Only the last batch may be short, and a rank without one has one batch fewer.
        sizes = [len(step[rank]) for step in steps]
        assert all(size == case.topology.batch_size for size in sizes[:-1])
        assert dealing.num_batches(rank) == sum(size > 0 for size in sizes)


@given(cases())
def test_the_last_step_is_dealt_evenly(case):
    for step in batches(case.schedule)[-1:]:
        shares = [sum(valid for _, valid in batch) for batch in step]
        assert max(shares) - min(shares) <= 1
        assert shares == sorted(shares, reverse=True)


@given(cases())
def test_every_rank_has_the_same_number_of_steps_except_under_join(case):
    dealing = case.schedule.dealing
    counts = {dealing.num_batches(rank) for rank in range(dealing.world_size)}
    left = case.order.epoch_length - case.consumed
    whole = left // case.topology.step
    if case.even == "join":
        assert counts <= {whole, whole + 1}
    else:
        assert counts == {whole if case.even == "drop" else -(-left // case.topology.step)}


@given(cases(even="pad", endless=False))
def test_the_audit_of_a_whole_epoch_is_exact(case):
    schedule = case.at(0).schedule
    read = [read_by(schedule, rank) for rank in range(case.topology.world_size)]
    found = tally(((each.index, each.valid) for each in read), case.order.num_samples)
    assert found.is_exact
    assert found.samples == found.distinct == case.order.num_samples
    assert found.pads == schedule.dealing.num_pads


# --- seeking and resuming -----------------------------------------------------------------------


@given(cases(least_samples=1), st.data())
def test_any_steps_in_any_order_are_what_all_of_them_together_are(case, data):
    schedule = case.schedule
    num_steps = schedule.dealing.num_steps
    some = data.draw(
        st.lists(st.integers(0, max(0, num_steps - 1)), max_size=6 * bool(num_steps)), label="steps"
    )
    steps = np.array(some, dtype=np.int64)
    reader = schedule.reader(case.topology.world_size - 1)
    whole = read_by(schedule, case.topology.world_size - 1)
    for got in (reader.steps(steps), reader.steps(steps)):
        for name in ("shard", "sample", "index", "valid", "size", "global_valid"):
            assert (getattr(got, name) == getattr(whole, name)[steps]).all(), name
    for step in some:
        assert (reader.steps(np.array([step])).index[0] == whole.index[step]).all()


@given(cases())
def test_a_schedule_is_a_value_that_a_worker_process_can_be_handed(case):
    assert batches(pickle.loads(pickle.dumps(case.schedule))) == batches(case.schedule)


@given(cases())
def test_resuming_after_any_step_in_the_same_topology_gives_exactly_the_rest(case):
    steps = batches(case.schedule)
    for taken in range(len(steps) + 1):
        consumed = case.schedule.dealing.consumed_after(taken)
        assert batches(case.at(consumed).schedule) == steps[taken:]
        through_json(case.at(consumed))


@given(cases(), st.lists(st.tuples(TOPOLOGIES, st.integers(1, 3)), max_size=5))
def test_a_chain_of_topologies_reads_what_was_not_read(case, chain):
    everything = Counter(rest_of(case))
    read: Counter[int] = Counter()
    omitted = 0
    for topology, taken in [*chain, (case.topology, case.order.epoch_length)]:
        schedule = case.at(case.consumed, topology).schedule
        for step in batches(schedule)[:taken]:
            read.update(valid_samples(step))
        if taken >= schedule.dealing.num_steps:
            omitted += schedule.dealing.num_omitted
        case = case.at(schedule.dealing.consumed_after(taken))
        left = Counter(rest_of(case))
        assert read + left <= everything
        assert (everything - read - left).total() == omitted
        # The grid is the first topology's, whatever topology saved or loads.
        assert through_json(case).grid == case.order.grid
    assert case.consumed == case.order.epoch_length
    if case.even != "drop":
        assert read == everything


@given(cases(even="pad"), st.lists(TOPOLOGIES, min_size=1, max_size=4), st.booleans())
def test_an_epoch_that_starts_after_a_change_is_whole_on_the_grid_that_it_starts_with(
    case, chain, is_given
):
    first = case.order.grid
    given = first if is_given else None
    for topology in chain:
        present = Grid(ranks=topology.world_size, workers=2, batch=topology.batch_size)
        grid = starting_grid(
            case.order.grid,
            present,
            given=given,
            consumed=0,
            steps_per_epoch=case.steps_per_epoch,
        )
        if is_given or case.steps_per_epoch is not None:
            assert grid == first
        else:
            assert grid.step == topology.step
        case = replace(
            case,
            grid=(grid.ranks, grid.workers, grid.batch),
            epoch=case.epoch + 1,
            consumed=0,
            topology=topology,
        )
        read = [index for step in batches(case.schedule) for index in valid_samples(step)]
        assert sorted(read) == rest_of(case)
        middle = min(topology.step, case.order.epoch_length)
        if middle:
            assert (
                starting_grid(
                    case.order.grid,
                    present,
                    given=None,
                    consumed=middle,
                    steps_per_epoch=case.steps_per_epoch,
                )
                == case.order.grid
            )


@given(cases(), st.integers(1, 12))
def test_on_one_grid_step_k_holds_the_same_samples_in_every_topology_of_its_global_batch(
    case, step
):
    shapes = [Topo(world, step // world) for world in range(1, step + 1) if step % world == 0]
    held = [
        [valid_samples(each) for each in batches(case.at(case.consumed, shape).schedule)]
        for shape in shapes
    ]
    assert all(each == held[0] for each in held)


# --- steps_per_epoch ----------------------------------------------------------------------------


@given(cases(endless=True, even="pad", least_samples=1))
def test_consecutive_epochs_go_round_the_data_with_every_sample_once_a_pass(case):
    num_samples, length = case.order.num_samples, case.order.epoch_length
    epochs = min(40, -(-3 * num_samples // length))
    positions: list[int] = []
    for epoch in range(epochs):
        of_epoch = replace(case, epoch=epoch, consumed=0, topology=Topo(1, 1))
        # One slot a step: the positions themselves, in order.
        read = read_by(of_epoch.schedule, 0)
        assert read.valid.all()
        assert len(read.index) == length
        positions += read.index[:, 0].tolist()
    for start in range(0, len(positions) - num_samples + 1, num_samples):
        assert sorted(positions[start : start + num_samples]) == list(range(num_samples))


@given(cases(endless=True, even="pad", least_samples=1))
def test_with_steps_per_epoch_the_first_topology_has_that_many_full_steps(case):
    ranks, _, batch = case.grid
    dealing = case.at(0, Topo(ranks, batch)).schedule.dealing
    assert dealing.num_steps == case.steps_per_epoch == dealing.num_full
    assert dealing.num_pads == dealing.num_omitted == 0


# --- lanes and their readers ----------------------------------------------------------------------


def lane_readers(case: Case, num_workers: int) -> dict[int, set[tuple[int, int]]]:
    """For each lane, which (rank, worker) reads it; the last partial step is left out."""
    schedule = case.schedule
    dealing = schedule.dealing
    readers: dict[int, set[tuple[int, int]]] = {}
    steps = np.arange(dealing.num_full)
    for rank in range(dealing.world_size):
        slots = dealing.slots(steps, rank)
        lanes = case.order.lanes.lane_numbers(slots.position)
        for step in steps.tolist():
            for lane in set(lanes[step].tolist()):
                readers.setdefault(lane, set()).add((rank, step % num_workers))
    return readers


@given(cases(endless=False), GRIDS)
def test_in_the_first_topology_every_lane_belongs_to_its_own_rank_and_worker(case, grid):
    ranks, workers, batch = grid
    case = replace(case, grid=grid, topology=Topo(ranks, batch), consumed=0)
    for lane, readers in lane_readers(case, workers).items():
        assert readers == {divmod(lane, workers)}


@given(cases(endless=False), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.data())
def test_fewer_ranks_and_workers_that_divide_the_grid_leave_each_lane_one_reader(
    case, world_size, num_workers, batch, data
):
    ranks = world_size * data.draw(st.integers(1, 3), label="lane-ranks a rank")
    workers = num_workers * data.draw(st.integers(1, 3), label="lane-workers a worker")
    case = replace(
        case,
        grid=(ranks, workers, batch),
        topology=Topo(world_size, ranks * batch // world_size),
        consumed=0,
    )
    for readers in lane_readers(case, num_workers).values():
        assert len(readers) == 1


def lane_ranks(case: Case) -> list[set[int]]:
    """The lane-ranks that each rank reads, over the full steps that lie before the tail."""
    dealing, lanes = case.schedule.dealing, case.order.lanes
    steps = np.arange(max(0, lanes.tail_start - case.consumed) // dealing.step_size)
    return [
        set(
            np.unique(lanes.lane_numbers(dealing.slots(steps, rank).position) // lanes.grid.workers)
        )
        for rank in range(dealing.world_size)
    ]


@given(cases(endless=False), st.integers(2, 9), st.integers(1, 3), st.sampled_from([-1, 1]))
def test_one_rank_fewer_or_more_leaves_every_rank_two_lane_ranks_at_most(case, ranks, batch, more):
    case = replace(
        case,
        counts=(*case.counts, 20 * ranks * batch),
        grid=(ranks, case.grid[1], batch),
        topology=Topo(ranks + more, batch),
        consumed=case.consumed // (ranks * batch) * (ranks * batch),
    )
    assert all(1 <= len(found) <= 2 for found in lane_ranks(case))


@given(cases(endless=False))
def test_in_any_topology_a_rank_stays_with_the_lane_ranks_that_its_slots_can_fall_into(case):
    ranks, _, batch = case.grid
    case = replace(case, counts=(*case.counts, 10 * ranks * batch))
    # A step holds `turns` whole rounds of the lane-ranks, and `more` positions that are spread over
    # them: before lane-rank q lie as many as its share, to one for each bit of the ranks' number.
    turns, more = divmod(case.topology.step, ranks)
    off = (ranks - 1).bit_length()
    least = [turns * q + more * q / ranks - off for q in range(ranks + 1)]
    most = [turns * q + more * q / ranks + off for q in range(ranks + 1)]
    for rank, found in enumerate(lane_ranks(case)):
        start = rank * case.topology.batch_size
        stop = start + case.topology.batch_size
        assert found <= {q for q in range(ranks) if least[q] < stop and most[q + 1] > start}


@given(cases(), st.integers(1, 5))
def test_steps_at_once_is_a_number_of_steps(case, num_workers):
    assert case.schedule.steps_at_once(num_workers) >= 1
