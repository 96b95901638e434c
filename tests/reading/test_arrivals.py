"""Whole shards come behind a reader, one after another, and stop when nobody waits for them."""

from __future__ import annotations

import gc
import threading

import pytest

from shardloader.errors import WorldError
from shardloader.reading import arrivals as arrivals_module
from shardloader.reading.arrivals import Arrivals
from shardloader.reading.cache import Cache
from tests.reading.origins import FakeOrigin, fails_at
from tests.shards import sample_members, tar_bytes

HANG_S = 60
TAR = tar_bytes(sample_members(200))


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def origin(number, **options):
    return FakeOrigin(TAR, identity=f"fake://a/{number}.tar", **options)


def test_each_shard_is_fetched_once_in_the_order_asked_for(cache):
    origins = [origin(number) for number in range(3)]
    arrivals = Arrivals(origins.__getitem__, cache.tar)
    for number in (2, 0, 2, 1, 0):
        arrivals.ask(number)
    assert all(arrivals.wait(number, HANG_S) for number in range(3))
    assert [each.asked for each in origins] == [1, 1, 1]
    assert cache.use().tars == 3
    arrivals.close()


def test_what_can_not_be_fetched_is_done_too_and_the_next_ones_come(cache, caplog):
    caplog.set_level("INFO", "shardloader")
    origins = [origin(0, before=fails_at(0)), origin(1)]
    arrivals = Arrivals(origins.__getitem__, cache.tar)
    arrivals.ask(0)
    arrivals.ask(1)
    assert arrivals.wait(1, HANG_S)
    assert arrivals.is_done(0)
    assert "the connection was lost" in caplog.text
    assert cache.use().tars == 1
    arrivals.close()


@pytest.mark.parametrize("how", ["closed", "let go"])
def test_a_shard_that_nobody_waits_for_leaves_no_part(cache, how, monkeypatch):
    monkeypatch.setattr(arrivals_module, "_ENDING_S", 0.01)
    begun, go_on = threading.Event(), threading.Event()

    def before(number):
        begun.set()
        if number:
            assert go_on.wait(HANG_S)

    slow = origin(0, before=before)
    arrivals = Arrivals(lambda _: slow, cache.tar)
    arrivals.ask(0)
    arrivals.ask(1)
    assert begun.wait(HANG_S)
    (worker,) = [each for each in threading.enumerate() if each.name == "shardloader-arrivals"]
    if how == "closed":
        arrivals.close()
    del arrivals
    gc.collect()
    go_on.set()
    worker.join(HANG_S)
    assert not worker.is_alive()
    assert slow.asked == 1
    assert (cache.use().parts, cache.use().tars) == (0, 0)


def test_an_error_of_the_store_is_not_raised_in_the_thread_that_asks(cache):
    def missing(_):
        return origin(0, before=fails_at(0))

    arrivals = Arrivals(missing, cache.tar)
    arrivals.ask(0)
    assert arrivals.wait(0, HANG_S)
    with pytest.raises(WorldError, match="lost"):
        cache.tar(missing(0))
    arrivals.close()
