"""Processes find each other over a store: threads stand for them here, each with its own circle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch import distributed
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, TCPStore

import shardloader as sl
from shardloader.distributed import rendezvous
from shardloader.distributed.meeting import KEPT_MEETINGS, Circle, Meeting, Question
from shardloader.errors import WorldError
from shardloader.order.agreement import verdict

PATIENCE = timedelta(seconds=30)


def come(stores, circle, rank, world_size, stand, *, subject="an epoch", timeout_s=20.0, party=0):
    """What one process gets of a meeting: the stands, or what its error says."""
    store = stores[circle.process]  # a client's calls wait for each other: each has its own
    question = Question(
        rank=rank,
        world_size=world_size,
        subject=subject,
        stand=stand,
        verdict=verdict,
        timeout_s=timeout_s,
        party=party,
    )
    try:
        return Meeting(store, circle, question).hold()
    except sl.AgreementError as error:
        return str(error)


def meet_all(store, circles, stands, **options):
    """One meeting of one process a rank."""
    return meet_some(store, circles, range(len(circles)), len(circles), stands, **options)


def meet_some(store, circles, ranks, world_size, stands, **options):
    with ThreadPoolExecutor(len(circles)) as pool:
        coming = [
            pool.submit(come, store, circle, rank, world_size, stand, **options)
            for circle, rank, stand in zip(circles, ranks, stands, strict=True)
        ]
        return [each.result() for each in coming]


def circles_of(count):
    return [Circle(process=process) for process in range(count)]


@pytest.fixture(params=["hash", "tcp", "file"])
def store(request, tmp_path):
    """A store as each process has it."""
    if request.param == "hash":
        return [HashStore()] * 4
    if request.param == "file":
        return [PrefixStore("a", FileStore(str(tmp_path / "store"))) for _ in range(4)]
    host = TCPStore("127.0.0.1", 0, None, True, PATIENCE, False)
    clients = [TCPStore("127.0.0.1", host.port, None, False, PATIENCE, False) for _ in range(3)]
    return [PrefixStore("a", each) for each in (host, *clients)]


def test_all_hear_what_every_rank_stands_for_meeting_after_meeting(store):
    circles = circles_of(3)
    for number in range(5):
        stands = [{"epoch": number}] * 3
        assert meet_all(store, circles, stands) == [stands] * 3
    told = meet_all(store, circles, [{"epoch": 5}, {"epoch": 5}, {"epoch": 6}])
    assert len(set(told)) == 1
    assert "differ in epoch: 5 on ranks 0-1; 6 on rank 2" in told[0]


def test_a_difference_is_over_with_its_meeting(store):
    circles = circles_of(2)
    assert "differ in" in meet_all(store, circles, [{"seed": 1}, {"seed": 2}])[0]
    assert meet_all(store, circles, [{"seed": 1}] * 2) == [[{"seed": 1}] * 2] * 2


@pytest.mark.parametrize("came_before", [(0, 1), (1,), (0,)], ids=["both", "rank 1", "rank 0"])
@pytest.mark.parametrize("first", [0, 1])
def test_what_a_former_launch_said_in_the_same_store_is_not_heard(store, came_before, first):
    """torchrun gives restarted workers the store of those that failed."""
    former = circles_of(2)
    stands = [{"epoch": 7}, {"epoch": 7}]
    if len(came_before) == 2:
        assert meet_all(store, former, stands) == [stands] * 2
    else:  # the other failed before it came
        (rank,) = came_before
        assert "had not" in come(store, former[rank], rank, 2, {"epoch": 7}, timeout_s=0.1)
    present = circles_of(2)
    now = {"epoch": 8}
    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(come, store, present[first], first, 2, now)
        while not present[first].met:
            time.sleep(0.001)
        late = pool.submit(come, store, present[1 - first], 1 - first, 2, now)
        assert early.result() == late.result() == [now, now]
    assert meet_all(store, present, stands) == [stands] * 2


def test_a_meeting_of_another_kind_is_told_on_all_ranks(store):
    with ThreadPoolExecutor(2) as pool:
        one, other = circles_of(2)
        told = [
            pool.submit(come, store, one, 0, 2, {"epoch": 0}, subject="an epoch"),
            pool.submit(come, store, other, 1, 2, 12345, subject="log_samples"),
        ]
        first, second = (each.result() for each in told)
    assert first == second
    assert "an epoch on rank 0; log_samples on rank 1" in first
    assert "is it only one rank that evaluates?" in first


def test_loaders_that_read_the_same_and_are_not_the_same_are_told():
    store, circles = HashStore(), circles_of(2)
    with ThreadPoolExecutor(2) as pool:
        coming = [
            pool.submit(come, [store] * 2, circles[rank], rank, 2, {"epoch": 0}, party=rank + 1)
            for rank in (0, 1)
        ]
        first, second = (each.result() for each in coming)
    assert first == second
    assert "that of loader 1 on rank 0; that of loader 2 on rank 1" in first


def test_loaders_are_numbered_as_they_come_to_their_first_meeting():
    class Loader:
        pass

    circle, first, second = Circle(process=0), Loader(), Loader()
    assert [circle.number_of(each) for each in (first, second, first)] == [1, 2, 1]
    del first
    assert circle.number_of(Loader()) == 3  # no number is given twice


def test_ranks_that_do_not_come_are_told_to_all_that_did(store):
    begun = time.monotonic()
    told = meet_some(store, circles_of(2), (0, 2), 4, [{"epoch": 0}] * 2, timeout_s=1)
    assert len(set(told)) == 1
    assert "after 1 s ranks 1, 3 had not" in told[0]
    others = [PrefixStore("others", each) for each in store]
    told = come(others, Circle(process=3), 1, 2, {"epoch": 0}, timeout_s=1)
    assert "after 2 s rank 0 had not" in told
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("fresh", [2, 3])
def test_a_replica_that_differs_in_time_is_told_on_all_processes(fresh):
    """Ranks 0 and 1 of two processes each."""
    store, circles = [HashStore()] * 6, circles_of(4)
    stands = [{"consumed": 0 if process == fresh else 16} for process in range(4)]
    begun = time.monotonic()
    told = meet_some(store, circles, (0, 0, 1, 1), 2, stands)
    same = {"consumed": 16}
    again = meet_some(store, circles, (0, 0, 1, 1), 2, [same] * 4)
    for first, second in zip(told, again, strict=True):  # at once, or where it came too late, next
        assert sum("differ in consumed" in str(each) for each in (first, second)) >= 1
    assert isinstance(told[2], str) or isinstance(told[3], str)
    assert time.monotonic() - begun < 15  # nobody waits for its timeout, of 20 s
    assert meet_some(store, circles, (0, 0, 1, 1), 2, [same] * 4) == [[same, same]] * 4


def test_a_replica_that_differs_and_comes_late_is_told_to_the_others_at_the_next_meeting():
    store, circles = [HashStore()] * 6, circles_of(3)
    same = [{"consumed": 16}] * 2
    assert meet_some(store, circles[:2], (0, 1), 2, same) == [same] * 2
    told = come(store, circles[2], 1, 2, {"consumed": 0})
    assert told.endswith("load the same checkpoint on every rank, and skip() alike")
    assert "those of rank 1 differ in consumed: 16 on process 1; 0 on process 2" in told
    assert meet_some(store, circles, (0, 1, 1), 2, [*same, same[0]]) == [told] * 3
    assert meet_some(store, circles, (0, 1, 1), 2, [*same, same[0]]) == [same] * 3


def test_replicas_that_come_while_others_wait_need_not_be_waited_for():
    store, circles = [HashStore()] * 6, circles_of(6)
    for number in range(3):
        stand = {"epoch": number}
        told = meet_some(store, circles, (0, 1, 0, 1, 0, 1), 2, [stand] * 6)
        assert told == [[stand, stand]] * 6


def test_the_store_does_not_grow_with_the_meetings():
    store, circles = [HashStore()] * 6, circles_of(2)
    sizes = []
    for number in range(3 * KEPT_MEETINGS):
        stand = {"epoch": number}
        assert meet_all(store, circles, [stand] * 2) == [[stand] * 2] * 2
        sizes.append(store[0].num_keys())
    assert max(sizes[2 * KEPT_MEETINGS :]) == max(sizes[KEPT_MEETINGS + 1 : 2 * KEPT_MEETINGS])


def test_a_process_that_lags_behind_what_is_kept_is_told_so():
    store, circles = [HashStore()] * 6, circles_of(3)
    for _ in range(KEPT_MEETINGS + 2):
        meet_some(store, circles[:2], (0, 1), 2, [{"epoch": 0}] * 2)
    told = come(store, circles[2], 1, 2, {"epoch": 0})
    assert "process 2 comes to meeting 0 when number 2 is the earliest" in told


HOST = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=300), False)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def host():
    """A store that another process holds."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield process
        process.kill()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["ended", "silent"])
def test_a_store_whose_host_has_gone_is_an_error_in_time(host, end, monkeypatch):
    port = int(host.stdout.readline())
    store = TCPStore("127.0.0.1", port, None, False, PATIENCE, False)
    monkeypatch.setattr(rendezvous, "_store", lambda: store)
    monkeypatch.setattr(rendezvous, "SILENCE_S", 1.0)
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    topology = sl.Topology(rank=1, world_size=2)
    with ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        coming = pool.submit(
            rendezvous.meet,
            topology,
            {"epoch": 0},
            verdict,
            timeout_s=2.0 if end == signal.SIGSTOP else 60.0,
        )
        store_key = "shardloader/generation"
        other = TCPStore("127.0.0.1", port, None, False, PATIENCE, False)
        other.wait([store_key])  # it has begun to wait for the judge
        host.send_signal(end)
        with pytest.raises(WorldError, match=r"store of torch.distributed, and it (does not|was)"):
            coming.result(timeout=60)
    assert time.monotonic() - begun < 30


def test_the_private_function_that_gives_the_store_is_there(tmp_path, monkeypatch):
    """`torch.distributed.distributed_c10d._get_default_store`, on the torch that is installed."""
    from torch.distributed import distributed_c10d

    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        store = rendezvous._store()
        store.set("key", json.dumps([1]))
        assert json.loads(store.get("key")) == [1]
        assert rendezvous._store() is store  # circles are kept by it
    finally:
        distributed.destroy_process_group()
    monkeypatch.delattr(distributed_c10d, "_get_default_store")
    with pytest.raises(sl.MissingExtraError, match="has no _get_default_store"):
        rendezvous._store()
