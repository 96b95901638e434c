"""Every store keeps one contract, whatever its protocol: what a file is, and what an error says.

Local files, fsspec's memory, nginx with and without ranges, and servers of S3, Google's storage,
Azure's blobs and the Hugging Face Hub.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import pickle
import shutil
import ssl
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import quote

import fsspec
import pytest

from shardloader.errors import MissingExtraError, StoreError, UsageError, WorldError
from shardloader.reading import remote
from shardloader.reading.remote import Store
from tests.reading.origins import FORK
from tests.servers.azurite import KEY
from tests.servers.hub import OWNER, TOKEN

CONTENT = bytes(range(256)) * 40
NAMES = (
    "a b.tar",
    "c%20d.tar",
    "e+f.tar",
    "g?h.tar",
    "i#j.tar",
    "猫.tar",
    "[k]{l}*.tar",
    "d/é.tar",
)
PIECE = 4096
if TYPE_CHECKING:
    from pathlib import Path

HANG_S = 60
_numbers = itertools.count()


class Place:
    """A folder that a test fills, and the store by which it is read."""

    secrets: tuple[str, ...] = ()
    may_spawn = True

    def __init__(self, store: Store) -> None:
        self.store = store

    def put(self, name: str, data: bytes) -> None:
        raise NotImplementedError


class InFolder(Place):
    def __init__(self, folder: Path, url: str, **options: object) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        super().__init__(Store(url, options))

    def put(self, name: str, data: bytes) -> None:
        file = self._folder / name
        file.parent.mkdir(exist_ok=True)
        before = file.stat().st_mtime if file.exists() else None
        file.write_bytes(data)
        if before is not None:  # as if a second had passed, which is what nginx's etag tells
            os.utime(file, (before + 1, before + 1))


class InMemory(Place):
    may_spawn = False

    def put(self, name: str, data: bytes) -> None:
        fsspec.filesystem("memory").pipe_file(f"{self.store._url}/{name}", data)


class InHttp(InFolder):
    secrets = ("p4ssw0rd", "qu3ry", "t0ken")

    def __init__(self, folder: Path, url: str, **options: object) -> None:
        url = f"{url.replace('://', '://user:p4ssw0rd@')}?key=qu3ry"
        super().__init__(folder, url, headers={"X-Token": "t0ken"}, **options)


class InBucket(Place):
    """Of a server that has buckets, or what it calls so."""

    secrets = ("t3stingSecret", KEY)

    def __init__(self, server, bucket: str, url: str) -> None:
        self._server, self._bucket = server, bucket
        server.put(bucket)
        super().__init__(Store(f"{url}/corpus", server.options()))

    def put(self, name: str, data: bytes) -> None:
        self._server.put(self._bucket, f"corpus/{name}", data)


class InHub(Place):
    secrets = (TOKEN,)

    def __init__(self, server, repo: str) -> None:
        self._server, self._repo = server, repo
        server.put(repo, "README.md", b"A dataset")
        super().__init__(Store(f"hf://datasets/{OWNER}/{repo}/corpus", server.options()))

    def put(self, name: str, data: bytes) -> None:
        self._server.put(self._repo, f"corpus/{name}", data)


BUCKETS = {"s3": ("s3", "s3"), "gs": ("gcs", "gs"), "az": ("azurite", "az")}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(remote, "PIECE_BYTES", PIECE)


@pytest.fixture(params=["file", "memory", "http", "http without ranges", "https", *BUCKETS, "hf"])
def place(request, tmp_path):
    number = next(_numbers)
    if request.param == "file":
        yield InFolder(tmp_path / "corpus", f"file://{tmp_path}/corpus")
    elif request.param == "memory":
        yield InMemory(Store(f"memory://contract/{number}"))
    elif request.param == "hf":
        yield InHub(request.getfixturevalue("hub"), f"contract-{number}")
    elif request.param in BUCKETS:
        fixture, scheme = BUCKETS[request.param]
        name = f"contract-{number}"
        yield InBucket(request.getfixturevalue(fixture), name, f"{scheme}://{name}")
    else:
        pytest.importorskip("aiohttp")
        is_safe = request.param == "https"
        nginx = request.getfixturevalue("nginx_tls" if is_safe else "nginx")
        options = {"ssl": str(nginx.authority)} if is_safe else {}
        kind = "whole" if "without" in request.param else "ranges"
        folder = nginx.folder / f"contract-{number}"
        yield InHttp(folder, f"{nginx.url}/{kind}/{quote(folder.name)}", **options)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def spawned():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_any_name_is_read_whole_and_in_pieces(place, name):
    place.put(name, CONTENT)
    file = place.store.at(name)
    assert file.whole() == file.whole_if_there() == CONTENT
    assert b"".join(file.pieces(size=len(CONTENT))) == CONTENT
    assert file.status().size == len(CONTENT)


def test_a_range_ends_where_the_file_does(place):
    place.put("a.tar", CONTENT)
    file = place.store.at("a.tar")
    size = len(CONTENT)
    assert file.read(0, 10)[:10] == CONTENT[:10]
    assert file.read(300, 700)[:400] == CONTENT[300:700]
    assert file.read(size - 5, size + 100) == CONTENT[-5:]
    assert file.read(size, size + 10) == b""
    assert file.read(size + 50, size + 60) == b""


def test_an_empty_file_is_one(place):
    place.put("a.tar", b"")
    file = place.store.at("a.tar")
    assert file.whole() == file.read(0, 512) == b""
    assert file.status().size == 0


def test_a_file_that_is_missing_is_said_to_be_with_no_secret(place):
    place.put("a.tar", CONTENT)
    file = place.store.at("b c.tar")
    assert file.whole_if_there() is None
    for ask in (file.whole, file.status, lambda: file.read(0, 10), lambda: [*file.pieces(size=9)]):
        with pytest.raises(WorldError, match="no such file") as caught:
            ask()
        shown = f"{caught.value!r} {file!r} {place.store!r} {file.name}"
        assert [secret for secret in place.secrets if secret in shown] == []
        assert caught.value.__cause__ is None


def test_another_content_has_another_version(place):
    place.put("a.tar", CONTENT)
    file = place.store.at("a.tar")
    first = file.status()
    assert file.status() == first
    place.put("a.tar", CONTENT[::-1])
    assert file.status().size == first.size
    assert file.status().version != first.version
    assert file.whole() == CONTENT[::-1]


def test_a_store_is_read_by_threads_at_once(place):
    place.put("a.tar", CONTENT)
    file = place.store.at("a.tar")
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(file.whole())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert found == [CONTENT] * 8


def test_a_forked_process_reads_what_its_parent_has_read(place):
    place.put("a.tar", CONTENT)
    file = place.store.at("a.tar")
    assert file.whole() == CONTENT  # so that there is a client, with its threads
    process = FORK.Process(target=lambda: os._exit(0 if file.whole() == CONTENT else 1))
    process.start()
    process.join(HANG_S)
    assert process.exitcode == 0
    assert file.whole() == CONTENT


def test_a_forked_process_leaves_its_parents_connections_alone(place):
    """It lets go of what it inherits, and the parent waits for no answer in vain."""
    place.put("a.tar", CONTENT)
    store = Store(place.store._url, {**place.store._options, "patience": {"stall_s": 5}})
    file = store.at("a.tar")

    def let_go():
        store._client = None
        gc.collect(1)  # of what is young, as the client is
        os._exit(0)

    assert file.whole() == CONTENT
    process = FORK.Process(target=let_go)
    process.start()
    process.join(HANG_S)
    assert process.exitcode == 0
    assert file.whole() == CONTENT
    assert store.counts.now.retries == 0


def read_whole(store, name):
    return store.at(name).whole()


def test_a_store_travels_to_a_spawned_process(place, spawned):
    if not place.may_spawn:
        pytest.skip("fsspec's memory belongs to one process")
    place.put("a b.tar", CONTENT)
    store = pickle.loads(pickle.dumps(place.store))
    assert spawned.submit(read_whole, store, "a b.tar").result(HANG_S) == CONTENT


def test_a_server_whose_certificate_nobody_vouches_for_is_refused_at_once(nginx_tls, tmp_path):
    pytest.importorskip("aiohttp")
    (nginx_tls.folder / "a.tar").write_bytes(CONTENT)
    url = f"{nginx_tls.url}/ranges"
    with pytest.raises(StoreError, match=r"would not at another attempt .*CERTIFICATE_VERIFY"):
        Store(url).at("a.tar").whole()
    own = ssl.create_default_context(cafile=nginx_tls.authority)
    assert Store(url, {"ssl": own}).at("a.tar").whole() == CONTENT
    with pytest.raises(UsageError, match=r"storage_options=") as caught:
        Store(url, {"ssl": str(tmp_path / "none.pem")}).at("a.tar").whole()
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("scheme", "package", "extra"),
    [
        ("http", "aiohttp", "http"),
        ("https", "aiohttp", "http"),
        ("s3", "s3fs", "s3"),
        ("gs", "gcsfs", "gcs"),
        ("az", "adlfs", "azure"),
        ("abfs", "adlfs", "azure"),
        ("hf", "huggingface_hub", "hf"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(scheme, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # what "import" then says is missing
    registered = sys.modules["fsspec.registry"]._registry
    for name in [*registered]:
        monkeypatch.delitem(registered, name)
    with pytest.raises(MissingExtraError, match=rf"pip install 'shardloader\[{extra}\]'"):
        Store(f"{scheme}://bucket/corpus").at("manifest.json").whole()
