from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import SampleError
from shardloader.format.index import SampleIndex
from shardloader.format.tar_header import END_OF_ARCHIVE, member_header, padding
from shardloader.writing import tarring
from shardloader.writing.encode import encode_sample
from shardloader.writing.shard_file import Contents
from shardloader.writing.tarring import tarred

KEYS = st.one_of(
    st.text("ab/é猫", min_size=1, max_size=8),
    st.integers(85, 110).map(lambda size: "k" * size),
    st.integers(140, 300).map(lambda size: "dir/" * 30 + "k" * (size - 120)),
)
FIELDS = st.dictionaries(
    st.sampled_from(["bin", "seg.png", "é", "x" * 20]), st.binary(max_size=1200), max_size=4
)


@given(st.lists(st.tuples(KEYS, FIELDS), max_size=5, unique_by=lambda each: each[0]))
def test_the_short_way_makes_the_bytes_and_the_index_of_the_long_one(samples) -> None:
    contents = Contents()
    quick, slow = b"", b""
    for key, fields in samples:
        sample = {"__key__": key, **fields}
        try:
            expected = encode_sample(sample)
        except SampleError:
            with pytest.raises(SampleError):
                tarred(sample)
            continue
        for field, data in expected.fields:
            slow += member_header(f"{key}.{field}", len(data)) + data + bytes(padding(len(data)))
        made = tarred(sample)
        assert made.size_bytes == sum(map(len, made.pieces))
        quick += b"".join(made.pieces)
        contents.add(made)
    assert quick == slow
    index, _ = SampleIndex.build(quick + END_OF_ARCHIVE, shard="s")
    assert contents.index().to_bytes() == index.to_bytes()


def test_sizes_that_no_ustar_header_can_say_take_the_long_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tarring, "USTAR_MAX_SIZE", 10)
    whole = tarred({"__key__": "k", "bin": b"x" * 11})
    assert b"".join(whole.pieces[:1]) == member_header("k.bin", 11)
