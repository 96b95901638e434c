"""Compressed shards that come by frames give the batches of a local copy, or say what is wrong.

Their frames end with samples, as our writer's do, or anywhere. Over `memory://`, over HTTP with a
server that counts what it is asked for, and over servers of S3 and nginx.
"""

from __future__ import annotations

import gzip
import struct
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardloader as sl
from shardloader.errors import DataError, ManifestError, ShardError, StoreError, UsageError
from shardloader.reading import by_ranges, framed_shard
from shardloader.reading.cache_folder import CacheFolder
from shardloader.reading.catalog import open_catalog
from shardloader.reading.indexing import index_dataset
from shardloader.reading.pool import ShardPool
from shardloader.reading.ranged_shard import RangedShard
from shardloader.reading.ranges import coalesce
from tests.contract.test_by_ranges import (
    COUNTS,
    WORKERS,
    by_fork,
    changed_at_the,
    eventually,
    gets,
    hold_what_nobody_waits_for,
    ranges_of,
)
from tests.contract.test_remote_sources import make, upload
from tests.corpora import (
    contents,
    dataset_of,
    kept_corpus,
    loaders_of,
    raises_in_worker,
    valid_of,
)
from tests.packing import frames_of, seekable, table_of, zstd_frame
from tests.reading.http_store import HttpStore
from tests.shards import sample_members, tar_bytes, tarfile_members

FIRST = "shard-0000.tar.zst"
ONE_SAMPLE = 2048  # of tar: a header and a block for each of two fields


def by_samples(tar):
    """Frames of two samples, and one with the archive's end."""
    return seekable(tar, [*range(2 * ONE_SAMPLE, len(tar) - 1024, 2 * ONE_SAMPLE), len(tar) - 1024])


def anywhere(tar):
    """Frames that end in headers and in data, an empty one among them, with checksums."""
    return seekable(tar, [0, 100, 100, *range(700, len(tar), 700)], checksums=True)


PACKINGS = {"by samples": by_samples, "anywhere": anywhere}


def pack(folder, packing=by_samples):
    """The corpus of COUNTS, compressed and indexed."""
    folder.mkdir()
    for shard in kept_corpus(COUNTS).glob("*.tar"):
        (folder / f"{shard.name}.zst").write_bytes(packing(shard.read_bytes()))
    index_dataset(folder, progress=False)
    return folder


@pytest.fixture(autouse=True)
def small_shards_come_by_ranges_too(monkeypatch):
    monkeypatch.setattr(by_ranges, "LEAST_SHARD_BYTES", 0)


@pytest.fixture(scope="module")
def epochs():
    """Two epochs of the local copy."""
    loader = make(kept_corpus(COUNTS))
    return [contents(loader) for _ in range(2)]


@pytest.fixture(params=PACKINGS)
def corpus(request, tmp_path):
    return pack(tmp_path / "corpus", PACKINGS[request.param])


@pytest.fixture
def server(tmp_path):
    """A server in this process of a corpus that a test may change."""
    folder = pack(tmp_path / "corpus")
    with HttpStore.of(folder) as running:
        running.folder = folder  # type: ignore[attr-defined]
        yield running


@pytest.fixture
def cache(tmp_path):
    return sl.Cache(tmp_path / "cache", max_bytes="50MB")


def replaced(server, change):
    """Change the first shard; its etag too, as it comes from the content."""
    path = server.folder / FIRST
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("num_workers", WORKERS)
def test_without_a_cache_the_batches_are_those_of_the_local_copy(num_workers, epochs, corpus):
    with HttpStore.of(corpus) as server:
        loader = make(server.url, num_workers, cache=None, **by_fork(num_workers))
        assert [contents(loader) for _ in range(2)] == epochs


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("range_bytes", ["3kB", "64MB"])
def test_until_shards_are_here_the_batches_are_those_of_the_local_copy(
    num_workers, range_bytes, epochs, corpus, tmp_path
):
    cache = sl.Cache(tmp_path / "cache", range_bytes=range_bytes)
    with HttpStore.of(corpus) as server:
        loader = make(server.url, num_workers, cache=cache, **by_fork(num_workers))
        assert [contents(loader) for _ in range(2)] == epochs


@pytest.mark.parametrize("kind", ["nginx", "s3"])
def test_real_stores_give_the_same_batches_by_frames(kind, request, epochs, cache, tmp_path):
    found = request.getfixturevalue(kind)
    if kind == "s3":
        url = found.put_folder("by-frames", pack(tmp_path / "corpus"))
        options = found.options()
    else:
        pack(found.folder / "by-frames")
        url, options = f"{found.url}/ranges/by-frames", None
    for given_cache in (None, cache):
        loader = make(url, cache=given_cache, storage_options=options)
        assert [contents(loader) for _ in range(2)] == epochs


def test_what_our_writer_packs_comes_by_frames(tmp_path):
    with sl.ShardWriter(
        tmp_path / "packed", compression="zstd", frame_samples=4, max_samples=30
    ) as writer:
        for number in range(70):
            writer.write({"__key__": f"{number:06d}", "txt": f"text {number}"})
    url = upload(tmp_path / "packed", "memory://framed/written")
    dataset = sl.ShardDataset(url, cache=None, topology=sl.Topology(rank=0, world_size=1))
    texts = {sample["__key__"]: sample["txt"] for sample in dataset}
    assert texts == {f"{number:06d}": f"text {number}" for number in range(70)}


@pytest.mark.parametrize("with_cache", [False, True])
def test_single_samples_are_looked_up(with_cache, server, cache):
    given_cache = cache if with_cache else None
    samples = dataset_of(server.url, cache=given_cache).as_map()
    for number in (22, 3, 0, 22, 11):
        assert samples[number]["txt"].split()[1] == str(number)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_no_batch_waits_for_a_whole_shard_as_long_as_frames_may_come(
    num_workers, epochs, server, cache, monkeypatch
):
    hold_what_nobody_waits_for(monkeypatch)
    loader = make(server.url, num_workers, cache=cache, **by_fork(num_workers))
    assert contents(loader) == epochs[0]
    folder = CacheFolder(Path(cache.folder))
    sizes = {each.size for each in folder.entries() if not each.is_part}
    assert not sizes & {file.stat().st_size for file in kept_corpus(COUNTS).glob("*.tar")}


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_run_that_is_broken_off_in_a_shard_resumes_in_another_topology(
    with_cache, epochs, server, cache
):
    given_cache = cache if with_cache else None
    first = make(server.url, 2, cache=given_cache, multiprocessing_context="fork")
    read = valid_of(islice(first, 3))
    state = first.state_dict()
    ranks = loaders_of(server.url, 2, batch_size=2, cache=given_cache)
    for loader in ranks:
        loader.load_state_dict(state)
    rest = [number for loader in ranks for number in valid_of(loader)]
    assert sorted(read + rest) == list(range(sum(COUNTS)))
    back = make(server.url, cache=given_cache)
    back.load_state_dict(state)
    assert contents(back) == epochs[0][3:]


@pytest.mark.parametrize("with_cache", [False, True])
def test_to_open_a_shard_costs_its_version_its_index_and_its_seek_table(server, cache, with_cache):
    catalog = open_catalog(server.url, cache=cache if with_cache else None)
    with ShardPool(catalog, is_glance=True) as pool:
        assert pool[0].is_ranged  # and the store was asked whether it has ranges
        server.asked.clear()
        assert pool[2].is_ranged
    name = "shard-0002.tar.zst"
    assert server.asked == {("HEAD", name): 1, ("GET", f"{name}.index"): 1, ("GET", name): 1}


def test_a_table_that_is_longer_than_what_is_asked_for_first_comes_by_a_second_request(
    server, epochs, monkeypatch
):
    monkeypatch.setattr(framed_shard, "END_BYTES", 20)
    assert contents(make(server.url, cache=None)) == epochs[0]


def test_a_batch_of_samples_is_fetched_in_one_go_and_the_next_of_their_frames_is_at_hand(server):
    # Without threads that read ahead, whose requests may be counted already.
    options = {"cache": None, "shuffle": False, "grid": None, "decode_threads": 0}
    loader = make(server.url, batch_size=3, **options)
    batches = iter(loader)
    assert next(batches)["__index__"].tolist() == [0, 1, 2]
    # The byte that tells of ranges, the seek table, and two frames.
    assert gets(server, FIRST) == 3
    with ShardPool(open_catalog(server.url, cache=None)) as pool:
        shard = pool[0]
        assert isinstance(shard, RangedShard)
        shard.expect(np.array([0, 1, 2]), None)
        server.asked.clear()
        assert bytes(shard.fields(3)["cls"]) == b"3"  # of the second frame
        assert gets(server, FIRST) == 0
        assert bytes(shard.fields(4)["cls"]) == b"4"
        assert gets(server, FIRST) == 1


def test_only_the_frames_that_hold_a_sample_are_fetched_and_counted(tmp_path):
    folder = tmp_path / "large"
    folder.mkdir()
    tar = tar_bytes(sample_members(200))
    edges = range(2 * ONE_SAMPLE, len(tar) - 1024, 2 * ONE_SAMPLE)
    (_, frame) = frames_of(tar, edges)[75]
    (folder / FIRST).write_bytes(seekable(tar, edges))
    index_dataset(folder, progress=False)
    url = upload(folder, "memory://framed/large")
    with ShardPool(open_catalog(url, cache=None)) as pool:
        ranges = ranges_of(pool)
        shard = pool[0]
        table_bytes = ranges.num_bytes
        assert bytes(shard.fields(150, frozenset(["txt"]))["txt"]).split()[1] == b"150"
        assert ranges.num_requests == 2
        assert ranges.num_bytes == table_bytes + len(frame)


def test_what_comes_by_frames_is_limited_and_then_shards_are_whole(server, tmp_path):
    file = (server.folder / FIRST).read_bytes()
    most = len(file) + sizes_of(file)[0][0] + 1  # looking, the first frame, and not the second
    cache = sl.Cache(tmp_path / "cache", range_bytes=most)
    with ShardPool(open_catalog(server.url, cache=cache)) as pool:
        first = pool[0]
        assert first.is_ranged
        for sample in range(5):
            assert set(first.fields(sample)) == {"txt", "cls"}  # whole, beyond the limit
        assert ranges_of(pool).num_bytes == most - 1
        assert not pool[3].is_ranged
        assert not pool[0].is_ranged


def test_whole_shards_arrive_behind_and_no_frame_is_kept_then(server, cache):
    with ShardPool(open_catalog(server.url, cache=cache)) as pool:
        ranged = pool[0]
        read = [ranged.fields(sample) for sample in range(5)]
        assert ranges_of(pool)._kept.num_bytes > 0
        eventually(lambda: ranges_of(pool).has_come(0))
        mapped = pool[0]
        assert mapped.cached_bytes
        assert ranges_of(pool)._kept.num_bytes == 0
        assert [mapped.fields(sample) for sample in range(5)] == read


@st.composite
def shards(draw):
    """A tar of samples, frames of it that end anywhere, and samples to ask for, some at once."""
    sizes = draw(st.lists(st.integers(0, 3000), min_size=1, max_size=12))
    members = [
        (f"{number:03d}.{field}", bytes(np.arange(number, number + size, dtype=np.uint8)))
        for number, size in enumerate(sizes)
        for field in ("a", "b")
    ]
    tar = tar_bytes(members)
    edges = sorted(draw(st.lists(st.integers(0, len(tar)), max_size=12)))
    asked = draw(
        st.lists(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=5), max_size=8)
    )
    return tar, edges, asked


@given(shards(), st.booleans(), st.sampled_from([0, 2000, 1 << 20]), st.sampled_from([0, 4000]))
def test_any_frames_give_the_bytes_of_the_tar_in_any_order(
    tmp_path_factory, shard, checksums, kept_bytes, gap_bytes
):
    """Whatever is kept of them, and however far requests are joined."""
    tar, edges, asked = shard
    folder = tmp_path_factory.mktemp("framed")
    (folder / FIRST).write_bytes(seekable(tar, edges, checksums=checksums))
    index_dataset(folder, progress=False)
    upload(folder, f"memory://{folder.name}")
    expected = dict(tarfile_members(tar))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(by_ranges, "KEPT_BYTES", kept_bytes)
        patched.setattr(by_ranges, "coalesce", partial(coalesce, gap_bytes=gap_bytes))
        with ShardPool(open_catalog(f"memory://{folder.name}", cache=None)) as pool:
            opened = pool[0]
            assert isinstance(opened, RangedShard)
            for samples in asked:
                opened.expect(np.array(samples), None)
                for sample in samples:
                    found = opened.fields(sample)
                    assert {name: bytes(data) for name, data in found.items()} == {
                        field: expected[f"{sample:03d}.{field}"] for field in ("a", "b")
                    }
            assert ranges_of(pool)._kept.num_bytes <= kept_bytes


def with_table(entries, **told):
    """The frames of a shard with another table."""

    def change(file):
        return file[: -len(table_of([(0, 0)] * 4))] + table_of(entries(file), **told)

    return change


def sizes_of(file):
    table = file[-len(table_of([(0, 0)] * 4)) :]
    return [struct.unpack_from("<II", table, 8 + 8 * number) for number in range(4)]


def moved(by, *, of):
    """The sizes of frames, of which the first two have moved their border: sums stay."""

    def entries(file):
        sizes = [list(each) for each in sizes_of(file)]
        sizes[0][of] += by
        sizes[1][of] -= by
        return sizes

    return entries


MOVED = "does not end there|was expected, and there is"
HOSTILE = {
    "lengths that don't add up": (lambda file: sizes_of(file)[1:], {}, ShardError, "together"),
    "overlapping": (lambda file: sizes_of(file)[:1] * 4, {}, ShardError, "together"),
    "zero": (lambda file: [(0, 9), *sizes_of(file)], {}, ShardError, "has no bytes"),
    "huge": (lambda _: [(2**32 - 1, 2**32 - 1)] * 4, {}, ShardError, "together"),
    "more than there is room for": (
        sizes_of,
        {"num_frames": 2**32 - 1},
        ShardError,
        "seek table of 4294967295 frames",
    ),
    "another version": (sizes_of, {"descriptor": 0x7C}, ShardError, "reserved bits"),
    "a tar of another size": (
        lambda file: [(packed, plain + 512) for packed, plain in sizes_of(file)],
        {},
        ManifestError,
        "seek table says that the frames hold",
    ),
    "borders in the file moved": (moved(3, of=0), {}, ShardError, MOVED),
    "borders in the file moved back": (moved(-3, of=0), {}, ShardError, MOVED),
    "borders in the tar moved": (moved(512, of=1), {}, ShardError, "and it holds"),
    "borders in the tar moved back": (moved(-512, of=1), {}, ShardError, "and it holds"),
}


def reindexed(server, change):
    """The first shard changed and the corpus indexed anew, as one who means harm has it."""
    replaced(server, change)
    index_dataset(server.folder, progress=False)


@pytest.mark.parametrize(("entries", "told", "kind", "words"), HOSTILE.values(), ids=HOSTILE)
def test_a_seek_table_that_lies_is_refused_and_with_a_cache_nobody_believes_it(
    entries, told, kind, words, server, epochs, cache
):
    reindexed(server, with_table(entries, **told))
    with pytest.raises(kind, match=rf"shard-0000.*({words})"):
        contents(make(server.url, cache=None))
    assert contents(make(server.url, cache=cache)) == epochs[0]


def test_a_table_that_has_more_bytes_than_are_read_of_one_is_refused(server, cache, monkeypatch):
    monkeypatch.setattr(framed_shard, "MOST_TABLE_BYTES", 40)
    with pytest.raises(UsageError, match=r"so many frames.*cache="):
        contents(make(server.url, cache=None))
    assert len(contents(make(server.url, cache=cache))) > 0


def test_frames_that_are_large_beside_their_samples_need_a_cache(
    server, epochs, cache, monkeypatch
):
    monkeypatch.setattr(framed_shard, "FULL_FRAME_BYTES", 0)
    with pytest.raises(UsageError, match=r"too large.*holds 4096, and at most 2048.*cache=.*zstd"):
        contents(make(server.url, cache=None))
    assert contents(make(server.url, cache=cache)) == epochs[0]


@pytest.mark.parametrize(
    ("suffix", "packing", "words"),
    [
        (".zst", zstd_frame, "without a seek table"),
        (".zst", gzip.compress, "without a seek table"),
        (".gz", gzip.compress, "gzip, which has no frames"),
    ],
)
def test_shards_without_a_seek_table_need_a_cache_and_say_so(
    suffix, packing, words, tmp_path, cache
):
    folder = tmp_path / "packed"
    folder.mkdir()
    (folder / f"0.tar{suffix}").write_bytes(packing(tar_bytes(sample_members(5))))
    index_dataset(folder, progress=False)
    url = upload(folder, f"memory://framed/{suffix}-{packing.__name__}")
    with pytest.raises(UsageError, match=f"{words}.*give cache=.*shardloader write"):
        contents(make(url, cache=None))
    assert sorted(valid_of(make(url, cache=cache, grid=None))) == list(range(5))


def damaged(file):
    """A byte of the first frame changed."""
    return file[:60] + bytes((file[60] ^ 1,)) + file[61:]


def test_a_damaged_frame_is_fetched_once_more_and_then_it_is_an_error(server, cache):
    replaced(server, damaged)
    with pytest.raises(ShardError, match=FIRST) as alone:
        contents(make(server.url, cache=None))
    assert alone.value.kind in {"bad_compression", "checksum_mismatch"}
    with pytest.raises(ShardError, match=FIRST) as whole:
        contents(make(server.url, cache=cache))
    assert (alone.value.kind, alone.value.offset) == (whole.value.kind, whole.value.offset)
    with ShardPool(open_catalog(server.url, cache=None)) as pool:
        shard = pool[0]
        server.asked.clear()
        with pytest.raises(ShardError):
            shard.fields(0)
        assert gets(server, FIRST) == 2
        assert bytes(shard.fields(4)["cls"]) == b"4"  # what is sound is given


def test_samples_of_a_damaged_frame_are_skipped_and_no_others(server):
    replaced(server, damaged)
    loader = make(server.url, cache=None, on_error=sl.Skip(max_share=1), grid=None)
    assert sorted(valid_of(loader)) == list(range(2, sum(COUNTS)))


@pytest.mark.parametrize(
    ("nth", "change"), [(2, lambda file: file[:-40] + bytes(31) + file[-9:]), (3, damaged)]
)
def test_what_is_damaged_on_the_way_once_is_not_seen(nth, change, server, epochs, caplog):
    """The seek table, or the first frames; the first request tells whether there are ranges."""
    caplog.set_level("INFO", "shardloader")
    content = server.content
    server.etags[FIRST] = "the same"

    def damaging(path):
        is_hit = path == FIRST and gets(server, path) == nth
        return change(content(path)) if is_hit else content(path)

    server.content = damaging
    with ShardPool(open_catalog(server.url, cache=None)) as pool:
        assert bytes(pool[0].fields(0)["cls"]) == b"0"
    assert "once more" in caplog.text
    assert contents(make(server.url, cache=None)) == epochs[0]


@pytest.mark.parametrize("faults", [["503", "503"], ["reset"], ["short"], ["429", "short"]])
def test_what_passes_is_not_seen(faults, server, epochs):
    server.faults["GET", FIRST] = ["", *faults]
    assert contents(make(server.url, cache=None)) == epochs[0]
    assert server.faults["GET", FIRST] == []


def test_a_body_that_is_short_again_and_again_is_an_error(server):
    server.faults["GET", FIRST] = ["", *["short"] * 9]
    with pytest.raises(StoreError, match=r"gives .* of them, each of 3 times"):
        contents(make(server.url, cache=None))


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_server_without_ranges_gives_whole_shards(num_workers, epochs, server, cache):
    server.has_ranges = False
    loader = make(server.url, num_workers, cache=cache, **by_fork(num_workers))
    assert contents(loader) == epochs[0]
    with raises_in_worker(StoreError, "gives whole files.*give cache="):
        contents(make(server.url, num_workers, cache=None, **by_fork(num_workers)))


def test_a_shard_that_changes_while_it_is_read_is_looked_at_and_read_again(server, epochs, caplog):
    caplog.set_level("INFO", "shardloader")
    changed_at_the(3, server, FIRST)
    assert contents(make(server.url, cache=None)) == epochs[0]
    assert "changed while it was read" in caplog.text


def stored(tar):
    """Frames of two samples, stored as they are: their sizes say nothing of what they hold."""
    parts = [tar[start : start + 2 * ONE_SAMPLE] for start in range(0, len(tar), 2 * ONE_SAMPLE)]
    frames = [
        b"\x28\xb5\x2f\xfd\x60" + struct.pack("<H", len(part) - 256)
        + (len(part) << 3 | 1).to_bytes(3, "little") + part
        for part in parts
    ]  # fmt: skip
    table = table_of((len(frame), len(part)) for frame, part in zip(frames, parts, strict=True))
    return b"".join(frames) + table


@pytest.mark.parametrize("while_read", [False, True])
@pytest.mark.parametrize("with_cache", [False, True])
def test_another_shard_of_the_same_sizes_is_refused(while_read, with_cache, server, cache):
    reindexed(server, lambda _: stored(tar_bytes(sample_members(5))))
    other = stored(tar_bytes(sample_members(5, first=50)))
    assert len(other) == (server.folder / FIRST).stat().st_size

    def put():
        (server.folder / FIRST).write_bytes(other)

    if while_read:
        changed_at_the(3, server, FIRST, after=put)
    else:
        put()
    with pytest.raises(DataError, match=r"shard-0000\.tar.*was replaced") as caught:
        contents(make(server.url, cache=cache if with_cache else None))
    assert type(caught.value) is ManifestError
