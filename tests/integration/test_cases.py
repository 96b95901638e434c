"""Trouble that users of other loaders reported, tried on this one; numbers as in shared/cases.

B04, C02, C05, C07 and F05 are in test_boundaries.py.
"""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise, product
from pathlib import Path

import psutil
import pytest
from torch.utils.data import DataLoader

import shardloader as sl
from shardloader.loader.read_ahead import TASKS_MORE
from tests.corpora import (
    contents,
    dataset_of,
    each_once,
    kept_corpus,
    loader_of,
    loaders_of,
    raises_in_worker,
    valid_of,
)


@pytest.fixture
def workers():
    """Tells the children since the test began, but for multiprocessing's own servers."""
    before = psutil.Process().children(recursive=True)  # servers that other tests use as well

    def found():
        now = [each for each in psutil.Process().children(recursive=True) if each not in before]
        return [each for each in now if "from multiprocessing." not in " ".join(each.cmdline())]

    return found


def module_level(sample):
    return {**sample, "length": len(sample["txt"])}


@pytest.mark.parametrize("counts", [(4, 4, 4), (4, 0, 4), (1,)])
def test_b01_fewer_shards_than_ranks_times_workers(counts):
    num_samples = sum(counts)
    for world_size in range(1, 9):
        loaders = loaders_of(kept_corpus(counts), world_size, batch_size=2)
        batches = [list(loader) for loader in loaders]
        assert len({len(each) for each in batches}) == 1
        assert each_once((n for each in batches for n in valid_of(each)), num_samples)


@pytest.mark.parametrize("num_workers", [1, 4])
def test_b01_more_workers_than_shards(num_workers):
    loaders = loaders_of(kept_corpus((4, 0, 4)), 3, batch_size=1, num_workers=num_workers)
    batches = [list(loader) for loader in loaders]
    assert {len(each) for each in batches} == {3}
    assert each_once((n for each in batches for n in valid_of(each)), 8)


@pytest.mark.parametrize("steps_per_epoch", [None, 7])
def test_b03_an_epoch_has_one_length_whatever_the_number_of_workers(steps_per_epoch):
    for num_workers in (0, 1, 2, 4):
        loader = loader_of(
            kept_corpus((25,) * 4),
            batch_size=10,
            num_workers=num_workers,
            steps_per_epoch=steps_per_epoch,
        )
        numbers = valid_of(loader)
        assert len(numbers) == 10 * (steps_per_epoch or 10)
        assert max(Counter(numbers).values()) == 1


@pytest.mark.parametrize("shuffle", [True, False])
def test_c01_resume_with_other_ranks_and_workers(shuffle):
    counts, options = (8,) * 5, {"batch_size": 2, "shuffle": shuffle}
    for ranks, workers in ((1, 0), (1, 3), (3, 2), (4, 1)):
        loaders = loaders_of(kept_corpus(counts), 2, num_workers=2, **options)
        before = [n for loader in loaders for n in valid_of(islice(loader, 3))]
        state = loaders[0].state_dict()
        resumed = loaders_of(kept_corpus(counts), ranks, num_workers=workers, **options)
        for loader in resumed:
            loader.load_state_dict(state)
        after = [n for loader in resumed for n in valid_of(loader)]
        assert len(before) == 12
        assert each_once(before + after, 40)


def test_c08_seed_and_epoch_make_the_order_and_nothing_else_does():
    def order(epoch, **options):
        grid = sl.Grid(ranks=1, workers=2, batch=4)
        loader = loader_of(kept_corpus((10,) * 16), batch_size=4, grid=grid, **options)
        loader.set_epoch(epoch)
        return valid_of(loader)

    orders = {(epoch, seed): order(epoch, seed=seed) for epoch, seed in product(range(3), (0, 1))}
    assert len({tuple(each) for each in orders.values()}) == 6  # seed 0, epoch 1 is not 1, 0
    for epoch in range(3):
        assert order(epoch, num_workers=2) == orders[epoch, 0]
        assert order(epoch, num_workers=2, persistent_workers=True) == orders[epoch, 0]


def test_c08_a_window_as_large_as_the_data_parts_neighbours():
    numbers = valid_of(loader_of(kept_corpus((10,) * 16), batch_size=4))
    neighbours = sum(abs(a - b) == 1 for a, b in pairwise(numbers))
    assert neighbours < 12  # of 159; two are expected


def test_f02_a_dataset_pickles_before_during_and_after_and_after_a_load():
    dataset = dataset_of(kept_corpus((5, 4)), transform=module_level)
    loader = sl.ShardLoader(dataset, batch_size=2)
    sizes = [len(pickle.dumps(dataset))]
    next(iter(loader))
    sizes.append(len(pickle.dumps(dataset)))
    loader.load_state_dict(loader.state_dict())
    list(loader)
    sizes.append(len(pickle.dumps(dataset)))
    list(dataset)
    assert max(sizes) < 10_000
    copied = pickle.loads(pickle.dumps(loader.dataset))
    assert contents(sl.ShardLoader(copied, batch_size=2)) == contents(
        sl.ShardLoader(dataset, batch_size=2)
    )


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
@pytest.mark.parametrize("argument", ["transform", "collate_fn", "worker_init_fn", "decode"])
def test_f02_a_lambda_is_refused_by_its_arguments_name_before_a_process_starts(
    argument, start_method, workers
):
    value = {"txt": lambda data: data} if argument == "decode" else lambda sample: sample
    loader = loader_of(
        kept_corpus((5,)),
        num_workers=1,
        multiprocessing_context=start_method,
        **{argument: value},
    )
    with pytest.raises(sl.UsageError, match=rf"started by {start_method} .* and {argument}= can't"):
        next(iter(loader))
    assert workers() == []


def test_f02_a_default_start_method_that_pickles_is_noticed_too(monkeypatch):
    """Python 3.14's default, and what torch.multiprocessing.set_start_method makes of it."""
    was = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        loader = loader_of(kept_corpus((5,)), num_workers=1, transform=lambda sample: sample)
        with pytest.raises(sl.UsageError, match=r"started by spawn .* transform= can't be pickled"):
            next(iter(loader))
    finally:
        multiprocessing.set_start_method(was, force=True)


def test_f02_a_lambda_is_fine_where_workers_are_forked():
    loader = loader_of(
        kept_corpus((5,)),
        num_workers=1,
        multiprocessing_context="fork",
        transform=lambda sample: {"n": 1},
        meta="none",
    )
    assert next(iter(loader))["n"].tolist() == [1]


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_g01_fifty_shards_broken_off_in_three_epochs_leave_nothing_open(num_workers):
    script = Path(__file__).with_name("broken_off_epochs.py")
    done = subprocess.run(
        [sys.executable, str(script), str(kept_corpus((2,) * 50)), str(num_workers)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    before, after, left = map(int, done.stdout.split())
    assert after == before
    assert left == 0


def test_g01_the_shards_that_stay_open_are_bounded_however_many_there_are():
    before = open_files()
    loader = loader_of(kept_corpus((1,) * 200), batch_size=4)
    for _ in loader:
        assert open_files() <= before + 2 * 128 + 8  # a shard and its index, and the position
    del loader
    gc.collect()
    assert open_files() <= before + 1


@pytest.mark.parametrize("limit", [256, 1024])
def test_g01_batches_of_a_hundred_shards_are_read_in_eight_threads_with_few_descriptors(limit):
    script = Path(__file__).with_name("few_files.py")
    command = [sys.executable, "-W", "ignore", str(script), str(kept_corpus((1,) * 500))]
    done = subprocess.run(
        [*command, str(limit)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "500 0\n", done.stderr


def test_g01_an_error_in_the_middle_of_a_shard_leaves_nothing_open(workers):
    loader = loader_of(kept_corpus((2,) * 50), batch_size=4, num_workers=1, transform=fail_at_50)
    before = open_files()
    for _ in range(2):
        with raises_in_worker(ZeroDivisionError, "division"):
            list(loader)
    gc.collect()
    assert workers() == []
    # shared memory: the position, which blocks are in use, what workers do
    assert open_files() <= before + 3


def fail_at_50(sample):
    return {"x": 1 / (int(sample["__key__"]) - 50)}


@pytest.mark.parametrize(("decode_threads", "ahead"), [(0, 0), (1, 1 + TASKS_MORE)])
def test_h02_resume_opens_only_the_shards_that_are_read_and_decodes_nothing_before_them(
    decode_threads, ahead
):
    decoded = []

    def decode(data):
        decoded.append(bytes(data))
        return 0

    options = {"batch_size": 2, "shuffle": False, "decode": {"txt": decode}}
    loader = loader_of(kept_corpus((4,) * 100), decode_threads=decode_threads, **options)
    loader.skip(180)
    iterator = iter(loader)
    next(iterator)
    numbers = [int(text.split()[1]) for text in decoded]
    assert numbers == list(range(360, 360 + len(numbers)))
    assert 2 <= len(numbers) <= 2 + 2 * ahead
    assert loader._engine._made is not None
    reader = loader._engine._made[0]._reader
    assert reader._pool.num_open == 1 or ahead  # what is ahead may lie in the next shards
    assert reader._pool.num_open <= 10


def test_a_plain_data_loader_over_loader_dataset_is_refused_before_it_divides_twice():
    with pytest.raises(sl.UsageError):
        list(DataLoader(loader_of(kept_corpus((5,))).dataset, batch_size=None))
