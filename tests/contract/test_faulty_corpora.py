"""A dataset at a real server, whose shards meet every fault, gives the samples of its local copy.

What is damaged on the way is fetched once more; what is damaged there is an error.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

import shardloader as sl
from shardloader.errors import ManifestError
from shardloader.reading.catalog import open_catalog
from shardloader.reading.indexing import index_dataset
from shardloader.reading.pool import ShardPool
from tests.corpora import contents, loader_of, make_corpus
from tests.servers.plan import Fault, Plan
from tests.servers.proxy import FaultProxy

COUNTS = (5, 4, 7, 6)
PATIENCE = {"first_s": 0.01, "longest_s": 0.02, "stall_s": 1.0}
HANG_S = 60
_numbers = itertools.count()


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = make_corpus(tmp_path_factory.mktemp("faulty") / "corpus", COUNTS)
    index_dataset(folder, digest=True, progress=False)
    return folder


@pytest.fixture(params=["http", "s3"])
def place(request, local):
    """The proxy, a URL behind it, and the options to read it."""
    name = f"corpora-{next(_numbers)}"
    if request.param == "http":
        pytest.importorskip("aiohttp")
        nginx = request.getfixturevalue("nginx")
        shutil.copytree(local, nginx.folder / name)
        with FaultProxy(nginx.url) as proxy:
            yield proxy, f"{proxy.url}/ranges/{name}", {"patience": PATIENCE}
        shutil.rmtree(nginx.folder / name)
        return
    pytest.importorskip("s3fs")
    s3 = request.getfixturevalue("s3")
    url = s3.put_folder(name, local)
    with FaultProxy(s3.url) as proxy:
        yield proxy, url, {**s3.options(proxy.url), "patience": PATIENCE}


def loader(source, **options):
    return loader_of(source, batch_size=3, grid=sl.Grid(ranks=1, workers=1, batch=3), **options)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_whatever_shards_meet_the_batches_are_those_of_the_local_copy(
    num_workers, place, local, tmp_path
):
    proxy, url, options = place
    on_shards = ("status", "reset", "cut", "short", "page", "damage", "stall")
    faults = [Fault(kind=kind, path="*.tar", times=1) for kind in on_shards]
    faults += [
        Fault(kind="expired", path="*.tar", times=1)  # case D05
        if url.startswith("s3")
        else Fault(kind="status", status=403, path="*.tar", times=1),
        Fault(kind="changed", path="*.tar", method="HEAD", after=1, times=1),
        Fault(kind="page", path="*.tar", method="HEAD", after=3, times=1),
        Fault(kind="status", path="*.tar", method="HEAD", status=429, retry_after=0, times=1),
        Fault(kind="page", path="*.index", times=1),
        Fault(kind="damage", path="*.index", after=1, times=1),
        Fault(kind="page", path="*manifest.json", times=1),
    ]
    proxy.follow(Plan(faults=tuple(faults)))
    cache = sl.Cache(tmp_path / "cache")
    remote = loader(
        url,
        cache=cache,
        storage_options=options,
        num_workers=num_workers,
        timeout=HANG_S if num_workers else 0,
    )
    assert contents(remote) == contents(loader(local))
    assert [fault.kind for fault, met in zip(faults, proxy.met, strict=True) if not met] == []
    kept = {file.read_bytes() for file in Path(cache.folder).glob("*.cached")}
    files = [*local.glob("*.tar"), *local.glob("*.index")]
    assert kept == {file.read_bytes() for file in files}


def test_a_digest_that_is_wrong_twice_is_an_error_at_once(place, tmp_path):
    proxy, url, options = place
    proxy.follow(Plan(faults=(Fault(kind="damage", path="*shard-0002.tar"),)))
    cache = sl.Cache(tmp_path / "cache")
    catalog = open_catalog(url, cache=cache, storage_options=options)
    with (
        ShardPool(catalog) as pool,
        pytest.raises(ManifestError, match=r"shard-0002\.tar: .* digest"),
    ):
        pool[2]
    asked = [each for each in proxy.seen if each.path.endswith("shard-0002.tar")]
    assert [each.method for each in asked].count("GET") == 2
