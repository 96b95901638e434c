"""Of a shard that was cut after it was indexed exactly the whole samples are there."""

from __future__ import annotations

import pytest

from shardloader.errors import ShardError
from shardloader.format.index import SampleIndex
from shardloader.reading.cut_shard import cut_shard
from tests.shards import sample_members, tar_bytes

MEMBERS = [
    ("a.txt", b"1" * 600),
    ("a.cls", b"1"),
    ("b.txt", b"2"),
    ("b.cls", b"2" * 512),
    ("c.cls", b""),
    ("c.txt", b"3" * 513),
    ("d/long" * 30 + ".txt", b"4"),
    ("e.txt", b"5"),
    ("e.cls", b"5"),
]
SHARD = tar_bytes(MEMBERS)
INDEX, _ = SampleIndex.build(SHARD, shard="x.tar")
ENDS = [
    int((INDEX.member_offsets + INDEX.member_sizes)[start:stop].max())
    for start, stop in zip(INDEX.sample_starts[:-1], INDEX.sample_starts[1:], strict=True)
]
CUTS = sorted({*range(0, len(SHARD), 97), *(end + by for end in ENDS for by in (-1, 0, 1))})


@pytest.mark.parametrize("cut", [each for each in CUTS if each < len(SHARD)])
def test_the_samples_that_end_before_the_cut_are_there_and_no_others(cut):
    whole = sum(end <= cut for end in ENDS)
    found = cut_shard(memoryview(SHARD[:cut]), INDEX, name="x.tar")
    if cut >= len(SHARD) - 512:  # the end marker is there, or a block of it: a sound archive
        return
    assert (0 if found is None else found.num_whole) == whole
    if found is None:
        return
    assert found.num_samples == 5
    for sample in range(whole):
        fields = found.fields(sample)
        start, stop = INDEX.sample_starts[sample : sample + 2]
        assert sum(map(len, fields.values())) == INDEX.member_sizes[start:stop].sum()
    for sample in range(whole, 5):
        with pytest.raises(ShardError, match=rf"{whole} of its 5 samples are whole") as raised:
            found.fields(sample)
        assert (raised.value.kind, raised.value.offset) == ("truncated", cut)
    assert found.layout(None) is None


@pytest.mark.parametrize(
    "other",
    [
        tar_bytes(MEMBERS[:4]),  # smaller, and whole
        tar_bytes(sample_members(4))[:5000],
        tar_bytes([("a.txt", b"1" * 601), *MEMBERS[1:]])[:5000],
        tar_bytes([("x.txt", b"1" * 600), *MEMBERS[1:]])[:5000],
        b"<html>" * 200,
        b"",
    ],
)
def test_another_shard_has_none_of_its_samples(other):
    assert len(other) < len(SHARD)
    assert cut_shard(memoryview(other), INDEX, name="x.tar") is None


@pytest.mark.parametrize("more", [0, 512])
def test_a_shard_that_is_not_shorter_was_not_cut(more):
    assert cut_shard(memoryview(SHARD + bytes(more)), INDEX, name="x.tar") is None
