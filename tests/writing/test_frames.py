from __future__ import annotations

import io
import struct
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import tar_file_iterator

from shardloader.errors import UsageError
from shardloader.format.index import SampleIndex
from shardloader.format.seek_table import seek_table
from shardloader.format.tar_header import END_OF_ARCHIVE
from shardloader.writing import frames
from shardloader.writing.chunks import Recipe, chunks_of
from shardloader.writing.frames import Compression, compress
from shardloader.writing.sources.mapping import parse_choice
from shardloader.writing.sources.opening import open_source
from shardloader.writing.sources.tar_files import TarShards
from shardloader.writing.tarring import tarred
from shardloader.writing.write import write_shards
from shardloader.writing.writer import ShardWriter
from tests.writing.reading_back import manifest_of, read_dataset, tar_of

if TYPE_CHECKING:
    from pathlib import Path


def sample(number: int, size: int = 300) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    return {"__key__": f"{number:05d}", "bin": rng.bytes(size), "txt": f"text {number}"}


def write(folder: Path, count: int, **options: Any) -> ShardWriter:
    with ShardWriter(folder, compression="zstd", **options) as writer:
        for number in range(count):
            writer.write(sample(number))
    return writer


def table_of(data: bytes) -> list[tuple[int, int]]:
    """Read a seek table as its format says (zstd's contrib/seekable_format)."""
    count, flags, magic = struct.unpack("<IBI", data[-9:])
    assert (flags, magic) == (0, 0x8F92EAB1)
    start = len(data) - 9 - 8 * count - 8
    assert struct.unpack("<II", data[start : start + 8]) == (0x184D2A5E, 8 * count + 9)
    entries = np.frombuffer(data[start + 8 : -9], "<u4").reshape(count, 2)
    assert int(entries[:, 0].sum()) == start
    return [(int(packed), int(plain)) for packed, plain in entries]


def test_every_frame_stands_alone_with_size_and_checksum(tmp_path: Path) -> None:
    write(tmp_path, 100, frame_samples=8, max_samples=50)
    data = (tmp_path / "shard-000000.tar.zst").read_bytes()
    at, plain = 0, b""
    table = table_of(data)
    for packed_bytes, plain_bytes in table:
        frame = data[at : at + packed_bytes]
        about = zstandard.get_frame_parameters(frame)
        assert (about.content_size, about.has_checksum) == (plain_bytes, True)
        plain += zstandard.ZstdDecompressor().decompress(frame)
        at += packed_bytes
    assert plain == tar_of(tmp_path / "shard-000000.tar.zst")
    assert len(table) == 7 + 1  # 50 samples of 8 a frame, and the archive's end
    assert plain.endswith(END_OF_ARCHIVE)


def test_a_sample_is_read_by_unpacking_one_frame(tmp_path: Path) -> None:
    write(tmp_path, 100, frame_samples=8)
    data = (tmp_path / "shard-000000.tar.zst").read_bytes()
    index_bytes = (tmp_path / "shard-000000.tar.zst.index").read_bytes()
    index = SampleIndex.from_buffer(index_bytes, name="index")
    table = np.array(table_of(data))
    starts = np.concatenate(([0], np.cumsum(table[:, 1])))
    packed_starts = np.concatenate(([0], np.cumsum(table[:, 0])))
    for number in (0, 7, 8, 55, 99):
        member = int(index.sample_starts[number])
        offset, size = int(index.member_offsets[member]), int(index.member_sizes[member])
        frame = int(np.searchsorted(starts, offset, "right")) - 1
        packed = data[packed_starts[frame] : packed_starts[frame + 1]]
        plain = zstandard.ZstdDecompressor().decompress(packed)
        start = offset - int(starts[frame])
        assert plain[start : start + size] == sample(number)["bin"]


def test_the_index_is_that_of_the_tar_and_the_manifest_that_of_the_file(tmp_path: Path) -> None:
    manifest = write(tmp_path, 30, max_samples=10).manifest
    for name, size, digest in zip(
        manifest.names, manifest.sizes.tolist(), manifest.index_digests, strict=True
    ):
        index, notices = SampleIndex.build(tar_of(tmp_path / name), shard=name)
        assert not notices
        assert index.digest == digest
        kept = (tmp_path / f"{name}.index").read_bytes()
        assert SampleIndex.from_buffer(kept, name=name).digest == digest
        assert (tmp_path / name).stat().st_size == size


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_tarfile_and_webdataset_read_the_stream(tmp_path: Path) -> None:
    write(tmp_path, 30, frame_samples=4)
    with (tmp_path / "shard-000000.tar.zst").open("rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        found = [each["fname"] for each in tar_file_iterator(stream)]
    assert found == [f"{n:05d}.{field}" for n in range(30) for field in ("bin", "txt")]
    with tarfile.open(fileobj=io.BytesIO(tar_of(tmp_path / "shard-000000.tar.zst"))) as archive:
        assert archive.getnames() == found


@given(
    st.integers(0, 40),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1000, 9000),
)
def test_shards_hold_what_the_limits_say(
    tmp_path_factory, count: int, max_samples: int, frame_samples: int, max_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("out")
    options: dict[str, Any] = {"max_samples": max_samples, "max_bytes": max_bytes}
    manifest = write(folder, count, frame_samples=frame_samples, **options).manifest
    assert [key for key, _ in read_dataset(folder)] == [f"{n:05d}" for n in range(count)]
    assert all(found <= max_samples for found in manifest.counts.tolist())
    for found, size in zip(manifest.counts.tolist(), manifest.sizes.tolist(), strict=True):
        assert size <= max_bytes or found <= frame_samples  # at least one frame goes into a shard
    if max_bytes == 9000 and max_samples <= 12 and count:
        assert set(manifest.counts.tolist()[:-1]) <= {max_samples}


def test_big_samples_end_a_frame_before_it_is_full_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FULL_FRAME_BYTES", 9000)
    write(tmp_path / "one", 20, frame_samples=1000)
    source = TarShards([str(tmp_path / "one")])
    recipe = Recipe(compression=Compression(frame_samples=1000), chunk_bytes=10_000)
    a_sample = tarred(sample(0)).size_bytes
    (part,) = source.parts()
    for chunk in chunks_of(source, part, recipe):
        assert chunk.num_bytes < 10_000 + 9000 + a_sample
    write_shards(source, tmp_path / "two", compression="zstd", frame_samples=1000)
    for name in ("one", "two"):
        table = table_of((tmp_path / name / "shard-000000.tar.zst").read_bytes())
        assert all(9000 <= plain < 9000 + a_sample for _, plain in table[:-2])
        assert len(table) > 3
    assert read_dataset(tmp_path / "one") == read_dataset(tmp_path / "two")


def test_a_flipped_bit_is_found_by_the_frames_checksum(tmp_path: Path) -> None:
    write(tmp_path, 5)
    data = bytearray((tmp_path / "shard-000000.tar.zst").read_bytes())
    data[60] ^= 1
    with pytest.raises(zstandard.ZstdError):
        zstandard.ZstdDecompressor().stream_reader(bytes(data), read_across_frames=True).read()


def test_a_pattern_of_either_ending_names_compressed_shards(tmp_path: Path) -> None:
    for number, pattern in enumerate(("x-%d.tar", "x-%d.tar.zst")):
        folder = tmp_path / str(number)
        write(folder, 1, pattern=pattern)
        assert manifest_of(folder).names == ("x-0.tar.zst",)
    with pytest.raises(UsageError, match=r"ends in '\.tar\.zst'"):
        ShardWriter(tmp_path / "new", compression="zstd", pattern="x-%d.zip")
    with pytest.raises(UsageError, match=r"ends in '\.tar'"):
        ShardWriter(tmp_path / "new", pattern="x-%d.tar.zst")


def test_a_frame_too_big_for_the_seek_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MOST_FRAME_BYTES", 100)
    with pytest.raises(UsageError, match="fewer samples a frame"):
        compress(bytes(100), 3)


def test_how_long_the_end_of_a_shard_is_is_known_before() -> None:
    compression = Compression(level=3)
    for num_frames in (0, 1, 7):
        table = seek_table([(1, 2)] * num_frames + [(len(compression.end), len(END_OF_ARCHIVE))])
        assert compression.end_bytes(num_frames) == len(compression.end) + len(table)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_key_that_comes_again_within_a_frame_is_left_out_of_frame_and_index(
    tmp_path: Path, workers: int
) -> None:
    rows = tmp_path / "rows.jsonl"
    keys = [f"k{number if number != 5 else 3}" for number in range(20)]
    rows.write_text("".join(f'{{"id": "{key}", "text": "of {key}"}}\n' for key in keys))
    source = open_source([str(rows)], choice=parse_choice("id", ["txt=text"]))
    options: dict[str, Any] = {"frame_samples": 8, "max_samples": 12, "workers": workers}
    written = write_shards(source, tmp_path / "out", compression="zstd", on_error="skip", **options)
    assert written.num_refused == 1
    back = read_dataset(tmp_path / "out")
    assert [(key, fields["txt"]) for key, fields in back] == [
        (key, f"of {key}".encode()) for number, key in enumerate(keys) if number != 5
    ]
    for name in written.manifest.names:
        index = SampleIndex.from_buffer(
            (tmp_path / "out" / f"{name}.index").read_bytes(), name=name
        )
        tar = tar_of(tmp_path / "out" / name)
        built, _ = SampleIndex.build(tar, shard=name)
        assert replace(index, compressed_bytes=None).digest == built.digest
