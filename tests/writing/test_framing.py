from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from shardloader.errors import SampleError, UsageError
from shardloader.writing import framing
from shardloader.writing.frames import Compression, compress
from shardloader.writing.framing import Framing
from shardloader.writing.tarring import tar_of, tarred
from shardloader.writing.writer import ShardWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardloader.writing.tarring import TarredSample

COMPRESSION = Compression(frame_samples=3)


def sample(number: int, size: int = 200) -> TarredSample:
    return tarred({"__key__": f"{number:03d}", "bin": bytes([number]) * size})


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Iterator[Framing]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    made = Framing(COMPRESSION)
    yield made
    made.end()


def test_a_frame_is_full_by_samples_and_by_bytes(frames: Framing) -> None:
    frames.add(sample(0))
    frames.add(sample(1))
    assert not frames.is_full
    frames.add(sample(2))
    assert frames.is_full
    frames.pack()
    frames.add(sample(3, 17 << 20))
    assert frames.is_full


def test_samples_are_known_until_they_are_given_back(frames: Framing) -> None:
    for number in range(4):
        frames.add(sample(number))
        if frames.is_full:
            frames.pack()
    assert [*frames.keys] == ["000", "001", "002", "003"]
    packed = frames.next()
    assert packed is not None
    assert packed.keys == ["000", "001", "002"]
    assert packed.frame == compress(tar_of([sample(n) for n in range(3)]), COMPRESSION.level)
    assert packed.outline.data_bytes.tolist() == [200] * 3
    assert [*frames.keys] == ["000", "001", "002", "003"]  # of the open shard
    frames.begin_shard(packed)
    assert [*frames.keys] == ["000", "001", "002", "003"]
    frames.begin_shard()
    assert [*frames.keys] == ["003"]
    assert frames.next() is None  # what waits is no frame yet


def test_frames_come_back_in_order_though_a_later_one_is_ready_first(
    frames: Framing, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_is_there = threading.Event()

    def packed(tar: bytes, level: int) -> bytes:
        if b"000.bin" in tar:
            assert second_is_there.wait(60)
        else:
            second_is_there.set()
        return compress(tar, level)

    monkeypatch.setattr(framing, "compress", packed)
    for number in range(6):
        frames.add(sample(number))
        if frames.is_full:
            frames.pack()
    keys = [packed.keys for packed in (frames.next(), frames.next()) if packed is not None]
    assert keys == [["000", "001", "002"], ["003", "004", "005"]]


def test_a_fifth_frame_under_way_is_too_many_however_many_threads_there_are(
    frames: Framing,
) -> None:
    ahead = []
    for number in range(5):
        frames.add(sample(number))
        frames.pack()
        ahead.append(frames.is_ahead)
    assert ahead == [False] * 4 + [True]


def test_samples_like_the_one_before_are_taken_until_one_would_fill_the_frame(
    frames: Framing,
) -> None:
    def taken(number: int) -> bool:
        return frames.take({"__key__": f"{number:03d}", "bin": b"x"})

    frames.expect(("__key__", "bin"), 99)
    assert not taken(0)  # the first of a shard is looked at with care
    frames.add(sample(0))
    frames.expect(("__key__", "bin"), 99)
    assert [taken(number) for number in (1, 2)] == [True, False]
    frames.add(sample(2))
    frames.pack()
    assert not taken(3)
    frames.expect(("__key__", "bin"), 99)
    assert [taken(number) for number in (3, 1, 4, 5)] == [True, False, True, False]
    frames.expect(("__key__", "bin"), 6)
    assert not taken(5)  # it would fill the shard


def test_what_fails_beside_is_raised_when_its_frame_is_taken(
    frames: Framing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: bytes, __: int) -> bytes:
        raise UsageError("too long")

    monkeypatch.setattr(framing, "compress", refuse)
    frames.add(sample(0))
    frames.pack()
    with pytest.raises(UsageError, match="too long"):
        frames.next()


@pytest.mark.parametrize("limits", [{}, {"max_samples": 31}, {"max_bytes": 2000}])
def test_shards_do_not_depend_on_how_many_compress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    found, refused = [], list[tuple[int, str]]()
    for threads in (1, 3):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=threads: set(range(n)))
        folder = tmp_path / str(threads)
        with ShardWriter(folder, compression="zstd", frame_samples=4, **limits) as writer:
            for number in range(100):
                again = number - number % 9  # some keys come back
                key = f"{again if number % 7 == 0 else number:03d}"
                try:
                    writer.write({"__key__": key, "txt": f"text {number % 9}" * number})
                except SampleError:
                    refused.append((threads, key))
        found.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert found[0] == found[1]
    assert len(found[0]) > 3 or not limits
    keys = [[key for of, key in refused if of == threads] for threads in (1, 3)]
    assert keys[0] == keys[1] != []
