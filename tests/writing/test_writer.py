from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import SampleError, UsageError, WorldError
from shardloader.format.index import SampleIndex
from shardloader.format.manifest import Manifest
from shardloader.reading.catalog import open_catalog
from shardloader.reading.decode import resolve
from shardloader.reading.source import UNFINISHED_NAME
from shardloader.writing import shard_file
from shardloader.writing.writer import ShardWriter

ROOT = Path(__file__).parents[2]


def read(folder: Path) -> list[tuple[str, dict[str, bytes]]]:
    """Read a dataset by scanning its shards, in the manifest's order."""
    manifest = Manifest.from_json_bytes((folder / "manifest.json").read_bytes(), name="manifest")
    samples = []
    for name in manifest.names:
        data = (folder / name).read_bytes()
        index, _ = SampleIndex.build(data, shard=name)
        for number in range(index.num_samples):
            fields = {}
            for member in range(*index.sample_starts[number : number + 2].tolist()):
                start = index.member_offsets[member]
                field = index.fields[index.member_fields[member]]
                fields[field] = data[start : start + index.member_sizes[member]]
            samples.append((index.key(number), fields))
    return samples


def small(number: int, size: int = 5) -> dict[str, Any]:
    return {"__key__": f"{number:06d}", "bin": bytes([number % 256]) * size}


def write(folder: Path, samples, **options) -> ShardWriter:
    with ShardWriter(folder, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return writer


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != UNFINISHED_NAME)


KEYS = st.one_of(
    st.text("ab/._- é猫\n", max_size=6),
    st.text(max_size=6),
    st.text("kü/", min_size=90, max_size=300),
    st.sampled_from(["__a", "__meta__", "../x", "/x", "a", "b"]),
)
FIELDS = st.one_of(
    st.sampled_from(["txt", "json", "cls", "npy", "bin", "a.bin", "é", "b__", "_x"]),
    st.text("aB./_é", max_size=4),
    st.text(max_size=4),
)
VALUES = st.one_of(
    st.binary(max_size=1100),
    st.text(max_size=10),
    st.integers(),
    st.none(),
    st.dictionaries(st.text(max_size=3), st.integers() | st.floats(), max_size=3),
    st.lists(st.integers(), max_size=3).map(np.array),
)
SAMPLES = st.lists(st.tuples(KEYS, st.dictionaries(FIELDS, VALUES, max_size=4)), max_size=12)


def same(value: Any, back: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype == back.dtype and np.array_equal(value, back)
    return type(value) is type(back) and bool(value == back)


@given(
    samples=SAMPLES,
    max_samples=st.integers(1, 5),
    max_bytes=st.integers(1, 8000),
)
def test_a_sample_reads_back_the_same_or_is_refused_with_its_key(
    samples, max_samples: int, max_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_round_trip(Path(folder), samples, max_samples, max_bytes)


def check_round_trip(folder: Path, samples, max_samples: int, max_bytes: int) -> None:
    written = []
    with ShardWriter(folder, max_samples=max_samples, max_bytes=max_bytes) as writer:
        for key, fields in samples:
            try:
                writer.write({"__key__": key, **fields})
            except SampleError as error:
                refused = str(error)
            else:
                refused = ""
                written.append((key, fields))
            assert refused == "" or repr(key) in refused
    back = read(folder)
    assert [key for key, _ in back] == [key for key, _ in written]
    for (_, data), (_, fields) in zip(back, written, strict=True):
        assert list(data) == sorted(fields, key=str.encode)
        for field, value in fields.items():
            # class names are text, which the default reads as numbers
            own = {"cls": "text"} if isinstance(value, str) else {}
            table = resolve(None if isinstance(value, bytes) else own)
            assert same(value, table.decode(field, data[field]))
    check_bookkeeping(folder, writer, max_samples, max_bytes)


def check_bookkeeping(folder: Path, writer: ShardWriter, max_samples: int, max_bytes: int) -> None:
    """The manifest, the indexes and the limits are true of the files themselves."""
    manifest = writer.manifest
    assert listing(folder) == sorted(
        ["manifest.json", *manifest.names, *(f"{name}.index" for name in manifest.names)]
    )
    assert (writer.num_shards, writer.num_samples) == (manifest.num_shards, manifest.num_samples)
    assert writer.total_bytes == manifest.sizes.sum()
    assert manifest.content_digests is not None
    for number, name in enumerate(manifest.names):
        data = (folder / name).read_bytes()
        index, _ = SampleIndex.build(data, shard=name)
        assert index.num_samples == manifest.counts[number] <= max_samples
        assert len(data) == manifest.sizes[number]
        assert len(data) <= max_bytes or index.num_samples == 1
        assert index.digest == manifest.index_digests[number]
        assert index.to_bytes() == (folder / f"{name}.index").read_bytes()
        assert xxhash.xxh3_128_hexdigest(data) == manifest.content_digests[number]


@pytest.mark.parametrize("buffer_bytes", [1, 5000, 1 << 23])
@pytest.mark.parametrize("size", [10, 9000, 3_000_000])
def test_the_bookkeeping_is_true_however_much_is_written_at_a_time(
    tmp_path: Path, monkeypatch, buffer_bytes: int, size: int
) -> None:
    monkeypatch.setattr(shard_file, "_BUFFER_BYTES", buffer_bytes)
    with ShardWriter(tmp_path, max_samples=5) as writer:
        for number in range(8):
            writer.write(small(number, size))
    check_bookkeeping(tmp_path, writer, 5, 1 << 30)


def test_the_system_is_given_little_more_than_a_mebibyte_at_a_time(
    tmp_path: Path, monkeypatch
) -> None:
    given = list[int]()
    writing = os.writev

    def counted(handle: int, pieces: Any) -> int:
        given.append(sum(map(len, pieces)))
        return writing(handle, pieces)

    monkeypatch.setattr(os, "writev", counted)
    with ShardWriter(tmp_path) as writer:
        for number, size in enumerate([3000] * 1000 + [60_000] * 200 + [5 << 20] * 2):
            writer.write(small(number, size))
    assert max(given) < 2 << 20
    assert sum(given) == writer.total_bytes
    assert len(given) < writer.total_bytes >> 19


def test_a_shard_is_filled_to_the_last_byte_of_its_limit(tmp_path: Path) -> None:
    # a sample is a header and a block of data; an archive ends in two blocks
    for max_bytes, counts in ((5 * 1024, [4, 4]), (5 * 1024 - 1, [3, 3, 2]), (1, [1] * 8)):
        folder = tmp_path / str(max_bytes)
        manifest = write(folder, map(small, range(8)), max_bytes=max_bytes).manifest
        assert manifest.counts.tolist() == counts
        assert manifest.sizes.tolist() == [1024 * (count + 1) for count in counts]


def test_a_sample_longer_than_the_limit_has_a_shard_of_its_own(tmp_path: Path) -> None:
    samples = [small(0), small(1), small(2, 10_000), small(3), small(4)]
    assert write(tmp_path, samples, max_bytes="4kB").manifest.counts.tolist() == [2, 1, 2]


def test_a_small_shard_that_is_full_is_there_before_the_next_sample_comes(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, max_samples=2) as writer:
        writer.write(small(0))
        assert not (tmp_path / "shard-000000.tar").exists()
        writer.write(small(1))
        assert (tmp_path / "shard-000000.tar").exists()
        assert (tmp_path / "shard-000000.tar.index").exists()
        assert not (tmp_path / "manifest.json").exists()


def test_a_big_shard_that_is_full_is_there_when_it_is_counted(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, max_samples=1) as writer:
        for number in range(3):
            writer.write(small(number, 3_000_000))
            assert writer.num_shards == number + 1
            assert (tmp_path / f"shard-{number:06d}.tar").exists()


def test_a_shard_is_filled_while_the_one_before_it_is_brought_to_disk(
    tmp_path: Path, monkeypatch
) -> None:
    sync, is_filled = os.fsync, threading.Event()

    def fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_size > 1_000_000:
            assert is_filled.wait(60)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with ShardWriter(tmp_path, max_samples=2) as writer:
        for number in range(3):
            writer.write(small(number, 3_000_000))
        assert not (tmp_path / "shard-000000.tar").exists()
        is_filled.set()
    assert len(read(tmp_path)) == 3


@pytest.mark.parametrize("use", ["write", "close"])
def test_a_disk_that_fails_meanwhile_ends_the_writer_and_no_later_shard_gets_its_name(
    tmp_path: Path, monkeypatch, use: str
) -> None:
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_size > 6_000_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    writer = ShardWriter(tmp_path, max_samples=2)
    for number in range(2):
        writer.write(small(number, 2_000_000))
    monkeypatch.setattr(os, "fsync", fsync)
    for number in range(2, 4):
        writer.write(small(number, 4_000_000))
    assert writer.num_shards == 1
    with pytest.raises(WorldError, match=r"shard-000001.*No space left"):
        writer.write({"__key__": "x", "other": b""}) if use == "write" else writer.close()
    with pytest.raises(UsageError, match="broken off"):
        writer.close()
    assert listing(tmp_path) == ["shard-000000.tar", "shard-000000.tar.index"]


def test_an_abort_leaves_every_full_shard_and_nothing_else(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, max_samples=2)
    for number in range(5):
        writer.write(small(number, 2_000_000))
    writer.abort()
    assert listing(tmp_path) == [
        f"shard-00000{number}.tar{suffix}" for number in range(2) for suffix in ("", ".index")
    ]
    assert not [each.name for each in threading.enumerate() if "shardloader" in each.name]


def test_a_writer_that_is_dropped_ends_its_threads(tmp_path: Path) -> None:
    writer = {"it": ShardWriter(tmp_path, max_samples=2)}
    for number in range(5):
        writer["it"].write(small(number, 2_000_000))
    with pytest.warns(ResourceWarning, match="never closed"):
        del writer["it"]
    assert not [each.name for each in threading.enumerate() if "shardloader" in each.name]
    assert len(listing(tmp_path)) == 4


def test_big_and_small_fields_in_any_order_are_written_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = [0, 1, 511, 512, 513, 300_000, 900_000, 5_000_000, 7, 4 << 20, 3]
    samples = [
        {"__key__": f"{i:03d}", "a": rng.bytes(size), "b": rng.bytes(sizes[-i])}
        for i, size in enumerate(sizes)
    ]
    writer = write(tmp_path, samples)
    assert [dict(fields, __key__=key) for key, fields in read(tmp_path)] == samples
    check_bookkeeping(tmp_path, writer, 10_000, 10**9)


def test_the_standard_librarys_tarfile_reads_what_is_written(tmp_path: Path) -> None:
    long = "dir/" + "k" * 300
    samples = [{"__key__": key, "txt": key, "a.bin": b"\0" * 700} for key in ("a", "猫/é", long)]
    write(tmp_path, samples)
    with tarfile.open(tmp_path / "shard-000000.tar") as tar:
        members = tar.getmembers()
        assert [m.name for m in members] == [
            f"{s['__key__']}.{f}" for s in samples for f in ("a.bin", "txt")
        ]
        for member in members:
            assert (member.mtime, member.uid, member.gid, member.mode) == (0, 0, 0, 0o644)
            file = tar.extractfile(member)
            assert file is not None
            assert file.read() in {b"\0" * 700, member.name[: -len(".txt")].encode()}


# webdataset leaves the files of its shards to the garbage collector
@pytest.mark.filterwarnings("ignore:unclosed file <_io.BufferedReader:ResourceWarning")
def test_webdataset_reads_what_is_written(tmp_path: Path) -> None:
    keys = ["a", "b c", "猫/é", "x/" + "k" * 300, "v1.0/y", "new\nline", "__init__", "a\\b"]
    array = np.arange(6.0).reshape(2, 3)
    samples = [
        {
            "__key__": key,
            "txt": f"é {key}",
            "cls": 3,
            "json": {"ü": [1, None]},
            "npy": array,
            "seg.bin": b"\0",
        }
        for key in keys
    ]
    write(tmp_path, samples, max_samples=3)
    urls = [str(tmp_path / f"shard-{i:06d}.tar") for i in range(3)]
    back = list(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False).decode())
    assert [sample["__key__"] for sample in back] == keys
    for given_, read_ in zip(samples, back, strict=True):
        np.testing.assert_array_equal(read_["npy"], array)
        for field in ("txt", "cls", "json", "seg.bin"):
            assert read_[field] == given_[field]


REPEAT = """
import os, sys, locale
os.umask(int(sys.argv[3], 8))
sys.path[:0] = sys.argv[1:2]
from shardloader.writing.writer import ShardWriter
with ShardWriter(sys.argv[2], max_samples=2) as writer:
    json = {"b": {"z": 1, "a": 2}, "a": "\\xfc"}
    for key in ("\\u732b", "b", "a/\\xe9"):
        writer.write({"__key__": key, "txt": "na\\xefve", "json": json})
"""


def test_bytes_do_not_depend_on_locale_umask_hash_seed_or_time(tmp_path: Path) -> None:
    contents = []
    for number, (locale, umask) in enumerate([("C", "077"), ("C.UTF-8", "022")]):
        folder = tmp_path / str(number)
        subprocess.run(
            [sys.executable, "-X", "utf8=0", "-c", REPEAT, str(ROOT), str(folder), umask],
            env={"LC_ALL": locale, "PYTHONHASHSEED": str(number), "PYTHONCOERCECLOCALE": "0"},
            check=True,
        )
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1]
    assert b"na\xc3\xafve" in contents[0]["shard-000000.tar"]


def test_bytes_are_those_of_the_first_release(tmp_path: Path) -> None:
    samples = [
        {"__key__": "000", "txt": "é", "cls": 7, "json": {"b": 1, "a": [1.5, None]}},
        {"__key__": "dir/" + "k" * 120, "bin": b"\0\1", "npy": np.arange(3, dtype="<i4")},
    ]
    manifest = write(tmp_path, samples).manifest
    assert manifest.content_digests == (FIRST_RELEASE_CONTENT,)
    assert manifest.digest == FIRST_RELEASE_IDENTITY


FIRST_RELEASE_CONTENT = "ef1c3e9949bbc69d9440dc0da94b1dba"
FIRST_RELEASE_IDENTITY = "69ad468231706275692b1fe8a88a8ce1"


def test_a_refused_sample_leaves_nothing_and_the_writer_goes_on(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a") as writer:
        writer.write(small(0))
        for bad in (
            {"__key__": "x", "a": b"1", "txt": None},
            {"__key__": "x"},
            {"a": b""},
            small(0),
        ):
            with pytest.raises(SampleError):
                writer.write(bad)
        writer.write({"__key__": "x", "a": b"2"})
    write(tmp_path / "b", [small(0), {"__key__": "x", "a": b"2"}])
    names = listing(tmp_path / "a")
    assert names == listing(tmp_path / "b")
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_key_may_not_come_back_in_a_shard_nor_right_behind_it(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, max_samples=2) as writer:
        writer.write(small(0))
        writer.write(small(1))
        with pytest.raises(SampleError, match="'000001' was written before"):
            writer.write(small(1))
        writer.write(small(2))
        writer.write(small(1))  # documented: shards before the last are not remembered


def test_a_second_writer_is_refused_while_the_first_one_writes(tmp_path: Path) -> None:
    with ShardWriter(tmp_path) as first:
        for overwrite in (False, True):
            with pytest.raises(UsageError, match="another writer"):
                ShardWriter(tmp_path, overwrite=overwrite).write(small(0))
        first.write(small(0))
    assert listing(tmp_path) == ["manifest.json", "shard-000000.tar", "shard-000000.tar.index"]
    write(tmp_path, [small(1)], overwrite=True)


@pytest.mark.parametrize(
    "name", ["manifest.json", "other.tar", "x.tar.zst", "shard-000000.tar.index"]
)
def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"not ours")
    with pytest.raises(UsageError, match="overwrite=True") as caught:
        write(tmp_path, [small(0)])
    assert repr(name) in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {name: b"not ours"}


def test_other_files_are_no_obstacle_and_stay(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("about")
    write(tmp_path, [small(0)])
    write(tmp_path, [small(1)], overwrite=True)
    assert "README.md" in listing(tmp_path)


def test_overwriting_removes_all_that_an_earlier_writer_made(tmp_path: Path) -> None:
    write(tmp_path, map(small, range(9)), max_samples=2)
    (tmp_path / ".shard-000007.tar.partial").write_bytes(b"left by a killed writer")
    write(tmp_path, [small(1)], overwrite=True)
    assert listing(tmp_path) == ["manifest.json", "shard-000000.tar", "shard-000000.tar.index"]
    assert read(tmp_path) == [("000001", {"bin": b"\1" * 5})]


def test_overwriting_never_removes_shards_of_another_name(tmp_path: Path) -> None:
    write(tmp_path, [small(0)], pattern="train-%04d.tar")
    before = listing(tmp_path)
    with pytest.raises(UsageError, match=r"'train-0000\.tar', which this pattern does not make"):
        write(tmp_path, [small(0)], overwrite=True)
    assert listing(tmp_path) == before


def test_a_destination_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="is a file"):
            write(folder, [small(0)])


@pytest.mark.parametrize(
    "options",
    [
        {"max_samples": 0},
        {"max_samples": True},
        {"max_samples": 1.5},
        {"max_bytes": "1 gigabyte"},
        {"max_bytes": 0},
        {"compression": "gzip"},
        {"compression": "zstd", "compression_level": 0},
        {"compression": "zstd", "frame_samples": 0},
        {"overwrite": True, "append": True},
    ],
    ids=repr,
)
def test_options_that_make_no_sense_are_refused_at_once(tmp_path: Path, options: Any) -> None:
    with pytest.raises(UsageError):
        ShardWriter(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def no_space(handle: int, pieces: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_an_error_of_the_world_and_ends_the_writer(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(shard_file, "_BUFFER_BYTES", 1)
    writer = ShardWriter(tmp_path, max_samples=1)
    writer.write(small(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", no_space)
        with pytest.raises(WorldError, match=r"shard-000001.*No space left"):
            writer.write(small(1))
    for use in (lambda: writer.write(small(2)), writer.close):
        with pytest.raises(UsageError, match="broken off"):
            use()
    assert listing(tmp_path) == ["shard-000000.tar", "shard-000000.tar.index"]


def test_a_system_that_takes_little_at_a_time_gets_all_of_it(tmp_path: Path, monkeypatch) -> None:
    samples = [small(number, 3000) for number in range(20)]
    write(tmp_path / "whole", samples)
    monkeypatch.setattr(os, "writev", lambda handle, pieces: os.write(handle, pieces[0][:100]))
    writing = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: writing(handle, data[:777]))
    write(tmp_path / "bit by bit", samples)
    for name in listing(tmp_path / "whole"):
        whole = (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "bit by bit" / name).read_bytes() == whole


def test_a_manifest_that_cannot_be_written_ends_the_writer(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    writer.write(small(0))
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(WorldError, match=r"manifest\.json"):
        writer.close()
    with pytest.raises(UsageError, match="broken off"):
        _ = writer.manifest
    (tmp_path / "manifest.json").rmdir()
    write(tmp_path, [small(0)], overwrite=True)  # and lets the next one in


def test_a_shard_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch) -> None:
    synced: list[tuple[int, bool]] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        named = (tmp_path / "shard-000000.tar").exists()
        synced.append((os.fstat(descriptor).st_size, named))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    manifest = write(tmp_path, [small(0)]).manifest
    assert (manifest.sizes[0], False) in synced


def test_closing_after_an_abort_says_that_there_is_no_dataset(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    writer.write(small(0))
    writer.abort()
    with pytest.raises(UsageError, match="no whole dataset"):
        writer.close()
    with pytest.raises(UsageError, match="broken off"):
        _ = writer.manifest
    assert listing(tmp_path) == []


def test_a_closed_writer_closes_again_and_writes_no_more(tmp_path: Path) -> None:
    writer = write(tmp_path, [small(0)])
    writer.close()
    with pytest.raises(UsageError, match="closed"):
        writer.write(small(1))
    with pytest.raises(UsageError, match="manifest"):
        _ = ShardWriter(tmp_path / "b").manifest


def test_a_writer_that_was_never_opened_leaves_no_trace(tmp_path: Path) -> None:
    del (writer := {"it": ShardWriter(tmp_path / "new")})["it"]
    assert writer == {}
    assert listing(tmp_path) == []


def test_counts_are_right_while_writing(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, max_samples=2) as writer:
        for number in range(3):
            writer.write(small(number))
        assert (writer.num_shards, writer.num_samples) == (1, 3)
        assert writer.total_bytes == 3 * 1024 + 2 * 1024


def test_memory_does_not_grow_with_what_was_written(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, max_samples=500) as writer:
        numbers = iter(range(10_000))

        def peak(count: int) -> int:
            tracemalloc.reset_peak()
            for _ in range(count):
                writer.write({"__key__": f"{next(numbers):06d}", "bin": bytes(2000)})
            return tracemalloc.get_traced_memory()[1]

        tracemalloc.start()
        try:
            first, later = peak(2_000), peak(8_000)
        finally:
            tracemalloc.stop()
    assert first < 6_000_000
    assert later < 6_000_000  # of 20 MB that were written meanwhile


def test_a_writer_that_was_never_opened_leaves_anothers_folder_alone(tmp_path: Path) -> None:
    with ShardWriter(tmp_path) as writer:
        writer.write({"__key__": "a", "txt": "x"})
        ShardWriter(tmp_path).abort()
        assert (tmp_path / UNFINISHED_NAME).exists()
    assert not (tmp_path / UNFINISHED_NAME).exists()


@pytest.mark.parametrize("kill_at", range(1, 9))
def test_a_writer_killed_while_it_clears_a_folder_leaves_no_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_at: int
) -> None:
    with ShardWriter(tmp_path, max_samples=10) as writer:
        for number in range(40):
            writer.write({"__key__": f"{number:02d}", "txt": "x"})
    child = os.fork()
    if child == 0:  # killed at its n-th removal
        removed = 0
        unlink = Path.unlink

        def killed(path: Path, *, missing_ok: bool = False) -> None:
            nonlocal removed
            removed += 1
            if removed == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            unlink(path, missing_ok=missing_ok)

        monkeypatch.setattr(Path, "unlink", killed)
        write(tmp_path, [small(0)], overwrite=True)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    if (tmp_path / "manifest.json").exists():
        assert open_catalog(tmp_path).manifest.num_samples == 40
    else:
        with pytest.raises(UsageError, match="a writer was broken off here"):
            open_catalog(tmp_path)


def test_a_forked_child_cannot_write_or_end_what_its_parent_writes(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, max_samples=2) as writer:
        writer.write(small(0))
        child = os.fork()
        if child == 0:
            refused = 0
            for act in (lambda: writer.write(small(7)), writer.close):
                try:
                    act()
                except UsageError:
                    refused += 1
            writer.abort()  # as a with statement does after an error: nothing
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        assert "manifest.json" not in listing(tmp_path)
        writer.write(small(1))
    assert [key for key, _ in read(tmp_path)] == ["000000", "000001"]


FORKED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from shardloader import ShardWriter
with ShardWriter(sys.argv[2], max_samples=2) as writer:
    for number in range(5):
        writer.write({"__key__": str(number), "bin": bytes(2_000_000)})
    child = os.fork()
    if child == 0:
        sys.exit(7)  # as a program ends, with all that is done then
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_a_child_that_is_forked_while_shards_are_brought_to_disk_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(ROOT), str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)
    assert [key for key, _ in read(tmp_path)] == list("01234")


@pytest.mark.parametrize("sample", [None, 5, [("__key__", "a")], "text"], ids=repr)
def test_what_is_no_mapping_is_refused_and_the_writer_goes_on(
    tmp_path: Path, sample: object
) -> None:
    with ShardWriter(tmp_path) as writer:
        with pytest.raises(SampleError, match="a sample is a mapping"):
            writer.write(sample)  # type: ignore[arg-type]
        writer.write(small(0))
    assert [key for key, _ in read(tmp_path)] == ["000000"]
