"""What is kept of unpacked frames is what was used last, within a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardloader.reading.kept_frames import FrameName, KeptFrames

MOST = 40


def name(frame, shard=0, version="1"):
    return FrameName(shard, version, frame)


def test_what_was_used_last_stays():
    kept = KeptFrames(most_bytes=3)
    for frame in range(3):
        kept.keep(name(frame), b"x")
    assert kept.get(name(0)) == b"x"
    kept.keep(name(3), b"y")
    assert [kept.get(name(frame)) for frame in range(4)] == [b"x", None, b"x", b"y"]


def test_what_is_larger_than_all_that_may_be_kept_is_not():
    kept = KeptFrames(most_bytes=3)
    kept.keep(name(0), b"abc")
    kept.keep(name(1), b"abcd")
    assert kept.get(name(0)) == b"abc"
    assert kept.get(name(1)) is None


def test_frames_of_another_version_or_shard_are_others():
    kept = KeptFrames(most_bytes=30)
    kept.keep(name(0), b"old")
    assert kept.get(name(0, version="2")) is None
    assert kept.get(name(0, shard=1)) is None


def test_a_shard_is_let_go_and_then_all():
    kept = KeptFrames(most_bytes=30)
    kept.keep(name(0), b"one")
    kept.keep(name(0, shard=1), b"two")
    kept.let_go(0)
    assert (kept.get(name(0)), kept.num_bytes) == (None, 3)
    kept.clear()
    assert (kept.get(name(0, shard=1)), kept.num_bytes) == (None, 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60))))
def test_it_never_keeps_more_than_its_limit_nor_another_s_bytes(steps):
    kept = KeptFrames(most_bytes=MOST)
    sizes: dict[int, int] = {}
    for frame, size in steps:
        sizes.setdefault(frame, size)
        kept.keep(name(frame), bytes((frame,)) * sizes[frame])
        found = {each: kept.get(name(each)) for each in range(10)}
        held = {each: data for each, data in found.items() if data is not None}
        assert all(data == bytes((each,)) * sizes[each] for each, data in held.items())
        assert sum(map(len, held.values())) == kept.num_bytes <= MOST
