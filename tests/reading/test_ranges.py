"""Which requests fetch stretches of shards: each stretch by one, none larger than need be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardloader.reading.ranges import Request, Stretches, coalesce

GAP, MOST = 10, 60
STRETCHES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 300), st.integers(0, 80)), max_size=40
)


def columns(stretches):
    shard, start, size = np.array(stretches, dtype=np.int64).reshape(-1, 3).T
    return shard, start, start + size


@given(STRETCHES)
def test_every_stretch_lies_in_one_request_and_none_is_larger_or_nearer_than_said(stretches):
    shard, starts, stops = columns(stretches)
    requests = coalesce(shard, starts, stops, gap_bytes=GAP, most_bytes=MOST)
    rows = [row for row in zip(shard, starts, stops, strict=True) if row[2] > row[1]]
    for of, start, stop in rows:
        holders = [
            each for each in requests if each.shard == of and each.start <= start < each.stop
        ]
        assert any(each.stop >= stop for each in holders)
    for each in requests:
        inside = [row for row in rows if row[0] == each.shard and row[1] >= each.start]
        assert each.num_bytes <= MOST or any(
            row[2] - row[1] >= each.num_bytes - GAP - MOST for row in inside
        )
        covered = {n for _, start, stop in inside for n in range(start, stop)}
        bare = [n not in covered for n in range(each.start, each.stop)]
        assert not bare[0]
        assert not bare[-1]
        assert "1" * (GAP + 1) not in "".join(str(int(is_bare)) for is_bare in bare)


@given(STRETCHES)
@example([(0, 0, 61), (0, 0, 50)])
def test_what_was_fetched_gives_the_bytes_of_every_stretch(stretches):
    data = np.random.default_rng(0).bytes(400)
    shard, starts, stops = columns(stretches)
    requests = coalesce(shard, starts, stops, gap_bytes=GAP, most_bytes=MOST)
    for number in range(4):
        own = [each for each in requests if each.shard == number]
        found = Stretches(
            [each.start for each in own], [data[each.start : each.stop] for each in own]
        )
        for of, start, stop in zip(shard, starts, stops, strict=True):
            if of == number:
                assert found[start:stop] == data[start:stop]


def test_near_stretches_come_by_one_request_up_to_the_most_bytes():
    shard, starts, stops = columns([(1, 0, 20), (1, 30, 20), (1, 55, 10), (2, 70, 5)])
    assert coalesce(shard, starts, stops, gap_bytes=GAP, most_bytes=MOST) == [
        Request(shard=1, start=0, stop=50),
        Request(shard=1, start=55, stop=65),
        Request(shard=2, start=70, stop=75),
    ]


@pytest.mark.parametrize("of", [slice(0, 5), slice(10, 25), slice(30, 31), slice(15, 21)])
def test_bytes_that_were_not_fetched_are_an_error(of):
    with pytest.raises(IndexError, match="not fetched"):
        Stretches([10], [b"0123456789"])[of]
