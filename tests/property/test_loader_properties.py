"""What real loaders do, for any corpus, topology and interruption: one loader a rank, no workers.

What arrives is held against two things: the plan, and the demand that every sample is valid once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardloader as sl
from tests.corpora import content, contents, kept_corpus, loader_of, loaders_of

# Few different corpora, so that most examples find theirs made; empty shards and an empty corpus.
CORPORA = st.sampled_from(
    [(), (1,), (5,), (3, 0, 4, 1), (2, 2, 2, 2, 2), (0, 0), (17, 1, 0, 6), (1,) * 11, (23, 20)]
).filter(bool)
WINDOWS = st.sampled_from([None, 1, 2, 5, 1000])
GRIDS = st.one_of(
    st.none(),
    st.builds(sl.Grid, ranks=st.integers(1, 4), workers=st.integers(1, 3), batch=st.integers(1, 4)),
)


@dataclass(frozen=True)
class World:
    """A topology, and how its epochs end."""

    world_size: int
    batch_size: int
    even: str


WORLDS = st.builds(
    World, st.integers(1, 5), st.integers(1, 4), st.sampled_from(["pad", "drop", "join"])
)
# "drop" leaves samples out where a run changes its topology; "each once" is asked of the others.
WHOLE = st.builds(World, st.integers(1, 5), st.integers(1, 4), st.sampled_from(["pad", "join"]))


@dataclass(frozen=True)
class Run:
    """What defines an order."""

    counts: tuple[int, ...]
    seed: int
    window: int | None
    grid: sl.Grid | None
    steps_per_epoch: int | None = None

    @property
    def num_samples(self) -> int:
        return sum(self.counts)

    def options(self, world: World) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "shuffle": False if self.window is None else sl.Shuffle(window=self.window),
            "grid": self.grid,
            "steps_per_epoch": self.steps_per_epoch,
            "even": world.even,
            "batch_size": world.batch_size,
        }

    def loaders(self, world: World, state: dict[str, Any] | None = None) -> list[Any]:
        loaders = loaders_of(kept_corpus(self.counts), world.world_size, **self.options(world))
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        return loaders


RUNS = st.builds(Run, CORPORA, st.integers(0, 2**63 - 1), WINDOWS, GRIDS)
ENDLESS = st.builds(
    Run,
    CORPORA.filter(lambda counts: sum(counts) > 0),
    st.integers(0, 2**63 - 1),
    WINDOWS,
    GRIDS,
    st.integers(1, 7),
)


def take(loaders: list[Any], steps: int) -> list[list[Any]]:
    """The next steps of all ranks, in lockstep, or as many as are left of the epoch."""
    iterators = [iter(loader) for loader in loaders]
    taken = []
    for _ in range(steps):
        step = [next(iterator, None) for iterator in iterators]
        if all(batch is None for batch in step):
            break
        taken.append([content(batch) for batch in step if batch is not None])
    return taken


def epoch_of(loaders: list[Any]) -> list[list[Any]]:
    """What is left of the epoch on all ranks."""
    return take(loaders, 10**6)


def valid_in(steps: list[list[Any]]) -> list[int]:
    return [
        number
        for step in steps
        for index, valid, _ in step
        for number, is_valid in zip(index, valid, strict=True)
        if is_valid
    ]


def state_of(loaders: list[Any]) -> dict[str, Any]:
    """The state, having looked that every rank has the same, and that JSON and 1 KB hold it."""
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    assert len(json.dumps(states[0])) < 1024
    loaded: dict[str, Any] = json.loads(json.dumps(states[0]))
    assert loaded == states[0]
    return loaded


@given(run=RUNS, worlds=st.lists(WHOLE, min_size=1, max_size=4), data=st.data())
@settings(max_examples=80)
def test_a_chain_of_topologies_gives_every_sample_once(run, worlds, data):
    state, seen = None, []
    for number, world in enumerate(worlds):
        loaders = run.loaders(world, state)
        left = max(loader.steps_left for loader in loaders)
        is_last = number == len(worlds) - 1
        # One step short of the end: what is last under "join" has states that differ by rank.
        stop = left if is_last else data.draw(st.integers(0, max(0, left - 1)))
        seen += take(loaders, stop)
        if not is_last:
            state = state_of(loaders)
    assert sorted(valid_in(seen)) == list(range(run.num_samples))


@given(run=RUNS, world=WORLDS)
@settings(max_examples=80)
def test_what_arrives_is_what_the_plan_says_at_every_step_on_every_rank(run, world):
    loaders = run.loaders(world)
    options = run.options(world)
    plan = sl.plan(kept_corpus(run.counts), world_size=world.world_size, **options)
    steps = epoch_of(loaders)
    assert len(steps) == plan.steps
    assert max(map(len, loaders)) == plan.steps
    for step, batches in enumerate(steps):
        planned = [plan.batch(step, rank) for rank in range(world.world_size)]
        expected = [
            (tuple(each.index.tolist()), tuple(each.valid.tolist()), each.global_valid)
            for each in planned
            if each.index.size
        ]
        assert batches == expected


@given(run=RUNS, world=WORLDS)
@settings(max_examples=80)
def test_every_rank_has_as_many_steps_as_its_len_says(run, world):
    for loader in run.loaders(world):
        length = len(loader)
        assert len(list(loader)) == length
    lengths = set(map(len, run.loaders(world)))
    assert world.even == "join" or len(lengths) == 1
    assert max(lengths) - min(lengths) <= 1


@given(run=st.one_of(RUNS, ENDLESS), world=WORLDS)
@settings(max_examples=30)
def test_a_state_taken_before_every_step_gives_exactly_what_is_left(run, world):
    loader = run.loaders(world)[0]
    states: list[Any] = []
    arrived: list[Any] = []
    for _ in range(2):  # across the end of an epoch
        iterator = iter(loader)
        while True:
            states.append((len(arrived), loader.state_dict()))
            batch = next(iterator, None)
            if batch is None:
                break
            arrived.append((states[-1][1]["epoch"], content(batch)))
    for number, state in states:
        resumed = run.loaders(world, state)[0]
        rest = []
        while resumed.epoch < 2:
            epoch = resumed.epoch
            rest += [(epoch, each) for each in contents(resumed)]
        assert rest == arrived[number:]


@given(run=st.one_of(RUNS, ENDLESS), worlds=st.tuples(WORLDS, WORLDS), data=st.data())
@settings(max_examples=80)
def test_a_resumed_run_is_what_the_plan_of_its_state_says(run, worlds, data):
    loaders = run.loaders(worlds[0])
    take(loaders, data.draw(st.integers(0, max(0, min(map(len, loaders)) - 1))))
    state = state_of(loaders)
    plan = sl.plan(
        kept_corpus(run.counts),
        world_size=worlds[1].world_size,
        batch_size=worlds[1].batch_size,
        even=worlds[1].even,
        grid=run.grid,
        state=state,
    )
    resumed = run.loaders(worlds[1], state)
    assert max(loader.steps_left for loader in resumed) == plan.steps
    for step, batches in enumerate(epoch_of(resumed)):
        index = [each for batch in batches for each in batch[0]]
        planned = [plan.batch(step, rank).index.tolist() for rank in range(worlds[1].world_size)]
        assert index == [each for batch in planned for each in batch]


OF_TWELVE = st.sampled_from([(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)])


@given(run=RUNS, worlds=st.tuples(OF_TWELVE, OF_TWELVE), data=st.data())
@settings(max_examples=40)
def test_step_k_trains_on_the_same_samples_while_the_global_batch_stays(run, worlds, data):
    one, other = (World(ranks, batch, "pad") for ranks, batch in worlds)
    loaders = run.loaders(one)
    whole = epoch_of(loaders) + epoch_of(loaders)
    again = run.loaders(one)
    stop = data.draw(st.integers(0, max(0, len(again[0]) - 1)))
    take(again, stop)
    resumed = run.loaders(other, state_of(again))
    rest = epoch_of(resumed) + epoch_of(resumed)
    expected = [sorted(valid_in([step])) for step in whole[stop:]]
    assert [sorted(valid_in([step])) for step in rest] == expected


@given(run=ENDLESS, worlds=st.lists(WHOLE, min_size=1, max_size=4), data=st.data())
@settings(max_examples=40)
def test_an_endless_order_goes_round_the_data_evenly_through_any_topologies(run, worlds, data):
    """Every pass is exact, so counts of any two samples differ by at most one."""
    state, seen = None, []
    for world in worlds:
        loaders = run.loaders(world, state)
        for _ in range(data.draw(st.integers(0, 2))):
            seen += epoch_of(loaders)
        left = max(loader.steps_left for loader in loaders)
        seen += take(loaders, data.draw(st.integers(0, max(0, left - 1))))
        state = state_of(loaders)
    times = [0] * run.num_samples
    for number in valid_in(seen):
        times[number] += 1
    assert max(times) - min(times) <= 1


@given(run=RUNS, world=WORLDS, skipped=st.integers(0, 12), before=st.integers(0, 4))
@settings(max_examples=60)
def test_skipped_steps_are_left_out_and_no_others(run, world, skipped, before):
    loaders = run.loaders(world)
    whole = epoch_of(loaders)
    others = run.loaders(world)
    before = min(before, max(0, len(whole) - 1))
    first = take(others, before)
    for loader in others:
        loader.skip(skipped)
    if skipped and before + skipped >= len(whole):
        assert {loader.epoch for loader in others} == {1}
    else:
        assert first + epoch_of(others) == whole[:before] + whole[before + skipped :]


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_loader_of_an_empty_corpus_gives_empty_epochs(world_size):
    loader = loader_of(kept_corpus((0, 0)), world_size=world_size, batch_size=2)
    assert len(loader) == loader.steps_left == 0
    assert list(loader) == []
    assert loader.epoch == 1
