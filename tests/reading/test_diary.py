"""What a thread writes of itself can be read by others, at any moment and in another process."""

from __future__ import annotations

import itertools
import pickle
import threading
from contextlib import suppress

from shardloader.reading.cache import Cache
from shardloader.reading.counts import Counts
from shardloader.reading.diary import UNKNOWN, Diary, Page, Stage
from tests.reading.origins import MB, origin_of


def diary_of(*moments):
    return Diary(clock_ns=iter(moments or itertools.count(1)).__next__)


def test_a_page_says_what_its_thread_does_and_since_when():
    diary = diary_of(1_000)
    diary.page.begin(Stage.TRANSFORMING, shard=3, index=40)
    doing = diary.page.read()
    assert (doing.stage, doing.shard, doing.index) == (Stage.TRANSFORMING, 3, 40)
    assert doing.since_ns == 1_000


def test_what_was_done_before_goes_on_afterwards():
    page = diary_of(1, 2, 3).page
    page.begin(Stage.OPENING, shard=7)
    with page.within(Stage.FETCHING, total=90) as inner:
        inner.at_byte(30)
        doing = page.read()
        assert (doing.stage, doing.shard, doing.done, doing.total) == (Stage.FETCHING, 7, 30, 90)
        with suppress(ZeroDivisionError), page.within(Stage.ROOM):
            assert page.read().stage == Stage.ROOM
            _ = 1 / 0
        assert page.read().done == 30
    doing = page.read()
    assert (doing.stage, doing.shard, doing.since_ns, doing.total) == (Stage.OPENING, 7, 1, 0)


def test_memory_that_nobody_has_written_says_that_a_worker_is_starting():
    doing = Page(memoryview(bytearray(64)).cast("q")).read()
    assert (doing.stage, doing.made, doing.since_ns) == (Stage.STARTING, 0, 0)


def test_each_thread_has_a_page_of_its_own():
    diary = Diary()
    diary.page.begin(Stage.OPENING, shard=1)
    other = threading.Thread(target=lambda: diary.page.begin(Stage.DECODING, shard=2))
    other.start()
    other.join()
    assert sorted(page.read().shard for page in diary.pages().values()) == [1, 2]
    assert diary.page.read().stage == Stage.OPENING


def test_a_pass_that_starts_has_made_nothing_and_forgets_threads_that_have_ended():
    diary = Diary()
    other = threading.Thread(target=lambda: diary.page.made(5))
    other.start()
    other.join()
    diary.page.made(2)
    diary.start_pass()
    assert [page.read().made for page in diary.pages().values()] == [0]
    assert diary.page.read().shard == UNKNOWN


def test_a_copy_for_another_process_is_empty():
    diary = Diary()
    diary.counts.add(retries=1)
    diary.page.begin(Stage.OPENING, shard=1)
    copy = pickle.loads(pickle.dumps(diary))
    assert copy.counts.now == Counts()
    assert copy.page.read().shard == 0


def test_the_cache_counts_what_it_had_and_what_it_had_to_write(tmp_path):
    cache, diary = Cache(tmp_path, max_bytes=20 * MB), Diary()
    for number in (0, 1, 0):
        cache.tar(origin_of(number), diary=diary)
    assert diary.counts.now == Counts(cache_hits=1, cache_misses=2)


def test_who_waits_for_room_in_the_cache_says_so(tmp_path):
    cache, diary = Cache(tmp_path, max_bytes=9 * MB), Diary()
    held = [cache.tar(origin_of(number, size=4 * MB)) for number in range(2)]
    found = threading.Thread(
        target=lambda: cache.tar(origin_of(9, size=4 * MB), diary=diary, patience_s=60)
    )
    found.start()
    waited = threading.Event()

    def stages():
        return [page.read().stage for page in diary.pages().values()]

    while Stage.ROOM not in stages():
        assert not waited.wait(0.002)
        assert found.is_alive()
    held.clear()
    found.join(60)
    assert not found.is_alive()


def test_who_waits_for_another_writer_says_that_it_waits_for_a_lock(tmp_path):
    cache, diary = Cache(tmp_path, max_bytes=9 * MB), Diary()
    begun, go = threading.Event(), threading.Event()

    def before(_):
        begun.set()
        assert go.wait(60)

    writer = threading.Thread(target=lambda: cache.tar(origin_of(1, before=before)))
    writer.start()
    assert begun.wait(60)
    other = threading.Thread(target=lambda: cache.tar(origin_of(1), diary=diary))
    other.start()
    while Stage.LOCK not in [page.read().stage for page in diary.pages().values()]:
        assert other.is_alive()
    go.set()
    for thread in (writer, other):
        thread.join(60)
    assert diary.counts.now == Counts(cache_hits=1)  # it wrote nothing
