"""The same batches whatever starts, keeps or pins the workers; and nothing of them stays behind."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest
from torch.utils.data import get_worker_info

import shardloader as sl
from tests.corpora import contents, kept_corpus, loader_of

ROOT = Path(__file__).parents[2]
COUNTS = (5, 0, 4, 7, 1, 6)
GRID = sl.Grid(ranks=1, workers=3, batch=3)
HANG_S = 60  # a batch that takes so long is a hang, and an error


def make(num_workers=0, **options):
    return loader_of(
        kept_corpus(COUNTS),
        num_workers=num_workers,
        **{"grid": GRID, "batch_size": 3, "timeout": HANG_S if num_workers else 0, **options},
    )


@pytest.fixture(scope="module")
def epochs():
    """Three epochs, as they are read without workers."""
    loader = make()
    return [contents(loader) for _ in range(3)]


@pytest.fixture(autouse=True)
def _others():
    """What lives already, such as multiprocessing's own servers, is no worker of these tests."""
    gc.collect()
    OTHERS.clear()
    OTHERS.update(child.pid for child in psutil.Process().children(recursive=True))


OTHERS: set[int] = set()


def workers():
    everybody = psutil.Process().children(recursive=True)
    return [child for child in everybody if child.pid not in OTHERS]


@pytest.mark.parametrize("pin_memory", [False, True], ids=["unpinned", "pinned"])
@pytest.mark.parametrize("persistent_workers", [False, True], ids=["anew", "persistent"])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_forked_workers_give_the_batches_of_none(
    num_workers, persistent_workers, pin_memory, epochs
):
    loader = make(
        num_workers,
        persistent_workers=persistent_workers,
        pin_memory=pin_memory,
        multiprocessing_context="fork",
    )
    assert [contents(loader) for _ in range(2)] == epochs[:2]
    list(islice(loader, 3))
    loader.load_state_dict(loader.state_dict())
    assert contents(loader) == epochs[2][3:]


def test_pin_memory_without_workers_gives_the_same_batches(epochs):
    assert contents(make(pin_memory=True)) == epochs[0]


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_give_the_batches_of_none_and_follow_the_loader(
    start_method, epochs
):
    """Two processes started once: epochs, a break, a load and a set_epoch reach them."""
    loader = make(2, persistent_workers=True, pin_memory=True, multiprocessing_context=start_method)
    assert contents(loader) == epochs[0]
    list(islice(loader, 3))
    loader.load_state_dict(loader.state_dict())
    assert contents(loader) == epochs[1][3:]
    loader.set_epoch(1)
    assert contents(loader) == epochs[1]
    loader.set_epoch(0)
    assert contents(loader) == epochs[0]


def test_an_early_break_leaves_no_process():
    loader = make(2)
    for _ in islice(loader, 2):
        assert len(workers()) == 2
    assert workers() == []


def test_workers_end_with_the_last_batch_though_nobody_asks_for_more():
    loader = make(2)
    for _ in zip(range(len(loader)), loader, strict=False):
        pass
    assert workers() == []


def test_persistent_workers_end_with_their_loader():
    loader = make(2, persistent_workers=True)
    list(islice(loader, 2))
    pids = {child.pid for child in workers()}
    list(loader)
    assert {child.pid for child in workers()} == pids
    del loader
    assert workers() == []


def test_a_stale_iterator_lets_its_workers_go():
    loader = make(2)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(sl.StaleIteratorError):
        next(iterator)
    assert workers() == []


def test_a_new_iterator_may_begin_while_the_old_ones_workers_still_start(epochs):
    loader = make(3)
    old = [iter(loader) for _ in range(3)]
    for iterator in old:
        next(iterator)
    assert contents(loader) == epochs[0]
    del old, iterator
    assert workers() == []


def test_a_killed_worker_is_an_error_and_no_hang():
    script = Path(__file__).with_name("killed_worker.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(kept_corpus((40, 40)))],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    *told, last, left_behind = done.stdout.splitlines()
    assert left_behind == "left behind"
    assert told
    for line in told:
        assert re.search("RuntimeError DataLoader worker .* (killed by signal|exited)", line)
    assert last.startswith("StaleIteratorError an iterator that raised an error")


def test_a_loop_that_is_left_while_threads_read_for_it_leaves_no_hang_behind():
    """By break, by an exception, in a forked child, and by the end of the process."""
    command = [sys.executable, "-m", "tests.integration.left_midway", str(kept_corpus(COUNTS))]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    one_way = ["raised True", "child StaleIteratorError True", "ended 0"]
    one_way += ["forked True", "ended 0 True"]
    assert done.stdout.splitlines() == [*one_way, *one_way, "threads True"]


def with_image(sample):
    number = int(sample["__key__"])
    return {"number": number, "image": np.full((50, 1000), number % 251, np.uint8)}


def is_its_own(batch):
    """Whether each image of a batch still is that of its sample."""
    wanted = batch["number"][:, None, None] % 251
    return bool((batch["image"] == wanted).all())


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_a_loop_that_keeps_every_batch_of_every_epoch_finds_each_unchanged(
    start_method, persistent_workers
):
    """Also those of an epoch whose workers have ended, and of one that was broken off."""
    loader = loader_of(
        kept_corpus((40, 40)),
        batch_size=2,
        num_workers=2,
        transform=with_image,
        persistent_workers=persistent_workers,
        multiprocessing_context=start_method,
    )
    kept = [*islice(loader, 5), *loader, *loader]
    assert len(kept) == 85
    assert all(map(is_its_own, kept))


def test_batches_that_are_let_go_cost_no_more_memory_or_descriptors_from_epoch_to_epoch():
    loader = loader_of(
        kept_corpus((40, 40)),
        batch_size=2,
        num_workers=2,
        transform=with_image,
        persistent_workers=True,
    )
    for _ in range(3):  # a broken-off epoch leaves batches on their way
        for _ in range(2):
            list(islice(loader, 7))
        labels = [batch["number"] for batch in loader]
        gc.collect()
        fds, _, _ = held()
        assert len(labels) == 40
    for _ in range(3):
        list(islice(loader, 7))
        labels += [batch["number"] for batch in loader]
    gc.collect()
    assert held()[0] <= fds + 4  # labels keep no block, and blocks are used again


def held():
    """Descriptors and bytes of this process and its workers, together, and how many they are."""
    gc.collect()
    processes = [psutil.Process(), *workers()]
    return (
        sum(process.num_fds() for process in processes),
        sum(process.memory_info().rss for process in processes),
        len(processes),
    )


@pytest.mark.parametrize("broken_off", [False, True], ids=["whole", "broken off"])
@pytest.mark.parametrize(
    ("num_workers", "persistent_workers"),
    [(0, False), (2, False), (2, True)],
    ids=["none", "anew", "persistent"],
)
def test_ten_epochs_hold_no_more_than_two(num_workers, persistent_workers, broken_off):
    """Batches on their way hold descriptors too, some more, some fewer: what grows, grows on.

    One descriptor an epoch that is never closed would make the second five the larger ones.
    """
    loader = make(num_workers, persistent_workers=persistent_workers)
    measured = []
    for _ in range(12):
        for _ in islice(loader, 4 if broken_off else None):
            pass
        measured.append(held())
    descriptors, rss, processes = zip(*measured[2:], strict=True)
    assert set(processes) == {3 if persistent_workers else 1}
    assert min(descriptors[5:]) <= max(descriptors[:5])
    assert min(rss[5:]) - max(rss[:5]) < 2_000_000


def test_each_worker_opens_the_shards_of_its_own_lanes_alone():
    """Three workers on a grid of three lanes: each shard has one reader, but at lanes' ends."""
    loader = loader_of(
        kept_corpus((8,) * 12),
        num_workers=3,
        batch_size=2,
        transform=with_worker,
        shuffle=sl.Shuffle(window=4),
        timeout=HANG_S,
    )
    readers: dict[int, set[int]] = {}
    for batch in loader:
        for number, worker in zip(
            batch["__index__"].tolist(), batch["worker"].tolist(), strict=True
        ):
            readers.setdefault(number // 8, set()).add(worker)
    assert sum(len(each) for each in readers.values()) <= 12 + 2


def with_worker(sample):
    info = get_worker_info()
    return {**sample, "worker": info.id if info else -1}


def test_killed_persistent_workers_are_replaced(tmp_path):
    script = Path(__file__).with_name("killed_worker.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(kept_corpus((40, 40))), "persistent"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "then 40 batches"


def test_persistent_workers_are_replaced_when_one_was_killed_while_the_loops_body_ran():
    script = Path(__file__).with_name("killed_between.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(kept_corpus((40, 40)))],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    raised, then = done.stdout.splitlines()
    assert re.search("RuntimeError DataLoader worker .* (killed by signal|exited)", raised)
    assert then == "then 40 batches"
