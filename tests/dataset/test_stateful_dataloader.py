"""ShardDataset under a plain StatefulDataLoader: exact in the same topology, else refused."""

from __future__ import annotations

import copy
import json
from itertools import islice

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import shardloader as sl
from tests.corpora import content, contents, dataset_of, each_once, kept_corpus

COUNTS = (5, 0, 4, 7, 3)
NUM_SAMPLES = sum(COUNTS)


def as_list(batch):
    return batch


def batches_loader(*, rank=0, world_size=1, num_workers=0, epoch=None, **options):
    """Batches made by the dataset itself."""
    persistent = options.pop("persistent_workers", False)
    dataset = dataset_of(
        kept_corpus(COUNTS), rank=rank, world_size=world_size, **{"batch_size": 2, **options}
    )
    if epoch is not None:
        dataset.set_epoch(epoch)
    return StatefulDataLoader(
        dataset, batch_size=None, num_workers=num_workers, persistent_workers=persistent
    )


def samples_loader(*, rank=0, world_size=1, num_workers=0, epoch=None, **options):
    """Samples, batched by torch."""
    persistent = options.pop("persistent_workers", False)
    batch_size = options.pop("batch", 4)
    dataset = dataset_of(kept_corpus(COUNTS), rank=rank, world_size=world_size, **options)
    if epoch is not None:
        dataset.set_epoch(epoch)
    return StatefulDataLoader(
        dataset,
        batch_size=batch_size,
        collate_fn=as_list,
        num_workers=num_workers,
        persistent_workers=persistent,
    )


def what(batch):
    """Something comparable of a batch of either kind."""
    if isinstance(batch, dict):
        return content(batch)
    for sample in batch:
        assert sample["__key__"] == f"{sample['__index__']:06d}"
        assert "__global_valid__" not in sample
    return [(sample["__index__"], sample["__valid__"]) for sample in batch]


def valid(batches):
    found = []
    for batch in batches:
        if isinstance(batch, dict):
            mask = batch["__valid__"]
            found += batch["__index__"][mask].tolist()
        else:
            found += [each["__index__"] for each in batch if each["__valid__"]]
    return found


MAKERS = pytest.mark.parametrize("make", [batches_loader, samples_loader])
WORKERS = pytest.mark.parametrize(
    ("num_workers", "persistent"), [(0, False), (1, False), (2, False), (2, True)]
)


@MAKERS
@WORKERS
def test_resume_after_every_step_gives_exactly_the_rest(make, num_workers, persistent):
    options = {"num_workers": num_workers, "persistent_workers": persistent, "world_size": 2}
    options = {**options, "batch": 3} if make is samples_loader else options
    loader = make(rank=1, **options)
    states, arrived = [], []
    for batch in loader:
        arrived.append(what(batch))
        states.append(copy.deepcopy(loader.state_dict()))
    assert len(arrived) >= 4
    for step in range(0, len(arrived) - 1, 1 if num_workers < 2 else 2):
        resumed = make(rank=1, **options)
        resumed.load_state_dict(json.loads(json.dumps(states[step])))
        assert [what(batch) for batch in resumed] == arrived[step + 1 :]


@MAKERS
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_before_the_first_batch_gives_the_whole_epoch(make, num_workers):
    loader = make(num_workers=num_workers)
    state = loader.state_dict()
    arrived = [what(batch) for batch in loader]
    resumed = make(num_workers=num_workers)
    resumed.load_state_dict(state)
    assert [what(batch) for batch in resumed] == arrived


@MAKERS
@WORKERS
def test_a_state_after_the_end_is_followed_by_the_next_epoch_in_full(make, num_workers, persistent):
    options = {"num_workers": num_workers, "persistent_workers": persistent}
    loader = make(**options)
    list(loader)
    state = loader.state_dict()
    loader.dataset.set_epoch(1)
    second = [what(batch) for batch in loader]
    resumed = make(**options)
    resumed.load_state_dict(state)
    resumed.dataset.set_epoch(1)
    assert [what(batch) for batch in resumed] == second


@MAKERS
def test_a_loop_that_calls_set_epoch_resumes_in_its_epoch(make, caplog):
    loader = make(epoch=1)
    arrived, states = [], []
    for batch in loader:
        arrived.append(what(batch))
        states.append(loader.state_dict())
    resumed = make(epoch=1)
    resumed.load_state_dict(states[1])
    assert [what(batch) for batch in resumed] == arrived[2:]
    assert caplog.text == ""


@MAKERS
def test_a_loop_that_calls_no_set_epoch_gets_the_epoch_of_the_state(make):
    loader = make(epoch=3)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = [what(batch) for batch in iterator]
    resumed = make()
    resumed.load_state_dict(state)
    assert [what(batch) for batch in resumed] == rest


@MAKERS
def test_set_epoch_with_another_epoch_drops_the_loaded_position_in_words(make, caplog):
    loader = make(epoch=1)
    next(iter(loader))
    state = loader.state_dict()
    resumed = make(epoch=2)
    resumed.load_state_dict(state)
    assert [what(batch) for batch in resumed] == [what(batch) for batch in make(epoch=2)]
    assert "set_epoch(2) drops the loaded position of epoch 1" in caplog.text


def test_a_finished_epochs_state_is_left_by_set_epoch_without_an_alarm(caplog):
    loader = batches_loader()
    list(loader)
    state = loader.state_dict()
    resumed = batches_loader(epoch=1)
    resumed.load_state_dict(state)
    assert len(list(resumed)) == 10
    assert caplog.text == ""


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_samples_are_dealt_evenly_over_every_rank_and_worker(num_workers, world_size, shuffle):
    loaders = [
        samples_loader(
            rank=rank, world_size=world_size, num_workers=num_workers, batch=1, shuffle=shuffle
        )
        for rank in range(world_size)
    ]
    batches = [list(loader) for loader in loaders]
    readers = world_size * max(1, num_workers)
    assert {len(each) for each in batches} == {-(-NUM_SAMPLES // readers) * max(1, num_workers)}
    assert each_once((number for each in batches for number in valid(each)), NUM_SAMPLES)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_batches_are_those_of_shard_loader_in_the_same_topology(num_workers):
    grid = sl.Grid(ranks=1, workers=2, batch=2)
    plain = batches_loader(num_workers=num_workers, grid=grid)
    ours = sl.ShardLoader(dataset_of(kept_corpus(COUNTS), grid=grid), batch_size=2)
    assert contents(plain) == contents(ours)


@MAKERS
def test_set_epoch_reaches_persistent_workers(make):
    options = {"num_workers": 2, "persistent_workers": True}
    loader = make(**options)
    given = []
    for epoch in range(3):
        loader.dataset.set_epoch(epoch)
        given.append([what(batch) for batch in loader])
    fresh = [[what(batch) for batch in make(num_workers=2, epoch=epoch)] for epoch in range(3)]
    assert given == fresh
    assert given[0] != given[1] != given[2]


def test_without_set_epoch_a_plain_loader_repeats_its_epoch():
    """The caller must call it there: nobody else can know that an epoch has ended."""
    loader = batches_loader()
    assert contents(loader) == contents(loader)


def test_another_world_size_is_refused_in_words():
    loader = batches_loader(world_size=2)
    next(iter(loader))
    resumed = batches_loader(world_size=3)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(sl.CheckpointError, match="world_size was 2 and is 3: use ShardLoader"):
        iter(resumed)


def test_another_batch_size_is_refused_in_words():
    loader = batches_loader()
    next(iter(loader))
    resumed = batches_loader(batch_size=3)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(sl.CheckpointError, match="batch_size was 2 and is 3"):
        iter(resumed)


def test_another_number_of_workers_is_refused_in_words_where_our_code_sees_it():
    loader = batches_loader()
    next(iter(loader))
    resumed = dataset_of(kept_corpus(COUNTS), batch_size=2)
    state = loader.state_dict()["dataset_state"]
    resumed.load_state_dict({**state, "num_workers": 3})
    with pytest.raises(sl.CheckpointError, match="num_workers was 3 and is 1"):
        iter(resumed)


def test_another_grid_is_refused_in_words():
    first = dataset_of(kept_corpus(COUNTS), batch_size=2, grid=sl.Grid(ranks=2, workers=1, batch=1))
    second = dataset_of(kept_corpus(COUNTS), batch_size=2)
    second.load_state_dict(first.state_dict())
    with pytest.raises(sl.CheckpointError, match=r"grid \[2, 1, 1\].*reads on \[1, 1, 2\]"):
        iter(second)


def test_another_seed_is_refused_in_words():
    first = dataset_of(kept_corpus(COUNTS), batch_size=2)
    second = dataset_of(kept_corpus(COUNTS), batch_size=2, seed=5)
    second.load_state_dict(first.state_dict())
    with pytest.raises(sl.CheckpointError, match="state has seed 0, this loader 5"):
        iter(second)


@pytest.mark.parametrize("state", [{}, None, {"version": 1}])
def test_what_is_no_state_of_a_dataset_is_refused(state):
    with pytest.raises(sl.CheckpointError, match="a state of ShardDataset has the keys"):
        dataset_of(kept_corpus(COUNTS)).load_state_dict(state)


def test_a_state_of_shard_loader_is_not_one_of_a_dataset():
    state = sl.ShardLoader(dataset_of(kept_corpus(COUNTS))).state_dict()
    with pytest.raises(sl.CheckpointError, match="or use ShardLoader"):
        dataset_of(kept_corpus(COUNTS)).load_state_dict(state)


def test_a_state_is_plain_fresh_and_small():
    dataset = dataset_of(kept_corpus(COUNTS))
    list(islice(dataset, 3))
    one, two = dataset.state_dict(), dataset.state_dict()
    assert one == two == json.loads(json.dumps(one))
    assert one["grid"] is not two["grid"]
    assert len(json.dumps(one)) < 1024


def test_a_dataset_without_any_loader_resumes_too():
    dataset = dataset_of(kept_corpus(COUNTS))
    whole = [each["__index__"] for each in dataset]
    iterator = iter(dataset)
    first = [next(iterator)["__index__"] for _ in range(6)]
    other = dataset_of(kept_corpus(COUNTS))
    other.load_state_dict(dataset.state_dict())
    assert other.state_dict() == dataset.state_dict()
    assert first + [each["__index__"] for each in other] == whole


def test_a_plain_data_loader_reads_each_sample_once():
    loader = DataLoader(
        dataset_of(kept_corpus(COUNTS), batch_size=3), batch_size=None, num_workers=2
    )
    assert each_once(valid(loader), NUM_SAMPLES)
