"""A dataset behind a URL gives the batches of its local copy, or an error that says what is wrong.

`memory://` where processes are forked or none is started; a server of the standard library in a
process of its own for workers however they start.
"""

from __future__ import annotations

import gzip
import json
import logging
import pickle
import subprocess
import sys
from itertools import islice
from pathlib import Path

import fsspec
import pytest

import shardloader as sl
from shardloader.cli import main
from shardloader.dataset.skipping import loading_kind
from shardloader.errors import ManifestError, ShardError, StoreError, UsageError
from shardloader.reading.catalog import earlier, open_catalog
from shardloader.reading.indexing import index_dataset
from shardloader.reading.pool import ShardPool
from tests.corpora import (
    contents,
    dataset_of,
    kept_corpus,
    loader_of,
    loaders_of,
    make_corpus,
    raises_in_worker,
    valid_of,
)
from tests.reading.http_store import HttpStore
from tests.reading.origins import FORK
from tests.shards import sample_members, tar_bytes, write_shard

COUNTS = (5, 0, 4, 7, 1, 6)
GRID = sl.Grid(ranks=1, workers=2, batch=3)
HANG_S = 60


def upload(folder, url):
    """Put a local folder's files under a URL of memory://."""
    memory = fsspec.filesystem("memory")
    for file in folder.rglob("*"):
        if file.is_file():
            memory.pipe_file(f"{url}/{file.relative_to(folder)}", file.read_bytes())
    return url


@pytest.fixture(scope="module")
def served():
    """The corpus's URL at a server in another process."""
    command = [sys.executable, "-m", "tests.reading.http_store", str(kept_corpus(COUNTS))]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate(timeout=HANG_S)


@pytest.fixture
def cache(tmp_path):
    return sl.Cache(tmp_path / "cache", max_bytes="50MB")


def cached(cache):
    return sorted(Path(cache.folder).glob("*.cached")) if Path(cache.folder).exists() else []


def make(source, num_workers=0, **options):
    return loader_of(
        source,
        num_workers=num_workers,
        **{"grid": GRID, "batch_size": 3, "timeout": HANG_S if num_workers else 0, **options},
    )


@pytest.fixture(scope="module")
def epochs():
    """Two epochs of the local copy."""
    loader = make(kept_corpus(COUNTS))
    return [contents(loader) for _ in range(2)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_folder_in_memory_gives_the_batches_of_the_local_one(num_workers, epochs, cache):
    url = upload(kept_corpus(COUNTS), "memory://corpora/a")
    context = {"multiprocessing_context": "fork"} if num_workers else {}
    loader = make(url, num_workers, cache=cache, **context)
    assert [contents(loader) for _ in range(2)] == epochs


@pytest.mark.parametrize(
    ("num_workers", "method"), [(0, None), (2, "fork"), (2, "spawn")], ids=["0", "fork", "spawn"]
)
def test_a_folder_over_http_gives_the_batches_of_the_local_one(
    num_workers, method, served, epochs, cache
):
    loader = make(
        served,
        num_workers,
        cache=cache,
        multiprocessing_context=method,
        persistent_workers=num_workers > 0,
        storage_options={"headers": {"X-Token": "abc"}},
    )
    assert contents(loader) == epochs[0]
    list(islice(loader, 3))
    loader.load_state_dict(loader.state_dict())
    assert contents(loader) == epochs[1][3:]


def test_a_state_of_the_local_copy_goes_on_at_the_url_in_another_topology(served, epochs, cache):
    local = make(kept_corpus(COUNTS))
    read = valid_of(islice(local, 3))
    state = local.state_dict()
    ranks = loaders_of(served, 2, batch_size=2, cache=cache)
    for loader in ranks:
        loader.load_state_dict(state)
    rest = [number for loader in ranks for number in valid_of(loader)]
    assert sorted(read + rest) == list(range(sum(COUNTS)))
    back = make(kept_corpus(COUNTS))
    back.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert contents(back) == epochs[0][3:]


@pytest.fixture
def server(tmp_path):
    """A server in this process of a small corpus of its own, that a test may change."""
    folder = make_corpus(tmp_path / "corpus", (4, 3))
    with HttpStore.of(tmp_path) as running:
        running.folder = folder  # type: ignore[attr-defined]
        yield running


SHARD = "corpus/shard-0000.tar"


def url_of(server):
    return f"{server.url}/corpus"


@pytest.fixture(params=[0, None], ids=["nothing ahead", "ahead"])
def either(request, tmp_path):
    """A cache into which what comes next is fetched, or is not, while a shard is read."""
    return sl.Cache(tmp_path / "cache", max_bytes="50MB", prefetch_bytes=request.param)


def cached_of_first(server, cache):
    """Which files of the first shard are cached; of the other one what was fetched ahead may be.

    Whatever else is there is told as what it begins with.
    """
    names = {path.read_bytes(): path.name for path in server.folder.iterdir()}
    found = {names.get(data, data[:40]) for data in map(Path.read_bytes, cached(cache))}
    is_ahead = cache.prefetch_bytes is None
    return found - ({"shard-0001.tar", "shard-0001.tar.index"} if is_ahead else set())


def everything(source, cache, **options):
    """The number of each sample, in the manifest's order."""
    dataset = dataset_of(source, shuffle=False, cache=cache, **options)
    return [sample["__index__"] for sample in dataset]


def test_each_file_is_fetched_once_a_node_and_no_folder_is_listed(server, cache):
    for _ in range(2):
        assert everything(url_of(server), cache) == list(range(7))
    fetched = {path: count for (verb, path), count in server.asked.items() if verb == "GET"}
    assert fetched == {
        "corpus/manifest.json": 2,
        "corpus/shard-0000.tar": 1,
        "corpus/shard-0000.tar.index": 1,
        "corpus/shard-0001.tar": 1,
        "corpus/shard-0001.tar.index": 1,
    }
    assert len(cached(cache)) == 4


def test_processes_that_ask_at_once_fetch_each_file_once(server, cache):
    catalog = open_catalog(url_of(server), cache=cache)
    start = FORK.Barrier(4)

    def read():
        start.wait(HANG_S)
        with ShardPool(catalog) as pool:
            sys.exit(0 if [pool[n].num_samples for n in (0, 1)] == [4, 3] else 1)

    processes = [FORK.Process(target=read) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(HANG_S)
    assert [process.exitcode for process in processes] == [0] * 4
    fetched = {path: count for (verb, path), count in server.asked.items() if verb == "GET"}
    assert set(fetched.values()) == {1}
    assert len(fetched) == 5


@pytest.mark.parametrize(
    ("path", "faults"),
    [
        (SHARD, ["503", "503"]),
        (SHARD, ["reset"]),
        (SHARD, ["short"]),
        (SHARD, ["html"]),
        (f"{SHARD}.index", ["html"]),
        ("corpus/manifest.json", ["html"]),
        (f"{SHARD}.index", ["429", "reset"]),
        ("corpus/manifest.json", ["503", "reset"]),
    ],
)
def test_what_passes_is_not_seen(server, cache, path, faults):
    server.faults["GET", path] = list(faults)
    assert everything(url_of(server), cache) == list(range(7))
    assert server.faults["GET", path] == []


def test_an_error_page_in_a_shards_place_names_it_and_is_not_cached(server, either):
    server.faults["GET", SHARD] = ["html"] * 99
    with pytest.raises(ShardError, match=r"shard-0000\.tar: not a tar.*DOCTYPE.*HTML"):
        everything(url_of(server), either)
    assert cached_of_first(server, either) == {"shard-0000.tar.index"}
    server.faults.clear()
    assert everything(url_of(server), either) == list(range(7))


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "XML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
        (b"", "0 bytes"),
    ],
    ids=["xml", "lfs", "empty"],
)
def test_another_file_in_a_shards_place_is_named_for_what_it_is(server, either, content, cause):
    (server.folder / "shard-0000.tar").write_bytes(content)
    with pytest.raises(ShardError, match=cause):
        everything(url_of(server), either)
    assert cached_of_first(server, either) == {"shard-0000.tar.index"}


def test_an_error_page_in_the_manifests_place_is_no_manifest(server, cache):
    server.faults["GET", "corpus/manifest.json"] = ["html"] * 2
    with pytest.raises(ManifestError, match=r"manifest\.json: a manifest is JSON"):
        everything(url_of(server), cache)


def test_a_shard_that_changes_while_it_is_fetched_is_fetched_again(server, cache, caplog):
    caplog.set_level(logging.INFO, "shardloader")
    content, asked = server.content, server.asked

    def changing(path):
        if path == SHARD and asked["HEAD", SHARD] > 1:
            server.etags[SHARD] = "second"
        return content(path)

    server.etags[SHARD] = "first"
    server.content = changing
    assert everything(url_of(server), cache) == list(range(7))
    assert server.asked["GET", SHARD] == 2
    assert "changed while it was read" in caplog.text


def test_a_shard_replaced_by_another_is_refused(server, cache):
    shard = server.folder / "shard-0000.tar"
    write_shard(shard, 4, first=50)
    with pytest.raises(ManifestError, match="was replaced"):
        everything(url_of(server), cache)
    write_shard(shard, 20)
    with pytest.raises(ManifestError, match=r"has \d+ bytes, and the manifest lists"):
        everything(url_of(server), cache)


def test_a_shard_of_another_digest_is_not_cached(server, either):
    index_dataset(server.folder, digest=True, progress=False)
    shard = server.folder / "shard-0000.tar"
    data = bytearray(shard.read_bytes())
    data[520] ^= 1  # in the first field's bytes
    shard.write_bytes(data)
    with pytest.raises(ManifestError, match="digest"):
        everything(url_of(server), either)
    assert cached_of_first(server, either) == {"shard-0000.tar.index"}


def test_a_cut_upload_is_refused_before_it_is_cached(server, either):
    shard = server.folder / "shard-0000.tar"
    shard.write_bytes(shard.read_bytes()[:2000])
    with pytest.raises(ManifestError, match="upload broken off"):
        everything(url_of(server), either)
    assert cached_of_first(server, either) == {"shard-0000.tar.index"}


def test_an_index_of_another_version_is_refused(server, either):
    other = (server.folder / "shard-0001.tar.index").read_bytes()
    (server.folder / "shard-0000.tar.index").write_bytes(other)
    with pytest.raises(ManifestError, match=r"shard-0000\.tar\.index: the index has the digest"):
        everything(url_of(server), either)
    (server.folder / "shard-0000.tar.index").write_bytes(b"not told from the other one's")
    assert cached_of_first(server, either) == set()


@pytest.mark.parametrize("name", ["shard-0000.tar", "shard-0000.tar.index"])
def test_a_missing_file_is_named(server, cache, name):
    (server.folder / name).unlink()
    with pytest.raises(sl.ShardLoaderError, match=f"{name}: the store has no such file"):
        everything(url_of(server), cache)


def test_compressed_shards_are_unpacked_on_the_way(tmp_path, cache):
    folder = tmp_path / "corpus"
    folder.mkdir()
    data = tar_bytes(sample_members(5))
    (folder / "0.tar.gz").write_bytes(gzip.compress(data))
    open_catalog(folder, cache=sl.Cache(tmp_path / "other"))
    url = upload(folder, "memory://corpora/packed")
    assert everything(url, cache) == list(range(5))
    assert data in [file.read_bytes() for file in cached(cache)]


@pytest.mark.parametrize("prefix", ["", "n" * 300], ids=["short", "300 letters"])
def test_shards_of_one_base_name_are_told_apart(tmp_path, cache, prefix):
    for place, first in (("a", 0), ("b", 40)):
        write_shard(tmp_path / place / "000.tar", 3, first=first)
        open_catalog(tmp_path / place)
        upload(tmp_path / place, f"memory://d01{prefix}/{place}")
    for _ in range(2):
        for place, first in (("a", 0), ("b", 40)):
            catalog = open_catalog(f"memory://d01{prefix}/{place}", cache=cache)
            with ShardPool(catalog) as pool:
                assert [pool[0].key(n) for n in range(3)] == [
                    f"{n:06d}" for n in range(first, first + 3)
                ]
    assert len(cached(cache)) == 4


def test_secrets_are_nowhere_to_be_seen(server, cache, caplog):
    caplog.set_level(logging.DEBUG, "shardloader")
    secrets = ("p4ssw0rd", "qu3rySecret", "h3aderSecret")
    url = f"{url_of(server).replace('://', '://user:p4ssw0rd@')}?token=qu3rySecret"
    options = {"headers": {"X-Token": "h3aderSecret"}}
    loader = make(url, cache=cache, storage_options=options, shuffle=False, grid=None)
    assert len(contents(loader)) == 3
    dataset = loader.dataset.source
    shown = [repr(dataset.options), repr(dataset.recipe.catalog), repr(loader.state_dict())]
    shown += [caplog.text, dataset.manifest.to_json_bytes().decode()]
    server.faults["GET", SHARD] = ["403"] * 4
    other = sl.Cache(f"{cache.folder}2")
    with pytest.raises(StoreError, match="credentials") as caught:
        everything(url, other, storage_options=options)
    shown += [str(caught.value), *(str(path) for path in cached(cache))]
    assert [s for s in secrets if s in "".join(shown)] == []


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_store_that_fails_ends_a_run_that_skips_bad_shards(server, cache, num_workers):
    server.faults["GET", SHARD] = ["403"] * 9
    loader = make(url_of(server), num_workers, cache=cache, on_error="skip", shuffle=False)
    with raises_in_worker(StoreError, "credentials"):
        contents(loader)
    # Once more with a new client, and before that perhaps so by whoever fetches ahead.
    assert server.asked["GET", SHARD] in {2, 4}
    assert loading_kind(StoreError("it does not answer")) is None


def test_a_remote_shard_that_is_open_lies_in_the_cache(server, cache):
    with ShardPool(open_catalog(url_of(server), cache=cache)) as pool:
        assert pool[0].cached_bytes == (server.folder / "shard-0000.tar").stat().st_size


def test_a_run_that_skips_bad_shards_skips_one_that_is_not_there(server, cache):
    (server.folder / "shard-0000.tar").unlink()
    read = dataset_of(url_of(server), shuffle=False, cache=cache, on_error=sl.Skip(max_share=1))
    assert [s["__index__"] for s in read if s["__valid__"]] == [4, 5, 6]


def test_a_folder_without_a_manifest_says_how_one_is_made(server, cache):
    (server.folder / "manifest.json").unlink()
    with pytest.raises(UsageError, match="shardloader index"):
        everything(url_of(server), cache)


def test_the_manifest_itself_can_be_named(server):
    assert open_catalog(f"{url_of(server)}/manifest.json").num_shards == 2
    assert open_catalog(f"{url_of(server)}/").num_shards == 2


def test_the_manifest_of_a_dataset_that_grew_is_found(server):
    catalog = open_catalog(url_of(server))
    digest = catalog.manifest.digest
    assert earlier(catalog, digest) is None
    data = (server.folder / "manifest.json").read_bytes()
    (server.folder / f"manifest-{digest}.json").write_bytes(data)
    found = earlier(catalog, digest)
    assert found is not None
    assert found.manifest.digest == digest


@pytest.mark.parametrize(
    "source",
    [
        "simplecache::s3://b/c?token=p4ss",
        "s3://user:p4ss@b/c::s3://b/d",
        ["s3://user:p4ss@b/c/000.tar", "/c/001.tar"],
        ["s3://user:p4ss@b/c/000.tar", "s3://other/c/001.tar"],
        ["s3://b/c/000.tar?token=p4ss", "s3://b/c/001.tar?token=p4ss2"],
        ["s3://b/c/000.tar?token=p4ss", "s3://b/c/000.tar?token=p4ss"],
        ["s3://user:p4ss@000.tar"],
    ],
)
def test_what_is_no_dataset_of_one_store_is_refused_in_words(source):
    with pytest.raises(
        UsageError, match=r"the shards of one|each shard once|a path|is a URL"
    ) as no:
        open_catalog(source)
    assert "p4ss" not in str(no.value)


def test_options_of_a_store_need_a_url_and_are_a_mapping(tmp_path):
    write_shard(tmp_path / "0.tar", 3)
    with pytest.raises(UsageError, match="storage_options"):
        open_catalog(tmp_path, storage_options={"anon": True})
    with pytest.raises(UsageError, match=r"manifest\.json.*index_dir|--index-dir"):
        open_catalog(upload(tmp_path, "memory://x"), index_dir=tmp_path)
    with pytest.raises(UsageError, match="a mapping") as caught:
        sl.ShardDataset("memory://x", storage_options="s3cret")  # type: ignore[arg-type]
    assert "s3cret" not in str(caught.value)


def test_the_command_line_plans_and_shows_a_remote_dataset(server, capsys, cache):
    options = ["--storage-options", json.dumps({"headers": {"X-Token": "abc"}})]
    assert main(["plan", url_of(server), "--batch-size", "2", "--json", *options]) == 0
    assert json.loads(capsys.readouterr().out)["dataset"]["samples"] == 7
    assert server.headers_seen[-1]["X-Token"] == "abc"
    for wrong in ("[1]", "s3cret", '"s3cret"'):
        assert main(["plan", url_of(server), "--storage-options", wrong]) == 2
        told = capsys.readouterr().err
        assert "a JSON object" in told
        assert "s3cret" not in told
    assert main(["show", url_of(server), "--sample", "6", "-v"]) == 0
    assert "000006" in capsys.readouterr().out
