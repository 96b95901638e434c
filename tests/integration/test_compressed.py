"""Reading from compressed shards is reading from plain ones, whatever they are called."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import shardloader as sl
from shardloader.planning import least_cache
from shardloader.reading.cache import Cache
from shardloader.reading.catalog import open_catalog
from shardloader.reading.filling import Filling
from shardloader.reading.indexing import index_dataset
from shardloader.reading.pool import ShardPool
from tests.corpora import (
    contents,
    dataset_of,
    each_once,
    kept_corpus,
    loader_of,
    loaders_of,
    raises_in_worker,
    valid_of,
)
from tests.format.test_cases import CASES, cases, seen
from tests.packing import PACKED, gzip_member, skippable, zstd_frame
from tests.shards import tar_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

COUNTS = (7, 0, 5, 9, 3, 8)
NAMES = ("a.tar.gz", "b.tgz", "c.tar.zst", "d.tar", "e.tar", "f.tar.gz")
PACKINGS: tuple[Callable[[bytes], bytes], ...] = (
    gzip.compress,
    lambda data: gzip_member(data[:700], flags=8, fields=b"x\0") + gzip.compress(data[700:]),
    lambda data: skippable(b"x") + zstd_frame(data[:900]) + zstd_frame(data[900:], size=False),
    zstd_frame,  # under a plain name
    bytes,
    bytes,  # plain under a packed name
)


@pytest.fixture
def cache(tmp_path):
    return sl.Cache(tmp_path / "cache", max_bytes="1GB")


@pytest.fixture
def packed(tmp_path):
    return pack(kept_corpus(COUNTS), tmp_path / "packed")


def pack(plain, folder):
    folder.mkdir()
    shards = sorted(plain.glob("*.tar"))
    for path, name, packing in zip(shards, NAMES, PACKINGS, strict=True):
        (folder / name).write_bytes(packing(path.read_bytes()))
    return folder


def test_the_manifest_has_the_files_sizes_and_the_indexes_of_the_plain_tars(packed, cache):
    manifest, notices = index_dataset(packed, cache=cache)
    plain = open_catalog(kept_corpus(COUNTS)).manifest
    assert manifest.names == NAMES
    assert manifest.sizes.tolist() == [(packed / name).stat().st_size for name in NAMES]
    assert manifest.counts.tolist() == list(COUNTS)
    assert manifest.index_digests == plain.index_digests
    assert [notice.kind for notice in notices["b.tgz"]] == ["empty_shard"]
    again, _ = index_dataset(packed, cache=sl.Cache(packed / "never", max_bytes="1MB"))
    assert again.digest == manifest.digest
    assert not (packed / "never").exists()  # all indexes were current


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 0, "decode_threads": 3, "shuffle": False},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
    ],
)
def test_batches_are_those_of_the_plain_tars(packed, cache, options):
    plain = contents(loader_of(kept_corpus(COUNTS), batch_size=3, **options))
    assert contents(loader_of(packed, batch_size=3, cache=cache, **options)) == plain


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (3, 1), (2, 2)])
def test_resume_is_exact_and_that_of_the_plain_tars(packed, cache, ranks, workers):
    rests = []
    for source, options in ((kept_corpus(COUNTS), {}), (packed, {"cache": cache})):
        loaders = loaders_of(source, 2, batch_size=2, num_workers=workers, **options)
        before = [n for loader in loaders for n in valid_of(islice(loader, 3))]
        resumed = loaders_of(source, ranks, batch_size=2, num_workers=workers, **options)
        for loader in resumed:
            loader.load_state_dict(loaders[0].state_dict())
        rests.append([contents(loader) for loader in resumed])
        after = [
            number
            for batches in rests[-1]
            for index, valid, _ in batches
            for number, is_valid in zip(index, valid, strict=True)
            if is_valid
        ]
        assert each_once(before + after, sum(COUNTS))
    assert rests[0] == rests[1]


def test_map_style_and_a_pickled_dataset_read_the_same(packed, cache):
    plain = dataset_of(kept_corpus(COUNTS)).as_map()
    mapped = dataset_of(packed, cache=cache).as_map()
    assert [mapped[n]["txt"] for n in range(len(mapped))] == [
        plain[n]["txt"] for n in range(len(plain))
    ]


def test_a_cache_of_few_tars_is_enough_and_its_limit_holds(tmp_path):
    counts = (20,) * 6
    folder = pack(kept_corpus(counts), tmp_path / "packed")
    tar_size = max(path.stat().st_size for path in kept_corpus(counts).glob("*.tar"))
    limit = 4 * tar_size + 1000
    small = sl.Cache(tmp_path / "cache", max_bytes=limit)
    loader = loader_of(folder, batch_size=4, cache=small, shuffle=sl.Shuffle(window=8))
    sizes = []
    numbers = []
    for batch in loader:
        numbers += batch["__index__"].tolist()
        sizes.append(sum(f.stat().st_size for f in (tmp_path / "cache").iterdir()))
    assert each_once(numbers, 120)
    assert max(sizes) <= limit


@pytest.mark.parametrize("batch_size", [2, 7, 20])
def test_one_reader_never_waits_for_room_that_it_takes_itself(tmp_path, monkeypatch, batch_size):
    monkeypatch.setattr(Cache.tar, "__kwdefaults__", {"make_way": None, "patience_s": 0.0})
    waited = []

    def full(filling):
        waited.append(filling)
        return sl.CacheError("full")

    monkeypatch.setattr(Filling, "_full", full)
    counts = (20,) * 6
    folder = pack(kept_corpus(counts), tmp_path / "packed")
    tar_size = max(path.stat().st_size for path in kept_corpus(counts).glob("*.tar"))
    monkeypatch.setattr(least_cache, "_whole", lambda *_, **__: 0)  # less than is demanded
    for_few = sl.Cache(tmp_path / "cache", max_bytes=3 * tar_size + 1000)
    loader = loader_of(folder, batch_size=batch_size, cache=for_few, shuffle=False)
    assert each_once(valid_of(loader), 120)
    assert not waited


def test_few_cached_tars_stay_open_and_plain_ones_as_before(tmp_path, packed):
    catalog = open_catalog(packed, cache=sl.Cache(tmp_path / "cache", max_bytes="200kB"))
    with ShardPool(catalog) as pool:
        for number in range(6):
            assert pool[number].num_samples == COUNTS[number]
        assert sum(pool._open[number].cached_bytes > 0 for number in pool._open) == 1
        assert {4, 5} <= set(pool._open)
        assert pool.together([0, 2, 3]) is None
        assert set(pool.together([0]) or {}) == {0}
        assert set(pool.together([4, 5]) or {}) == {4, 5}


def test_a_dataset_without_a_cache_argument_uses_the_users_own(packed, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert each_once(valid_of(loader_of(packed, batch_size=4)), sum(COUNTS))
    assert len(list((tmp_path / "home/.cache/shardloader").glob("*.cached"))) == 4


def test_another_thing_than_a_cache_is_refused_in_words(packed):
    with pytest.raises(sl.UsageError, match=r"cache= is a Cache\(folder"):
        dataset_of(packed, cache="/nvme")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_damaged_shard_names_itself_and_the_byte_when_it_is_read(packed, cache, num_workers):
    index_dataset(packed, cache=cache)
    path, status = packed / "c.tar.zst", (packed / "c.tar.zst").stat()
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    cache.clear()
    other = sl.Cache(packed.parent / "other", max_bytes="1GB")
    loader = loader_of(packed, batch_size=4, cache=other, num_workers=num_workers)
    with raises_in_worker(sl.ShardError, r"c\.tar\.zst: checksum mismatch at byte \d+ of the comp"):
        list(loader)


def test_a_damaged_tar_in_a_sound_stream_has_the_tars_offset(tmp_path, cache):
    damaged = (CASES / "bad_checksum_mid.tar").read_bytes()
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(damaged))
    with pytest.raises(
        sl.ShardError, match=r"x\.tar\.gz \(decompressed\): bad header at byte 7168"
    ):
        open_catalog([tmp_path / "x.tar.gz"], cache=cache)


@pytest.mark.parametrize("of", ["another size", "the same size"])
def test_a_shard_that_was_replaced_is_indexed_anew(tmp_path, cache, of):
    path = tmp_path / "x.tar.gz"

    def write(letter):
        rest = b"1" if of == "the same size" else b"1" * 999
        data = gzip.compress(tar_bytes([(f"{letter}.txt", rest)]), compresslevel=0, mtime=0)
        path.write_bytes(data)
        os.utime(path, (10**9, 10**9))

    write("a")
    before = open_catalog([path], cache=cache).manifest
    write("b")
    after = open_catalog([path], cache=cache).manifest
    assert before.digest != after.digest
    assert dataset_of([path], cache=cache).as_map()[0]["__key__"] == "b"


def test_a_shard_that_was_replaced_behind_its_manifest_is_refused(packed, cache):
    open_catalog(packed, cache=cache)
    path = packed / "a.tar.gz"
    size = path.stat().st_size
    other = gzip.compress(tar_bytes([("z.txt", b"1")]), mtime=0)
    path.write_bytes(other + bytes(size - len(other)))
    with pytest.raises(sl.ManifestError, match=r"a\.tar\.gz.*indexed"):
        ShardPool(open_catalog(packed, cache=cache))[0]


def test_a_lost_index_is_made_again(packed, cache):
    open_catalog(packed, cache=cache)
    (packed / "a.tar.gz.index").unlink()
    assert each_once(valid_of(loader_of(packed, batch_size=4, cache=cache)), sum(COUNTS))
    assert (packed / "a.tar.gz.index").exists()


def test_d06_names_with_signs_of_meaning_are_literal(tmp_path, cache):
    names = ["p#1.tar.gz", "a b.tgz", "c%20d.tar.zst", "[x].tar.gz", "u:v.tar.zst", "猫.tgz"]
    (tmp_path / "shards").mkdir()
    for number, name in enumerate(names):
        tar = tar_bytes([(f"{number}.txt", b"%d" % number)])
        (tmp_path / "shards" / name).write_bytes(PACKED["gz" if "gz" in name else "zst"](tar))
    listed = dataset_of([tmp_path / "shards" / name for name in names], cache=cache).as_map()
    assert [listed[n]["txt"] for n in range(len(names))] == [str(n) for n in range(len(names))]
    assert len(dataset_of(tmp_path / "shards", cache=cache).as_map()) == len(names)


@pytest.mark.parametrize("case", cases(compressed=True))
def test_a12_each_case_is_read_as_it_says(case, tmp_path, cache):
    (name,) = case["files"]
    shutil.copy(CASES / name, tmp_path / name)
    before = (tmp_path / name).read_bytes()
    dataset = dataset_of([tmp_path / name], decode=None, shuffle=False, cache=cache)
    if case["error"] is None:
        assert [_as_told(sample) for sample in dataset] == case["samples"]
    else:
        with pytest.raises(sl.ShardError, match=name) as caught:
            next(iter(dataset))
        assert caught.value.kind == case["error"]["kind"]
        assert not list((tmp_path / "cache").glob("*.cached"))
    assert (tmp_path / name).read_bytes() == before


def _as_told(sample):
    fields = {name: seen(data) for name, data in sample.items() if not name.startswith("__")}
    return {"__key__": sample["__key__"], "fields": fields}


def test_tar_content_under_a_packed_name_is_not_copied(tmp_path, cache):
    case = json.loads((CASES / "tar_content_gz_name.json").read_text())
    shutil.copy(CASES / case["files"][0], tmp_path)
    dataset = dataset_of([tmp_path / case["files"][0]], decode=None, shuffle=False, cache=cache)
    assert [_as_told(sample) for sample in dataset] == case["samples"]
    assert not Path(cache.folder).exists()


def test_processes_that_index_a_packed_folder_share_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("shardloader.reading.indexing._PARALLEL_BYTES", 1000)
    rng = np.random.default_rng(0)
    folder = tmp_path / "packed"
    folder.mkdir()
    for number in range(8):
        tar = tar_bytes([(f"{number}.bin", rng.bytes(100_000))])
        (folder / f"{number}.tar.zst").write_bytes(zstd_frame(tar))
    small = Cache(tmp_path / "cache", max_bytes=250_000)
    manifest, _ = index_dataset(folder, num_workers=2, cache=small)
    assert manifest.num_samples == 8
    assert small.use().tar_bytes <= 250_000
