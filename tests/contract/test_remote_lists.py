"""Shards of a remote store that no manifest lists: by URLs, by a pattern, and indexed in place."""

from __future__ import annotations

import json
import logging

import fsspec
import pytest

import shardloader as sl
from shardloader.cli import main
from shardloader.errors import ShardError, StoreError, UsageError, WorldError
from shardloader.reading.catalog import open_catalog
from shardloader.reading.remote_indexing import index_remote
from shardloader.reading.source import UNFINISHED_NAME
from tests.contract.test_remote_sources import make, upload
from tests.corpora import contents, kept_corpus, make_corpus
from tests.reading.http_store import HttpStore
from tests.shards import write_shard

COUNTS = (5, 0, 4, 7)
NAMES = [f"shard-{number:04d}.tar" for number in range(len(COUNTS))]


@pytest.fixture
def cache(tmp_path):
    return sl.Cache(tmp_path / "cache", max_bytes="50MB")


@pytest.fixture(scope="module")
def local():
    """The batches of the local copy."""
    return contents(make(kept_corpus(COUNTS)))


@pytest.fixture
def server(tmp_path):
    """A server in this process of a corpus that a test may change."""
    folder = make_corpus(tmp_path / "corpus", COUNTS)
    with HttpStore.of(folder.parent) as running:
        running.folder = folder  # type: ignore[attr-defined]
        yield running


@pytest.fixture
def bare(request):
    """The URL of shards in memory that were never indexed."""
    url = f"memory://bare/{request.node.name}"
    memory = fsspec.filesystem("memory")
    for number, name in enumerate(NAMES):
        data = (kept_corpus(COUNTS) / name).read_bytes()
        memory.pipe_file(f"{url}/{'b' if number else 'a'}/{name}", data)
    return url


def there(url):
    memory = fsspec.filesystem("memory")
    return sorted(name.partition("/bare/")[2].partition("/")[2] for name in memory.find(url))


@pytest.mark.parametrize("with_cache", [False, True])
def test_shards_by_pattern_or_list_give_the_batches_of_the_local_copy(
    with_cache, server, cache, local
):
    pattern = f"{server.url}/corpus/shard-{{0000..0003}}.tar"
    given = cache if with_cache else None
    assert contents(make(pattern, cache=given)) == local
    urls = [f"{server.url}/corpus/{name}" for name in NAMES]
    assert contents(make(urls, cache=given)) == local
    assert ("GET", "corpus/manifest.json") not in server.asked
    folder = upload(kept_corpus(COUNTS), "memory://lists/a")
    assert contents(make([f"{folder}/{name}" for name in NAMES], cache=given)) == local


def test_shards_in_several_folders_are_told_apart_by_their_whole_urls(server, cache):
    for place, first in (("x y", 0), ("z#1", 40)):
        write_shard(server.folder.parent / place / "000.tar", 3, first=first)
        open_catalog(server.folder.parent / place)
    urls = [f"{server.url}/x%20y/000.tar", f"{server.url}/z%231/000.tar"]
    dataset = sl.ShardDataset(
        urls, shuffle=False, cache=cache, topology=sl.Topology(rank=0, world_size=1)
    )
    assert [each["__key__"] for each in dataset] == [
        f"{number:06d}" for number in (0, 1, 2, 40, 41, 42)
    ]
    assert dataset.manifest.names == ("x y/000.tar", "z#1/000.tar")


def test_shards_without_an_index_name_the_command_that_makes_it(bare):
    with pytest.raises(UsageError, match=r"000\.tar\.index.*`shardloader index`"):
        open_catalog([f"{bare}/a/{NAMES[0]}"])
    with pytest.raises(UsageError, match=rf"manifest\.json.*`shardloader index {bare}`"):
        open_catalog(bare)


def test_indexing_a_remote_folder_gives_what_indexing_a_local_copy_gives(bare, tmp_path, local):
    for number, name in enumerate(NAMES):
        target = tmp_path / "copy" / ("b" if number else "a") / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((kept_corpus(COUNTS) / name).read_bytes())
    from shardloader.reading.indexing import index_dataset

    expected, _ = index_dataset(tmp_path / "copy", digest=True, progress=False)
    assert main(["index", bare]) == 0
    manifest = open_catalog(bare).manifest
    assert manifest.to_json_bytes() == expected.to_json_bytes()
    assert contents(make(bare, cache=None)) == local
    assert there(bare) == [
        "a/shard-0000.tar",
        "a/shard-0000.tar.index",
        *(f"b/{name}{end}" for name in NAMES[1:] for end in ("", ".index")),
        "manifest.json",
    ]


@pytest.mark.parametrize("kind", ["s3", "gcs", "azurite", "hub"])
def test_shards_on_real_stores_are_indexed_where_they_lie(kind, request, tmp_path, local):
    found, folder, more = request.getfixturevalue(kind), tmp_path / "bare", {}
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_bytes((kept_corpus(COUNTS) / name).read_bytes())
    url, options = found.put_folder("bare", folder), found.options()
    if kind == "hub":
        with pytest.raises(UsageError, match=r"each would be a commit: give index_dir="):
            index_remote(url, storage_options=options, progress=False)
        more["index_dir"] = tmp_path / "indexes"
    index_remote(url, storage_options=options, progress=False, **more)
    assert contents(make(url, cache=None, storage_options=options, **more)) == local


def test_indexes_of_a_remote_folder_may_lie_in_a_local_one(server, tmp_path, local):
    names = [path.name for path in server.folder.iterdir()]
    for name in names:
        if not name.endswith(".tar"):
            (server.folder / name).unlink()
    pattern = f"{server.url}/corpus/shard-{{0000..0003}}.tar"
    indexes = tmp_path / "indexes"
    with pytest.raises(StoreError, match="index_dir"):
        index_remote(pattern, progress=False)
    assert main(["index", pattern, "--index-dir", str(indexes)]) == 0
    assert sorted(path.name for path in indexes.iterdir()) == [f"{name}.index" for name in NAMES]
    assert contents(make(pattern, index_dir=indexes, cache=None)) == local
    assert contents(make(pattern, index_dir=indexes, cache=sl.Cache(tmp_path / "c"))) == local


def test_a_folder_that_can_not_be_listed_says_to_give_a_pattern(server):
    with pytest.raises((UsageError, StoreError), match=r"pattern|none"):
        index_remote(f"{server.url}/corpus", progress=False)


def test_what_is_indexed_is_not_read_again_and_what_changed_is(server, tmp_path):
    pattern = f"{server.url}/corpus/shard-{{0000..0003}}.tar"
    options = {"index_dir": tmp_path / "indexes", "progress": False}
    first, _ = index_remote(pattern, **options)
    write_shard(server.folder / NAMES[0], 5, first=50)
    (tmp_path / "indexes" / f"{NAMES[2]}.index").write_bytes(b"broken")
    server.asked.clear()
    second, _ = index_remote(pattern, **options)
    assert first.index_digests[1:] == second.index_digests[1:]
    assert first.index_digests[0] != second.index_digests[0]
    whole = {name: server.asked["GET", f"corpus/{name}"] for name in NAMES}
    assert whole[NAMES[3]] <= 3  # whether there are ranges, and two headers
    server.asked.clear()
    third, _ = index_remote(pattern, force=True, **options)
    assert third.digest == second.digest


def test_a_damaged_shard_is_named_and_the_others_keep_their_indexes(bare):
    memory = fsspec.filesystem("memory")
    data = memory.cat_file(f"{bare}/b/{NAMES[2]}")
    memory.pipe_file(f"{bare}/b/{NAMES[2]}", data[:520])
    with pytest.raises(ShardError, match=NAMES[2]):
        index_remote(bare, progress=False)
    assert f"b/{NAMES[3]}.index" in there(bare)
    assert "manifest.json" not in there(bare)
    memory.pipe_file(f"{bare}/b/{NAMES[2]}", data)
    assert index_remote(bare, progress=False)[0].num_samples == sum(COUNTS)


def test_the_command_line_looks_at_remote_datasets(bare, capsys, caplog):
    caplog.set_level(logging.ERROR, "shardloader")
    options = ["--storage-options", "{}"]
    assert main(["index", bare, "--json", *options]) == 0
    (indexed,) = json.loads(capsys.readouterr().out)["datasets"]
    assert (indexed["samples"], indexed["has_content_digests"]) == (16, True)
    assert main(["info", bare, "--json", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["samples"], told["digest"]) == (16, indexed["digest"])
    assert told["compression"] == {"none": 4}
    assert main(["info", bare]) == 0
    assert "all present" not in capsys.readouterr().out
    assert main(["verify", bare, "--json", "--decode", *options]) == 0
    findings = json.loads(capsys.readouterr().out)["datasets"][0]["findings"]
    assert {each["kind"] for each in findings} == {"empty_shard"}
    listing = ["--batch-size", "2", "--steps", "0:1", "--no-shuffle", *options]
    assert main(["plan", bare, "--json", *listing]) == 0
    keys = [row["key"] for row in json.loads(capsys.readouterr().out)["listing"]]
    assert keys == ["000000", "000001"]
    assert sl.plan(bare, batch_size=2, storage_options={}).steps == 8


def test_a_remote_dataset_is_measured_with_the_options_of_its_store(server, capsys, tmp_path):
    bench = ["--seconds", "0.01", "--rounds", "1", "--num-workers", "0", "--batch-size", "2"]
    options = ["--storage-options", json.dumps({"headers": {"X-Token": "abc"}})]
    cache = ["--cache", str(tmp_path / "cache")]
    assert main(["bench", f"{server.url}/corpus", "--json", *bench, *cache, *options]) == 0
    assert json.loads(capsys.readouterr().out)["dataset"]["samples"] == 16
    assert {headers.get("X-Token") for headers in server.headers_seen} == {"abc"}


def test_verify_finds_what_is_wrong_with_remote_shards(server, capsys):
    (server.folder / NAMES[0]).unlink()
    write_shard(server.folder / NAMES[2], 3, first=50)
    (server.folder / f"{NAMES[3]}.index").unlink()
    assert main(["verify", f"{server.url}/corpus", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["datasets"][0]["findings"]
    found = {(each["kind"], each["shard"]) for each in findings}
    assert ("missing_shard", NAMES[0]) in found
    assert ("missing_index", NAMES[3]) in found
    assert {kind for kind, shard in found if shard == NAMES[2]}


def test_options_of_a_store_are_refused_for_local_data(tmp_path, capsys):
    make_corpus(tmp_path / "c", (2,))
    for command in ("index", "info", "verify", "show", "bench"):
        assert main([command, str(tmp_path / "c"), "--storage-options", '{"a": 1}']) == 2
        assert "--storage-options" in capsys.readouterr().err


def test_a_folder_whose_writer_has_not_finished_is_said_to_be_so(bare):
    fsspec.filesystem("memory").pipe_file(f"{bare}/{UNFINISHED_NAME}", b"{}")
    with pytest.raises(UsageError, match="a writer was broken off here, or still writes"):
        open_catalog(bare)
    assert main(["info", bare]) == 2
    assert main(["verify", bare]) == 2
    index_remote(bare)  # to take what is there
    assert open_catalog(bare).manifest.num_samples == sum(COUNTS)


@pytest.mark.parametrize(
    ("names", "way_out"),
    [
        (["a/*.tar"], r"\* stands for nothing in a URL: give the folder"),
        (["a", "b"], "give one folder, or list the shards in it"),
        ([f"a/{NAMES[0]}"], "make them with `shardloader index`"),
    ],
)
def test_what_a_list_of_urls_lacks_is_told_with_the_way_out(bare, names, way_out):
    with pytest.raises(UsageError, match=way_out):
        open_catalog([f"{bare}/{name}" for name in names], cache=None)


@pytest.mark.parametrize("words", [["info"], ["plan", "--batch-size", "2"], ["verify"]], ids=repr)
def test_a_place_with_nothing_in_it_is_said_to_be_so_and_not_to_be_indexed(words, s3, capsys):
    s3.put("bucket-of-others")
    options = ["--storage-options", json.dumps(s3.options())]
    for url in ("s3://no-such-bucket/corpus", "s3://bucket-of-others/none", "memory://none/at/all"):
        assert main([*words, url, *(options if url.startswith("s3") else [])]) == 2
        told = capsys.readouterr().err
        assert f"{url}: the store has no such bucket, or nothing in that folder" in told
        assert "shardloader index" not in told


def test_a_shard_of_a_list_that_is_not_there_is_said_to_be_so_and_not_to_be_indexed(bare):
    with pytest.raises(UsageError, match=r"b/none\.tar: there is no such shard") as caught:
        open_catalog([f"{bare}/b/none.tar"], cache=None)
    assert "shardloader index" not in str(caught.value)


def test_a_bucket_that_is_not_there_is_said_to_be_so_by_index(s3):
    with pytest.raises(WorldError, match=r"NoSuchBucket.*right URL$"):
        index_remote("s3://no-such-bucket/corpus", storage_options=s3.options())
