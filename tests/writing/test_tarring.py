from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import SampleError
from shardloader.format.index import SampleIndex
from shardloader.format.tar_header import END_OF_ARCHIVE, member_header, padding
from shardloader.writing import tarring
from shardloader.writing.contents import Contents, outline_alike, outline_of
from shardloader.writing.encode import encode_sample
from shardloader.writing.tarring import TarredSample, members_of, pieces_of, tar_of, tarred

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
    made, slow = list[TarredSample](), b""
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
        made.append(tarred(sample))
        assert len(tar_of(made[-1:])) == made[-1].size_bytes
    quick = tar_of(made)
    assert quick == slow
    if made:
        contents.add(outline_of(made))
        contents.keys.update((sample.key, None) for sample in made)
    index, _ = SampleIndex.build(quick + END_OF_ARCHIVE, shard="s")
    assert contents.index().to_bytes() == index.to_bytes()


def test_sizes_that_no_ustar_header_can_say_take_the_long_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tarring, "USTAR_MAX_SIZE", 10)
    whole = tarred({"__key__": "k", "bin": b"x" * 11})
    assert tar_of([whole]).startswith(member_header("k.bin", 11))


def test_pieces_joined_are_the_tar_however_many_there_are() -> None:
    for count in (1, 15, 16, 40):
        samples = [
            tarred({"__key__": f"{number:03d}", "bin": b"x" * number, "txt": b"y" * 600})
            for number in range(count)
        ]
        assert b"".join(pieces_of(samples)) == tar_of(samples)
        long = tarred({"__key__": "k" * 200, "bin": b"z"})
        mixed = [*samples, long, samples[0]]
        whole = b"".join(tar_of([sample]) for sample in mixed)
        assert b"".join(pieces_of(mixed)) == tar_of(mixed) == whole


def test_some_of_an_outline_is_the_outline_of_some() -> None:
    samples = [
        tarred({"__key__": key, "bin": bytes(number), **({"é": b"t"} if number % 3 else {})})
        for number, key in enumerate(["a", "b", "k" * 200, "c", "猫", "d", "e"])
    ]
    whole = outline_of(samples)
    for some in (range(7), range(2, 5), [0], [0, 2, 3, 6], range(0)):
        chosen = [samples[at] for at in some]
        full, taken = Contents(), Contents()
        for contents, outline in ((full, outline_of(chosen)), (taken, whole.take(some))):
            contents.keys.update((sample.key, None) for sample in chosen)
            if chosen:
                contents.add(outline)
        assert full.index().to_bytes() == taken.index().to_bytes()


def test_the_outline_of_samples_that_are_alike_is_known_from_sizes() -> None:
    samples = [tarred({"__key__": str(i), "bin": bytes(i), "txt": b"t"}) for i in range(5)]
    members = members_of(samples)
    alike, known = outline_alike(("bin", "txt"), members.sizes), outline_of(samples)
    assert alike.kinds == known.kinds
    for one, other in zip(alike[1:], known[1:], strict=True):
        assert one.tolist() == other.tolist()
