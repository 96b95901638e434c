"""Fields are slices of a map; a pool keeps few shards open."""

from __future__ import annotations

import contextlib
import gc
import io
import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from shardloader.errors import IndexFileError, ManifestError, UsageError
from shardloader.format.agreeing import seems_to_be_of
from shardloader.format.index import SampleIndex
from shardloader.format.tar_header import END_OF_ARCHIVE, member_header
from shardloader.reading.catalog import Catalog, open_catalog
from shardloader.reading.extents import LARGE_BYTES, locate
from shardloader.reading.indexing import index_dataset
from shardloader.reading.pool import ShardPool
from shardloader.reading.shard import Shard
from shardloader.reading.store import map_file
from tests.shards import tar_bytes, write_shard


@pytest.fixture
def catalog(tmp_path) -> Catalog:
    for number in range(6):
        write_shard(tmp_path / f"{number}.tar", 3 + number, first=100 * number)
    return open_catalog(tmp_path)


def num_descriptors(catalog) -> int:
    """Descriptors of the dataset's files; other tests' threads close theirs at any time."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(link.readlink()).startswith(catalog.root)
    return found


def test_a_sample_gives_its_fields_in_the_shards_order(catalog):
    with Shard.open(catalog.shard_path(1), catalog.index_path(1)) as shard:
        assert shard.num_samples == 4
        assert shard.key(2) == "000102"
        fields = shard.fields(2)
        assert {field: bytes(data) for field, data in fields.items()} == {
            "txt": b"text 102 ...........",
            "cls": b"2",
        }
        assert list(fields) == ["txt", "cls"]
        assert all(data.readonly for data in fields.values())
        assert shard.offset(2, "cls") == 512 * (4 * 2 + 3)


def test_only_wanted_fields_are_given(catalog):
    with Shard.open(catalog.shard_path(0), catalog.index_path(0)) as shard:
        assert list(shard.fields(0, frozenset({"cls", "jpg"}))) == ["cls"]
        with pytest.raises(KeyError):
            shard.offset(0, "jpg")


@pytest.mark.parametrize("sample", [-1, 3])
def test_a_sample_outside_the_shard_is_an_index_error(catalog, sample):
    with Shard.open(catalog.shard_path(0), catalog.index_path(0)) as shard:
        with pytest.raises(IndexError):
            shard.fields(sample)
        with pytest.raises(IndexError):
            shard.key(sample)


def test_a_closed_shard_says_so_and_its_fields_stay_good(catalog):
    shard = Shard.open(catalog.shard_path(0), catalog.index_path(0))
    field = shard.fields(0)["txt"]
    shard.close()
    shard.close()
    assert bytes(field[:6]) == b"text 0"
    with pytest.raises(UsageError, match="closed"):
        shard.fields(0)


def test_a_shard_of_another_size_than_its_index_says_is_refused():
    data = tar_bytes([("a.txt", b"1")])
    index, _ = SampleIndex.build(data, shard="s")
    with pytest.raises(ManifestError, match=r"s\.tar.*shardloader index"):
        Shard(memoryview(data[:-512]), index, name="s.tar")


def test_a_pool_keeps_the_shards_used_last(catalog):
    with ShardPool(catalog, max_open=2) as pool:
        first = pool[0]
        assert pool[1] is pool[1]
        assert pool[0] is first
        pool[2]
        assert pool.num_open == 2
        assert pool[0] is first
        assert pool[1] is not None
        assert pool.num_open == 2


def test_fields_held_over_an_eviction_stay_good_and_then_free_their_map(catalog):
    pool = ShardPool(catalog, max_open=1)
    held = [pool[number].fields(0)["txt"] for number in range(6)]
    assert [bytes(field[:8]) for field in held] == [
        b"text 0 ." if number == 0 else f"text {number}00".encode() for number in range(6)
    ]
    pool.close()
    assert num_descriptors(catalog) > 0
    del held
    gc.collect()
    assert num_descriptors(catalog) == 0


def test_reading_shard_after_shard_holds_few_descriptors(catalog):
    with ShardPool(catalog, max_open=2) as pool:
        for number in range(6):
            pool[number].fields(0)
            assert 0 < num_descriptors(catalog) <= 6
    gc.collect()
    assert num_descriptors(catalog) == 0


def test_a_pickled_pool_opens_its_own_files(catalog):
    with ShardPool(catalog, max_open=3) as pool:
        pool[4].fields(0)
        copied = pickle.loads(pickle.dumps(pool))
    assert (copied.num_open, copied.max_open) == (0, 3)
    assert copied[4].key(0) == "000400"


def test_threads_share_a_pool(catalog):
    with ShardPool(catalog, max_open=2) as pool, ThreadPoolExecutor(8) as threads:
        keys = list(threads.map(lambda n: pool[n % 6].key(0), range(300)))
    assert keys == [f"{n % 6 * 100:06d}" for n in range(300)]


@pytest.mark.parametrize("shard", [-1, 6])
def test_a_shard_outside_the_dataset_is_an_index_error(catalog, shard):
    with ShardPool(catalog) as pool, pytest.raises(IndexError):
        pool[shard]


def test_a_pool_of_nothing_is_refused(catalog):
    with pytest.raises(UsageError, match="at least 1"):
        ShardPool(catalog, max_open=0)


def test_an_index_that_is_not_the_manifests_is_refused(catalog, tmp_path):
    other = SampleIndex.build(tar_bytes([("z.txt", b"1")]), shard="s")[0]
    (tmp_path / "2.tar.index").write_bytes(other.to_bytes())
    with ShardPool(catalog) as pool, pytest.raises(ManifestError):
        pool[2]
    (tmp_path / "2.tar.index").write_bytes(b"nonsense")
    with ShardPool(catalog) as pool, pytest.raises(IndexFileError):
        pool[2]


def test_an_index_with_another_digest_is_refused(catalog, tmp_path):
    same_size = SampleIndex.of_samples([], shard_bytes=(tmp_path / "2.tar").stat().st_size)
    (tmp_path / "2.tar.index").write_bytes(same_size.to_bytes())
    with ShardPool(catalog) as pool, pytest.raises(ManifestError, match="digest"):
        pool[2]


def test_a_lost_index_is_made_again(catalog, tmp_path):
    lost = (tmp_path / "2.tar.index").read_bytes()
    (tmp_path / "2.tar.index").unlink()
    with ShardPool(catalog) as pool:
        assert pool[2].key(0) == "000200"
    assert (tmp_path / "2.tar.index").read_bytes() == lost


def test_a_lost_index_is_kept_in_memory_where_it_cannot_be_written(catalog, tmp_path):
    (tmp_path / "2.tar.index").unlink()
    source = catalog.source
    (tmp_path / "file").touch()
    nowhere = type(source)(
        root=source.root, index_root=str(tmp_path / "file"), names=None, location="x"
    )
    with ShardPool(Catalog(manifest=catalog.manifest, source=nowhere)) as pool:
        assert pool[2].key(0) == "000200"


def test_a_lost_index_of_a_changed_shard_is_refused(catalog, tmp_path):
    (tmp_path / "2.tar.index").unlink()
    shard = tmp_path / "2.tar"
    shard.write_bytes(shard.read_bytes().replace(b"000200.txt", b"000200.TXT"[::-1]))
    with ShardPool(catalog) as pool, pytest.raises(Exception, match=r"2\.tar"):
        pool[2]
    write_shard(shard, 5, first=300)
    with ShardPool(catalog) as pool, pytest.raises(ManifestError, match="was changed"):
        pool[2]


def test_a_shard_of_more_than_4_gib_is_read_behind_its_first_4_gib(tmp_path):
    big = 2**32 + 512
    with (tmp_path / "big.tar").open("wb") as file:
        file.write(member_header("a.bin", big))
        file.seek(512 + big)  # a hole: it takes no room on disk
        file.write(member_header("b.txt", 4) + b"here" + bytes(508) + END_OF_ARCHIVE)
    catalog = open_catalog(tmp_path)
    with ShardPool(catalog) as pool:
        assert pool[0].offset(1, "txt") == big + 1024
        assert bytes(pool[0].fields(1)["txt"]) == b"here"
        assert len(pool[0].fields(0)["bin"]) == big


def test_a_shard_replaced_by_another_of_its_size_is_refused(tmp_path):
    for name, first in (("a", 0), ("b", 100)):
        write_shard(tmp_path / f"{name}.tar", 4, first=first)
    open_catalog(tmp_path)
    (tmp_path / "a.tar").rename(tmp_path / "c")
    (tmp_path / "b.tar").rename(tmp_path / "a.tar")
    (tmp_path / "c").rename(tmp_path / "b.tar")
    pool = ShardPool(open_catalog(tmp_path))
    with pytest.raises(ManifestError, match=r"a\.tar: the shard does not hold what its index says"):
        pool[0]
    index_dataset(tmp_path)  # which mends it
    assert [ShardPool(open_catalog(tmp_path))[shard].key(0) for shard in (0, 1)] == [
        "000100",
        "000000",
    ]


def test_an_index_of_another_shard_of_the_same_size_is_made_anew(tmp_path):
    for name, first in (("a", 0), ("b", 100)):
        write_shard(tmp_path / f"{name}.tar", 4, first=first)
    open_catalog(tmp_path)
    (tmp_path / "a.tar.index").write_bytes((tmp_path / "b.tar.index").read_bytes())
    index_dataset(tmp_path)
    assert ShardPool(open_catalog(tmp_path))[0].key(0) == "000000"


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_names_in_extension_headers_are_recognised(tmp_path, form):
    names = ["d/" + "k" * 90 + "/" + "m" * 40 + ".TXT", "./plain.json"]
    if form != tarfile.USTAR_FORMAT:
        names += ["\u732b/\u00e9.txt", "x" * 180 + ".txt"]
    for number, name in enumerate(names):
        with tarfile.open(tmp_path / f"{number}.tar", "w", format=form) as archive:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = 3, 1.5 if form == tarfile.PAX_FORMAT else 1
            archive.addfile(info, io.BytesIO(b"abc"))
    catalog = open_catalog(tmp_path)
    for number in range(len(names)):
        index = ShardPool(catalog)[number].index
        assert seems_to_be_of(index, map_file(catalog.shard_path(number)))


def a_catalog(folder, *counts):
    for number, count in enumerate(counts):
        write_shard(folder / f"{number}.tar", count)
    return open_catalog(folder)


class Told:
    """A shard that remembers what the kernel was told."""

    def __init__(self, monkeypatch):
        self.ranges: list[tuple[int, int]] = []
        monkeypatch.setattr(Shard, "will_need", lambda _, start, stop: self.tell(start, stop))

    def tell(self, start, stop):
        if start < stop:
            self.ranges.append((start, stop))


def test_the_kernel_is_told_once_of_the_range_that_small_samples_lie_in(tmp_path, monkeypatch):
    catalog = a_catalog(tmp_path, 40, 40)
    told = Told(monkeypatch)
    with ShardPool(catalog) as pool:
        shards = np.array([1] * 5 + [0] * 3)
        located = locate(pool, shards, np.array([9, 3, 4, 20, 7, 0, 1, 2]), None)
        assert located is not None
        for shard in (0, 1):
            starts = located.starts[:, shards == shard]
            stops = located.stops[:, shards == shard]
            assert (int(starts.min()), int(stops.max())) in told.ranges
        assert len(told.ranges) == 2
        locate(pool, np.array([1, 1]), np.array([5, 8]), None)
        assert len(told.ranges) == 2  # nothing new
        locate(pool, np.array([1, 1]), np.array([5, 30]), None)
        assert told.ranges[2][0] == told.ranges[1][1]


def test_the_kernel_is_told_of_each_large_sample(tmp_path, monkeypatch):
    write_shard(tmp_path / "shard-0000.tar", 30, size=LARGE_BYTES)
    catalog = open_catalog(tmp_path)
    told = Told(monkeypatch)
    with ShardPool(catalog) as pool:
        located = locate(pool, np.zeros(3, dtype=np.int64), np.array([20, 3, 9]), None)
        assert located is not None
        wanted = zip(located.starts.min(axis=0), located.stops.max(axis=0), strict=True)
        assert told.ranges == list(wanted)


def test_the_kernel_takes_what_it_is_told(tmp_path):
    catalog = a_catalog(tmp_path, 40)
    with ShardPool(catalog) as pool:
        size = pool[0].index.shard_bytes
        for start, stop in ((0, size), (5000, 5001), (size - 1, size), (7, 7)):
            pool[0].will_need(start, stop)
        assert bytes(pool[0].fields(39)["cls"]) == b"9"
        with pytest.raises(ValueError, match="madvise start out of bounds"):
            pool[0].will_need(size + (1 << 20), size + (1 << 21))
