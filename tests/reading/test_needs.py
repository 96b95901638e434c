"""What is fetched next and what goes: decisions on numbers, against plainer ones."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.reading.cache_folder import CacheFolder, Entry
from shardloader.reading.needs import (
    FAR,
    HELD,
    Coming,
    Need,
    Needs,
    Pace,
    Room,
    next_to_fetch,
    removal_order,
    rows_at_once,
)
from shardloader.reading.needs_files import (
    FETCHED_AHEAD,
    NO_INDEX,
    NeedsFile,
    Told,
    least_depths,
    told_needs,
)

STEPS = st.lists(st.sets(st.integers(0, 6), max_size=4), min_size=1, max_size=30)


def block_of(steps: list[set[int]], first: int) -> list[Need]:
    shards = sorted(set().union(*steps))
    at = {s: [first + n for n, step in enumerate(steps) if s in step] for s in shards}
    return [Need(s, min(at[s]), max(at[s])) for s in shards]


@given(steps=STEPS, size=st.integers(1, 7), data=st.data())
def test_each_shard_that_a_coming_step_opens_is_needed_then(steps: Any, size: int, data: Any):
    """Whatever the blocks are, and however far the reader is when the next one is taken."""
    needs, at, taken = Needs(), 0, 0
    for first in range(0, len(steps), size):
        taken = min(first + size, len(steps))
        needs.take(block_of(steps[first : first + size], first), stop=taken)
        at = data.draw(st.integers(at, taken - 1))
        stop = data.draw(st.integers(at + 1, taken))
        needs.move_to(at, stop)
        coming = list(needs.coming())
        for step in range(at, taken):
            of_step = {n.shard for _, n in coming if n.first <= step <= n.last}
            assert steps[step] <= of_step
        assert [n.first for _, n in coming] == sorted(n.first for _, n in coming)
        now = [depth for depth, n in coming if n.first < needs.stop]
        later = [depth for depth, n in coming if n.first >= needs.stop]
        assert now == [0] * len(now)
        assert later == list(range(1, len(later) + 1))
        assert all(n.last >= at for _, n in coming)


def test_a_shard_that_comes_again_after_a_while_is_needed_twice():
    needs = Needs()
    for first, shards in ((0, {1, 2}), (10, {2, 3}), (20, {1})):
        needs.take([Need(s, first, first + 9) for s in sorted(shards)], stop=first + 10)
    assert [need for _, need in needs.coming()] == [
        Need(1, 0, 9),
        Need(2, 0, 19),
        Need(3, 10, 19),
        Need(1, 20, 29),
    ]


def test_a_shard_within_reach_goes_on_and_is_over_only_when_it_will_not_come_again():
    needs = Needs(reach=10)
    needs.take([Need(1, 0, 4), Need(2, 0, 9)], stop=10)
    needs.take([Need(2, 10, 10)], stop=14)
    assert needs.move_to(12, 13)
    assert [need.shard for _, need in needs.coming()] == [1, 2]  # 1 may come at step 14 still
    needs.take([Need(2, 18, 18)], stop=21)
    assert [(need, needs.end_of(need)) for _, need in needs.coming()] == [
        (Need(1, 0, 4), 4),
        (Need(2, 0, 18), FAR),
    ]
    assert needs.move_to(13, 14)
    assert [need.shard for _, need in needs.coming()] == [2]
    needs.end()
    assert [needs.end_of(need) for _, need in needs.coming()] == [18]


def test_a_shard_that_others_need_at_the_end_stays_to_the_end():
    needs = Needs(stay={1})
    needs.take([Need(1, 0, 4), Need(2, 0, 4)], stop=5)
    needs.end()
    assert [needs.end_of(need) for _, need in needs.coming()] == [FAR, 4]
    needs.move_to(1000, 1001)
    assert [(depth, need.shard) for depth, need in needs.coming()] == [(0, 1)]


def test_a_shard_is_kept_for_others_who_read_the_same_and_are_behind():
    needs = Needs(linger=8)
    needs.take([Need(1, 0, 4), Need(2, 0, 19)], stop=20)
    needs.end()
    for at, kept, told in ((5, [1, 2], 11), (11, [1, 2], 11), (12, [2], 26)):
        needs.move_to(at, at + 1)
        assert [(depth, need.shard) for depth, need in needs.coming()] == [(0, s) for s in kept]
        assert needs.told_end_of(next(needs.coming())[1]) == told
    ahead = Needs(linger=8)  # of what it is at itself, so that both together are no more
    ahead.take([Need(1, 0, 4), Need(2, 0, 19)], stop=20)
    ahead.move_to(5, 13)
    assert [need.shard for _, need in ahead.coming()] == [2]


def test_nothing_is_fetched_ahead_where_there_is_no_room_for_it():
    """Not even the first; its index counts, as does what is there anyway."""
    first, second = Coming(1, 50, 3, index_bytes=10), Coming(2, 50, 5, index_bytes=10)
    there = first._replace(is_there=True)
    for coming, room_bytes, shard in (
        ([first, second], 59, None),
        ([first, second], 60, 1),
        ([there, second], 119, None),
        ([there, second], 120, 2),
        ([Coming(3, 50, 0), first], 0, 3),  # what is needed now
    ):
        chosen = next_to_fetch(coming, bound_bytes=1000, pace=Pace(), room_bytes=room_bytes)
        assert (chosen and chosen.shard) == shard


def test_a_reader_has_its_part_for_all_that_it_needs_or_what_is_to_spare_for_what_comes():
    assert Room(100, 10).ahead_of(40) == 60
    assert Room(100, 10).ahead_of(95) == 10
    assert Room(0, 10).ahead_of(40) == 10


COMING = st.lists(
    st.builds(
        Coming,
        shard=st.integers(0, 99),
        num_bytes=st.integers(1, 50),
        steps=st.integers(0, 40),
        is_there=st.booleans(),
        is_possible=st.booleans(),
        index_bytes=st.integers(0, 9),
    ),
    unique_by=lambda each: each.shard,
    max_size=12,
).map(lambda found: sorted(found, key=lambda each: each.steps))
PACES = st.builds(
    Pace,
    a_step=st.none() | st.floats(0, 10),
    a_byte=st.none() | st.floats(0, 10),
)


@given(coming=COMING, bound=st.integers(0, 200), pace=PACES, only_now=st.booleans())
def test_what_is_fetched_is_the_first_that_is_missing_and_within_the_bound(
    coming: Any, bound: int, pace: Any, only_now: bool
):
    chosen = next_to_fetch(coming, bound_bytes=bound, pace=pace, only_now=only_now)
    missing = [each for each in coming if each.is_possible and not each.is_there]
    if chosen is None:
        # What is needed now, and the one shard that a reader may always be ahead, never waits.
        assert not [each for each in missing if each.steps == 0]
        later = [each for each in coming if each.steps > 0]
        assert only_now or not later or later[0] not in missing
        return
    assert chosen == missing[0]
    if chosen.steps > 0:
        assert not only_now
        before = [each for each in coming[: coming.index(chosen)] if each.steps > 0]
        ahead = sum(each.num_bytes for each in before)
        assert not ahead or ahead + chosen.num_bytes <= bound
        to_fetch = list(accumulate(each.num_bytes for each in missing))
        assert not ahead or any(
            pace.is_time(steps=each.steps, num_bytes=so_many)
            for each, so_many in zip(missing, to_fetch, strict=True)
        )


def test_of_several_that_it_is_time_for_together_the_first_is_fetched_first():
    """Though it alone would still be in time: the others wait for it."""
    later = [Coming(1, 10, 5, is_there=True), Coming(2, 10, 10), Coming(3, 40, 11)]
    pace = Pace(a_step=5.0, a_byte=1.0)
    assert not pace.is_time(steps=10, num_bytes=10)
    assert pace.is_time(steps=11, num_bytes=10 + 40)
    chosen = next_to_fetch(later, bound_bytes=1000, pace=pace)
    assert chosen is not None
    assert chosen.shard == 2


def test_a_fetch_begins_when_it_is_still_in_time_and_not_long_before():
    later = [Coming(1, 100, 5, is_there=True), Coming(2, 100, 1000)]
    slow, quick = Pace(a_step=1.0, a_byte=1.0), Pace(a_step=1.0, a_byte=0.01)
    assert next_to_fetch(later, bound_bytes=1000, pace=quick) is None
    chosen = next_to_fetch(later, bound_bytes=1000, pace=slow._replace(a_byte=3.0))
    assert chosen is not None
    assert chosen.shard == 2
    assert not Pace(a_step=1.0, a_byte=1.0).is_time(steps=401, num_bytes=100)
    assert Pace(a_step=1.0, a_byte=1.0).is_time(steps=400, num_bytes=100)


ROWS = st.integers(1, 4).flatmap(
    lambda size: st.lists(st.lists(st.integers(0, 6), min_size=size, max_size=size), max_size=40)
)


@given(rows=ROWS, bound=st.integers(0, 60))
def test_rows_that_a_reader_is_at_together_open_no_more_than_its_share(rows: Any, bound: int):
    """But the first one is always there, with a quarter more than that takes alone."""
    opened = [10 * len(set().union(*rows[: stop + 1])) for stop in range(len(rows))]
    most = max(bound, opened[0] * 5 // 4) if rows else 0
    shards = np.array(rows, dtype=np.int64).reshape(len(rows), -1 if rows else 1)
    found = rows_at_once(shards, lambda each: np.full(len(each), 10), bound_bytes=bound)
    assert found == sum(each <= most for each in opened)
    assert found >= min(1, len(rows))


def test_rows_of_shards_that_take_no_room_are_all_read_at_once():
    rows = np.arange(1000).reshape(100, 10)
    assert rows_at_once(rows, np.zeros_like, bound_bytes=0) == 100


KEYS = [bytes([n]) * 16 for n in range(6)]
ENTRIES = st.lists(
    st.builds(
        lambda key, used, part: Entry(
            f"{key.hex()}{'0' * 32}.{'part' if part else 'cached'}", 1, used
        ),
        st.sampled_from(KEYS),
        st.integers(0, 5),
        st.booleans(),
    ),
    max_size=8,
)
DEPTHS = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 4).map(float))


@given(entries=ENTRIES, depths=DEPTHS, below=st.sampled_from([-1.0, 0.0, 2.0]))
def test_what_is_needed_last_goes_first_and_then_the_least_recently_used(
    entries: Any, depths: Any, below: float
):
    order = removal_order(entries, depths, below=below)
    ranks = [(-depths.get(entry.key, math.inf), entry.used_ns) for entry in order]
    assert ranks == sorted(ranks)
    may_go = [e for e in entries if not e.is_part and depths.get(e.key, math.inf) > below]
    assert sorted(order) == sorted(may_go)


@given(needs=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 9), st.integers(0, 5))))
def test_depths_told_in_a_file_are_those_that_the_reader_counts(
    tmp_path_factory: pytest.TempPathFactory, needs: Any
):
    folder = tmp_path_factory.mktemp("needs")
    told = sorted(((key, first, first + more) for key, first, more in needs), key=lambda x: x[1])
    file = NeedsFile(folder)
    file.tell(0, 1, [Told(key, NO_INDEX, first, last) for key, first, last in told])
    file.move_to(3, 5)
    counted = Needs()
    counted.start, counted.stop = 3, 5
    counted._needs = [Need(KEYS.index(k), first, last) for k, first, last in told if last >= 3]
    expected: dict[bytes, float] = {}
    for depth, need in counted.coming():
        expected.setdefault(KEYS[need.shard], depth)
    assert told_needs(folder) == [expected]
    file.close()
    assert told_needs(folder) == []
    assert list(folder.iterdir()) == []


def told_of(key, first, last):
    return Told(KEYS[key], NO_INDEX, first, last)


def test_what_several_readers_need_counts_by_the_one_who_needs_it_first(tmp_path):
    first, second = NeedsFile(tmp_path), NeedsFile(tmp_path)
    first.tell(0, 1, [told_of(0, 0, 5), told_of(1, 3, 5), told_of(2, 4, 5)])
    second.tell(70, 71, [told_of(2, 70, 80), Told(KEYS[3], KEYS[4], 90, 91)])
    depths = least_depths(told_needs(tmp_path))
    assert depths == {KEYS[0]: 0, KEYS[1]: 1, KEYS[2]: 0, KEYS[3]: 1, KEYS[4]: 1}
    first.close()
    second.close()


def test_what_was_fetched_ahead_goes_after_all_that_is_needed_later_and_before_what_is_open(
    tmp_path,
):
    file = NeedsFile(tmp_path)
    file.tell(0, 1, [told_of(0, 0, 5), told_of(1, FETCHED_AHEAD, 6), told_of(2, 4, 5)])
    depths = least_depths(told_needs(tmp_path))
    assert depths == {KEYS[0]: 0, KEYS[1]: HELD, KEYS[2]: 2}
    entries = [Entry(f"{key.hex()}{'0' * 32}.cached", 1, 0) for key in KEYS[:4]]
    order = [KEYS.index(entry.key) for entry in removal_order(entries, depths)]
    assert order == [3, 2, 1, 0]
    file.close()


@pytest.mark.parametrize("data", [b"", b"needs 1\n", b"needs 1\n" + bytes(40), b"x" * 99])
def test_a_file_that_is_no_list_of_needs_tells_nothing(tmp_path, data):
    """Or half a one: these are hints."""
    file = NeedsFile(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(data)
    assert least_depths(told_needs(tmp_path)) == {}
    file.close()


def test_a_folder_that_is_not_there_tells_and_is_told_nothing(tmp_path):
    file = NeedsFile(tmp_path / "not there")
    file.tell(0, 1, [told_of(0, 0, 5)])
    file.move_to(1, 2)
    file.close()
    assert told_needs(tmp_path / "not there") == []
    assert CacheFolder(tmp_path / "not there").keys() == set()
