"""Real servers behind a bad network: what is read is exact, or an error says what is wrong.

Each fault is met over HTTP (nginx), S3 (moto), Google's storage, Azure's blobs and the Hugging Face
Hub, through the proxy that injects it.
"""

from __future__ import annotations

import itertools
import logging
import shutil
import threading
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import pytest

from shardloader.errors import StoreError, WorldError
from shardloader.reading import remote
from shardloader.reading.remote import Store
from tests.servers.hub import OWNER
from tests.servers.plan import Fault, Plan
from tests.servers.proxy import FaultProxy

CONTENT = bytes(range(256)) * 40
PIECE = 4096
HANG_S = 60
QUICK = {"attempts": 4, "first_s": 0.01, "longest_s": 0.02}
FILE = "*a.tar"
_numbers = itertools.count()


class Place:
    """A proxy in front of a server that has the file a.tar, and the store behind it.

    One store serves most tests, since to make a client of S3 takes a while.
    """

    def __init__(self, proxy: FaultProxy, url: str, options: dict) -> None:
        self.proxy = proxy
        self.scheme = url.partition("://")[0]
        self.is_s3 = self.scheme == "s3"
        self._url, self._options = url, options
        self._file = self.file_of(**QUICK)
        self._file.status()

    def file_of(self, **patience):
        return Store(self._url, {**self._options, "patience": {**QUICK, **patience}}).at("a.tar")

    def file(self, *faults, **line):
        """The file; the next requests for it meet these faults, and nothing is counted yet."""
        self.proxy.follow(Plan(faults=faults, **line))
        self.proxy.forget()
        return self._file


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(remote, "PIECE_BYTES", PIECE)


SERVERS = {"s3": "s3", "gs": "gcs", "az": "azurite"}


@pytest.fixture(params=["http", *SERVERS, "hf"], scope="module")
def place(request):
    name = f"faulty-{next(_numbers)}"
    if request.param == "http":
        pytest.importorskip("aiohttp")
        nginx = request.getfixturevalue("nginx")
        folder = nginx.folder / name
        folder.mkdir()
        (folder / "a.tar").write_bytes(CONTENT)
        with FaultProxy(nginx.url) as proxy:
            yield Place(proxy, f"{proxy.url}/ranges/{name}", {"headers": {"X": "s3cretToken"}})
        shutil.rmtree(folder)
        return
    if request.param == "hf":
        server = request.getfixturevalue("hub")
        server.put(name, "corpus/a.tar", CONTENT, is_large=False)
        url = f"hf://datasets/{OWNER}/{name}/corpus"
    else:
        server = request.getfixturevalue(SERVERS[request.param])
        server.put(name)
        server.put(name, "corpus/a.tar", CONTENT)
        url = f"{request.param}://{name}/corpus"
    with FaultProxy(server.url) as proxy:
        yield Place(proxy, url, server.options(proxy.url))


def read(file):
    return b"".join(file.pieces(size=len(CONTENT)))


FAULTS = {
    "503": Fault(kind="status", times=2),
    "503 and when": Fault(kind="status", retry_after=0, times=2),
    "429": Fault(kind="status", status=429, times=2),
    "429 and when": Fault(kind="status", status=429, retry_after="0.01", times=2),
    "reset": Fault(kind="reset", after=1, times=2),
    "cut": Fault(kind="cut", after=1, times=2),
    "short": Fault(kind="short", after=1, times=2),
    "page": Fault(kind="page", after=1, times=2),
    "page first": Fault(kind="page", times=1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_changes_no_byte(place, fault):
    assert read(place.file(FAULTS[fault])) == CONTENT
    assert place.proxy.met == [FAULTS[fault].times]
    # Nothing but what failed is asked for again: no client tries by itself, as well as we do.
    assert place.proxy.counts()["requests"] == 3 + (FAULTS[fault].times or 0)


def test_a_stalled_stream_is_ended_and_taken_up_again(place):
    place.file(Fault(kind="stall", after=1, times=1))
    assert read(place.file_of(stall_s=1.0)) == CONTENT
    assert place.proxy.met == [1]


@pytest.mark.parametrize("fault", ["503", "reset", "stall", "short"])
def test_a_fault_that_does_not_pass_is_an_error_in_time(place, fault, caplog):
    caplog.set_level(logging.DEBUG, "shardloader")
    place.file(Fault(kind="status") if fault == "503" else Fault(kind=fault))
    # What is broken off is asked for up to three times, a second apart, by Azure's own client.
    num_tried, each = (1, 3) if place.scheme == "az" else (3, 1)
    with pytest.raises(StoreError, match=r"a\.tar") as caught:
        read(place.file_of(stall_s=0.3 if fault == "stall" else HANG_S, attempts=num_tried))
    assert num_tried <= place.proxy.counts()["requests"] <= 3 * each
    shown = f"{caught.value} {caplog.text}"
    assert "s3cretToken" not in shown
    assert "t3stingSecret" not in shown
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(("status", "num_requests"), [(403, 2), (400, 2), (404, 1)])
def test_what_will_not_pass_is_an_error_at_once(place, status, num_requests):
    if status == 400 and not place.is_s3:
        num_requests = 1  # over S3 it may be credentials that expired: a new client is tried
    file = place.file(Fault(kind="status", status=status))
    with pytest.raises(WorldError, match=r"a\.tar") as caught:
        read(file)
    assert place.proxy.counts()["by_path"].most_common(1)[0][1] == num_requests
    assert caught.value.__cause__ is None


def test_a_server_that_asks_for_more_time_than_there_is_is_told_at_once(place):
    file = place.file(Fault(kind="status", retry_after=3600))
    with pytest.raises(StoreError, match=r"after 1 attempts .*asks to wait 3600 s"):
        read(file)
    assert place.proxy.counts()["requests"] == 1


def test_after_credentials_expire_a_new_client_goes_on_at_the_offset(place, caplog):
    """Case D05, over S3: a session is refused in mid-file, and the next one is not."""
    caplog.set_level(logging.INFO, "shardloader")
    expired = Fault(kind="expired", after=1, times=1)
    file = place.file(expired if place.is_s3 else replace(expired, kind="status", status=403))
    first = file.store._client
    assert read(file) == CONTENT
    assert file.store._client is not first
    assert "trying with a new client" in caplog.text
    spans = Counter(each.span for each in place.proxy.seen)
    assert sorted(spans.values()) == [1, 1, 2]  # what was refused, and nothing else, once more
    if place.is_s3:  # the answer to HEAD is 400 and no more
        file = place.file(Fault(kind="expired", method="HEAD"))
        with pytest.raises(StoreError, match=r"a\.tar: the store refuses these credentials"):
            file.status()


def test_another_etag_is_another_version(place):
    if place.scheme == "gs":
        pytest.skip("its etag is in the body of an answer, which the proxy leaves as it is")
    file = place.file(Fault(kind="changed", method="HEAD", after=1))
    first = file.status()
    assert file.status().version != first.version


def test_no_more_requests_are_open_at_once_than_are_said(place):
    file = place.file_of(in_flight=3)
    file.status()
    place.file(latency_s=0.2)
    threads = [threading.Thread(target=file.whole) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert 1 < place.proxy.most_at_once <= 3
    assert place.proxy.counts()["requests"] == 12


def test_size_and_version_are_asked_for_by_one_request(place):
    """Not by another beside it, say whether it is a folder, which `in_flight` would not count."""
    file = place.file()
    assert file.status().size == len(CONTENT)
    assert place.proxy.counts()["requests"] == 1


def test_a_slow_line_is_no_fault(place):
    assert read(place.file(latency_s=0.05, bytes_per_s=100_000)) == CONTENT
    assert place.proxy.counts()["requests"] == 3


def test_options_of_s3_pass_through(s3, monkeypatch, tmp_path):
    """Endpoint, keys, anonymous, profile, requester pays: as s3fs has them."""
    pytest.importorskip("s3fs")
    s3.put("options")
    s3.put("options", "corpus/a.tar", CONTENT)
    profiles = tmp_path / "credentials"
    profiles.write_text("[training]\naws_access_key_id = mine\naws_secret_access_key = s3cret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profiles))
    signed = {}
    keys: dict[str, Any] = {"key": "yours", "secret": "s3cret"}
    with FaultProxy(s3.url) as proxy:
        for name, options in {
            "keys": keys,
            "profile": {"profile": "training"},
            "requester_pays": {**keys, "requester_pays": True},
            "anon": {"anon": True},
        }.items():
            proxy.forget()
            store = Store("s3://options/corpus", {"endpoint_url": proxy.url, **options})
            with suppress(StoreError) if name == "anon" else nullcontext():  # moto wants a name
                assert store.at("a.tar").read(0, 10) == CONTENT[:10]
            headers = proxy.seen[-1].headers
            signed[name] = headers.get("Authorization"), headers.get("x-amz-request-payer")
    assert "Credential=yours/" in signed["keys"][0]
    assert "Credential=mine/" in signed["profile"][0]
    assert signed["requester_pays"][1] == "requester"
    assert signed["anon"] == ("", "")
