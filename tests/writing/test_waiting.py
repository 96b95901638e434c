"""What is taken in a moment becomes what is looked at with care: bytes, errors, counts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from shardloader.errors import SampleError
from shardloader.writing import shard_file
from shardloader.writing.tarring import tarred
from shardloader.writing.waiting import Waiting
from shardloader.writing.writer import ShardWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KEYS = st.one_of(
    st.integers(0, 30).map("{:04d}".format),
    st.text("a1_/", min_size=1, max_size=3),
    st.sampled_from(["é", "__a", "a.b", "k" * 95, "k" * 300, "", None]),
)
VALUES = st.one_of(st.binary(max_size=1100), st.binary(max_size=5), st.sampled_from(["é", 3]))
KINDS = st.sampled_from(
    [("bin", "txt"), ("txt", "bin"), ("bin",), ("é", "txt"), ("x" * 20, "json"), ("BIN",), ()]
)


@st.composite
def datasets(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Samples that mostly have the fields of the one before."""
    samples = list[dict[str, Any]]()
    for _ in range(draw(st.integers(0, 4))):
        fields = draw(KINDS)
        for key in draw(st.lists(KEYS, max_size=8)):
            sample = {name: draw(VALUES) for name in fields}
            samples.append({"__key__": key, **sample} if key is not None else sample)
    return samples


def written(folder: Path, samples: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
    """Everything that can be seen of a writer that is given the samples."""
    seen: list[tuple[int, int, str]] = []
    with ShardWriter(folder, **options) as writer:
        for sample in samples:
            try:
                writer.write(sample)
                refused = ""
            except SampleError as error:
                refused = str(error)
            seen.append((writer.num_samples, writer.total_bytes, refused))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {"seen": seen, "shards": writer.num_shards, "files": files}


@given(
    datasets(), st.integers(1, 9), st.integers(1, 20_000), st.sampled_from([1, 3000, 9000, 1 << 20])
)
def test_shards_and_refusals_are_those_of_samples_that_are_looked_at_with_care(
    samples: list[dict[str, Any]], max_samples: int, max_bytes: int, buffer_bytes: int
) -> None:
    options = {"max_samples": max_samples, "max_bytes": max_bytes}
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(shard_file, "_BUFFER_BYTES", buffer_bytes),
    ):
        quick = written(Path(folder) / "quick", samples, **options)
        # none of these is a dict, which alone is taken in a moment
        slow = written(Path(folder) / "slow", list(map(MappingProxyType, samples)), **options)
    assert quick == slow
    event(f"shards: {min(quick['shards'], 3)}")


def expecting(sample: dict[str, Any], *, max_samples: int = 99, num_bytes: int = 1 << 20):
    waiting = Waiting({})
    waiting.add(tarred(sample))
    waiting.expect(tuple(sample), max_samples=max_samples, num_bytes=num_bytes)
    return waiting


FIRST = {"__key__": "0", "bin": b"x", "txt": b"y"}


@pytest.mark.parametrize(
    "sample",
    [
        {"__key__": "0", "bin": b"", "txt": b""},
        {"__key__": "1", "txt": b"", "bin": b""},
        {"__key__": "1", "bin": b""},
        {"__key__": "é", "bin": b"", "txt": b""},
        {"__key__": "k" * 97, "bin": b"", "txt": b""},
        {"__key__": 1, "bin": b"", "txt": b""},
        {"__key__": "1", "bin": bytes(1 << 20), "txt": b""},
        MappingProxyType({"__key__": "1", "bin": b"", "txt": b""}),
        None,
    ],
    ids=lambda sample: str(sample)[:40],
)
def test_a_sample_that_is_not_as_expected_is_left_to_others(sample: object) -> None:
    waiting = expecting(FIRST)
    before = (len(waiting), waiting.num_bytes, dict(waiting.keys))
    assert not waiting.take(sample)
    assert (len(waiting), waiting.num_bytes, waiting.keys) == before


def test_a_sample_with_a_value_that_cannot_be_encoded_is_refused_and_leaves_nothing() -> None:
    waiting = expecting(FIRST)
    before = (len(waiting), waiting.num_bytes, dict(waiting.keys))
    with pytest.raises(SampleError, match=r"'1'.*'txt'.*int"):
        waiting.take({"__key__": "1", "bin": b"", "txt": 3})
    assert (len(waiting), waiting.num_bytes, waiting.keys) == before


def test_no_more_samples_and_bytes_are_taken_than_were_allowed() -> None:
    waiting = expecting(FIRST, max_samples=3)
    taken = [waiting.take({**FIRST, "__key__": str(number)}) for number in range(1, 5)]
    assert taken == [True, True, False, False]
    assert (len(waiting), waiting.num_bytes) == (3, 3 * 2048)
    waiting = expecting(FIRST, num_bytes=2 * 2048 + 1)
    taken = [waiting.take({**FIRST, "__key__": str(number)}) for number in range(1, 5)]
    assert taken == [True, True, False, False]
    assert (len(waiting), waiting.num_bytes) == (3, 3 * 2048)


def test_nothing_is_taken_where_nothing_is_expected() -> None:
    assert not Waiting({}).take(FIRST)
    mixed = expecting(FIRST)
    mixed.add(tarred({"__key__": "1", "other": b""}))
    mixed.expect(tuple(FIRST), max_samples=9, num_bytes=9999)
    assert not mixed.take({**FIRST, "__key__": "2"})
    assert [sample.key for sample in mixed.samples] == ["0", "1"]
