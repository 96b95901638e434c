"""Where samples lie: the same wherever the input was cut, and after being taken up anywhere."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import SampleError
from shardloader.writing.chunks import Frame, Head
from shardloader.writing.frames import Compression
from shardloader.writing.layout import Limits, Placer, Position
from shardloader.writing.tarring import tarred
from shardloader.writing.write import write_shards
from shardloader.writing.writer import ShardWriter
from tests.writing.inputs import EXPECTED, cut_small, shards
from tests.writing.reading_back import visible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardloader.writing.layout import Closed

SAMPLES = st.lists(
    st.tuples(st.sampled_from("abcdefghijklmnopqrstuvwxyz"), st.integers(1, 9)), max_size=40
)
LIMITS = st.builds(
    lambda samples, size: Limits(max_samples=samples, max_bytes=1024 + 512 * size),
    st.integers(1, 9),
    st.integers(1, 30),
)


def head(number: int, samples: Sequence[tuple[str, int]]) -> Head:
    return Head(
        number,
        0,
        keys=[key for key, _ in samples],
        sizes=[512 * size for _, size in samples],
        rows=list(range(len(samples))),
    )


def never(groups: Any) -> Any:
    raise AssertionError("only compressed chunks have frames")


def laid_out(placer: Placer, heads: list[Head], recut: Any = never) -> tuple[list[Any], list[Any]]:
    """Give each sample's (shard, offset), or None for one that comes again, and what was closed."""
    places: list[Any] = []
    closed: list[Closed] = []
    for each in heads:
        found: list[Any] = [None] * len(each.rows)
        placed = placer.place(each, recut)
        for run in placed.runs:
            at = run.offset
            for number in range(run.first, run.last):
                if run.frame is None:
                    found[number] = (run.shard, at)
                    at += each.sizes[number]
                elif number in run.frame.samples:
                    found[number] = (run.shard, run.offset, tuple(run.frame.samples))
        assert {number for number, place in enumerate(found) if place is None} >= set(placed.again)
        places += found
        closed += placed.closed
    last = placer.finish()
    return places, closed + ([last] if last else [])


def cut(samples: list[Any], cuts: list[int]) -> list[Head]:
    edges = sorted({0, len(samples), *(at % (len(samples) + 1) for at in cuts)})
    return [head(number, samples[a:b]) for number, (a, b) in enumerate(pairwise(edges))]


@given(SAMPLES, LIMITS, st.lists(st.integers(0, 100), max_size=6))
def test_wherever_the_input_is_cut_the_samples_lie_where_they_did(samples, limits, cuts) -> None:
    whole, closed = laid_out(Placer(limits), [head(0, samples)])
    pieces, also_closed = laid_out(Placer(limits), cut(samples, cuts))
    assert pieces == whole
    assert [each[:3] for each in also_closed] == [each[:3] for each in closed]


@given(SAMPLES, LIMITS)
def test_shards_are_full_and_not_too_full(samples, limits: Limits) -> None:
    places, closed = laid_out(Placer(limits), [head(0, samples)])
    by_shard: dict[int, list[int]] = {}
    for place, (_, size) in zip(places, samples, strict=True):
        if place is not None:
            shard, offset = place
            assert offset == sum(by_shard.setdefault(shard, []))
            by_shard[shard].append(512 * size)
    assert list(by_shard) == list(range(len(closed)))
    for each, sizes in zip(closed, by_shard.values(), strict=True):
        assert (each.num_samples, each.size_bytes) == (len(sizes), sum(sizes) + 1024)
        assert each.num_samples <= limits.max_samples
        assert each.size_bytes <= limits.max_bytes or each.num_samples == 1


@given(SAMPLES, LIMITS, st.lists(st.integers(0, 100), max_size=6), st.data())
def test_taken_up_after_any_shard_the_rest_is_what_it_was(samples, limits, cuts, data) -> None:
    heads = cut(samples, cuts)
    whole, closed = laid_out(Placer(limits), heads)
    if not closed:
        return
    at = data.draw(st.integers(0, len(closed) - 1))
    before = closed[at]
    again = Placer(limits, shard=at + 1, resume=before.end, last_key=before.last_key)
    rest, rest_closed = laid_out(again, heads)
    assert rest_closed == closed[at + 1 :]
    later = [place if place is not None and place[0] > at else None for place in whole]
    assert rest == later


class Packer:
    """Makes frames whose size is a third of their samples', as a compressor might."""

    def __init__(self, each: Head, step: int) -> None:
        self.head = each
        count = len(each.rows)
        each.frames = self([range(at, min(at + step, count)) for at in range(0, count, step)])

    def __call__(self, groups: Sequence[Sequence[int]]) -> list[Frame]:
        sizes = [sum(self.head.sizes[at] for at in group) for group in groups]
        pairs = zip(groups, sizes, strict=True)
        return [Frame(group, size // 3 + 7, size) for group, size in pairs if group]


def framed(samples: list[Any], compression: Compression, **options: Any) -> tuple[list[Any], ...]:
    each = head(0, samples)
    packer = Packer(each, compression.frame_samples)
    return laid_out(Placer(compression=compression, **options), [each], packer)


@given(SAMPLES, LIMITS, st.integers(1, 8))
def test_frames_fill_shards_exactly_and_hold_each_key_once(samples, limits, step: int) -> None:
    compression = Compression(frame_samples=step)
    places, closed = framed(samples, compression, limits=limits)
    in_shard: dict[int, list[str]] = {}
    for place, (key, _) in zip(places, samples, strict=True):
        if place is not None:
            in_shard.setdefault(place[0], []).append(key)
    for each, keys in zip(closed, in_shard.values(), strict=True):
        assert each.num_samples == len(keys) == len(set(keys)) <= limits.max_samples
    if len({key for key, _ in samples}) == len(samples) and limits.max_bytes > 15_000:
        assert all(each.num_samples == limits.max_samples for each in closed[:-1])
        assert None not in places


@given(SAMPLES, LIMITS, st.integers(1, 8), st.data())
def test_frames_taken_up_after_any_shard_are_what_they_were(samples, limits, step, data) -> None:
    compression = Compression(frame_samples=step)
    whole, closed = framed(samples, compression, limits=limits)
    if not closed:
        return
    at = data.draw(st.integers(0, len(closed) - 1))
    rest, rest_closed = framed(
        samples,
        compression,
        limits=limits,
        shard=at + 1,
        resume=closed[at].end,
        last_key=closed[at].last_key,
    )
    assert rest_closed == closed[at + 1 :]
    assert rest == [place if place is not None and place[0] > at else None for place in whole]


def test_a_part_before_the_position_is_passed_over() -> None:
    placer = Placer(Limits(max_samples=5, max_bytes=10**6), resume=Position(2, 0, 1))
    placed = placer.place(head(1, [("a", 1)]), never)
    assert placed.runs == []
    assert [run[:4] for run in placer.place(head(2, [("b", 1), ("c", 1)]), never).runs] == [
        (0, 0, 1, 2)
    ]


@pytest.mark.parametrize("limits", [{"max_samples": 7}, {"max_bytes": "20kB"}], ids=repr)
def test_a_program_that_writes_the_samples_makes_the_same_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    cut_small(monkeypatch)
    (tmp_path / "in").mkdir()
    write_shards(shards(tmp_path / "in"), tmp_path / "one", **limits)
    with ShardWriter(tmp_path / "two", **limits) as writer:
        for key, fields in EXPECTED:
            writer.write({"__key__": key, **fields})
    assert visible(tmp_path / "one") == visible(tmp_path / "two")


@given(SAMPLES, LIMITS)
def test_the_writer_follows_the_same_rule(tmp_path_factory, samples, limits: Limits) -> None:
    made = [{"__key__": key, "bin": b"x" * (512 * (size - 1))} for key, size in samples if size > 1]
    each = head(0, [(sample["__key__"], tarred(sample).size_bytes // 512) for sample in made])
    _, closed = laid_out(Placer(limits), [each])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        writer = ShardWriter(
            tmp_path_factory.mktemp("out"),
            max_samples=limits.max_samples,
            max_bytes=limits.max_bytes,
        )
        with writer:
            for sample in made:
                with suppress(SampleError):
                    writer.write(sample)
    assert writer.manifest.counts.tolist() == [shard.num_samples for shard in closed]
    assert writer.manifest.sizes.tolist() == [shard.size_bytes for shard in closed]
