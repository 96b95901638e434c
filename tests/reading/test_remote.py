"""A file of a remote store: all of it, whatever happens on the way, or an error without secrets."""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import aiohttp
import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from shardloader.errors import MissingExtraError, StoreError, UsageError, WorldError
from shardloader.reading import remote
from shardloader.reading.clients import client_options, new_client
from shardloader.reading.counts import CountRow, Counts
from shardloader.reading.patience import Patience
from shardloader.reading.remote import ShortBodyError, Store
from tests.reading.http_store import HttpStore

QUICK = Patience(attempts=4, first_s=0.01, longest_s=0.02)
CONTENT = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(remote, "PIECE_BYTES", 4096)


@pytest.fixture
def server():
    with HttpStore({"corpus/a.tar": CONTENT}.get) as served:
        yield served


def file_of(server, *, query="", name="a.tar", **options):
    return Store(f"{server.url}/corpus{query}", options, QUICK).at(name)


def read(file, times=1):
    size = len(CONTENT) * times
    return b"".join(file.pieces(size=size))


def test_a_file_comes_in_pieces_from_one_offset_to_the_next(server):
    pieces = list(file_of(server).pieces(size=len(CONTENT)))
    assert b"".join(pieces) == CONTENT
    assert [len(piece) for piece in pieces] == [4096, 4096, 2048]


def test_the_next_two_pieces_are_asked_for_while_one_is_used_and_no_more_than_that():
    asked_again = threading.Event()

    def content(_):
        if next(requests) == 3:
            asked_again.set()
        return CONTENT * 2

    requests = itertools.count(1)
    with HttpStore(content) as served:
        pieces = file_of(served).pieces(size=2 * len(CONTENT))
        assert next(pieces) == CONTENT[:4096]
        assert asked_again.wait(60)
        del pieces
    assert next(requests) == 4


def test_what_befalls_the_next_piece_is_told_to_whoever_wants_it(server):
    server.faults["GET", "corpus/a.tar"] = ["", *["503"] * 100]
    pieces = file_of(server).pieces(size=len(CONTENT))
    assert next(pieces) == CONTENT[:4096]
    with pytest.raises(StoreError, match=r"after 4 attempts .*503"):
        next(pieces)


@pytest.mark.parametrize(
    "faults",
    [["503", "503"], ["429"], ["", "reset"], ["short"], ["", "short", "503"], ["500", "reset"]],
    ids=" ".join,
)
def test_what_may_pass_is_tried_again_where_it_was(server, faults):
    server.faults["GET", "corpus/a.tar"] = list(faults)
    assert read(file_of(server)) == CONTENT
    num_failed = sum(fault != "" for fault in faults)
    assert 3 <= server.asked["GET", "corpus/a.tar"] <= 3 + num_failed


def test_what_does_not_pass_is_an_error_after_a_bounded_number_of_attempts(server):
    server.faults["GET", "corpus/a.tar"] = ["503"] * 100
    with pytest.raises(StoreError, match=r"after 4 attempts .*503") as caught:
        read(file_of(server))
    assert f"{server.url}/corpus/a.tar" in str(caught.value)
    assert server.asked["GET", "corpus/a.tar"] == 4


def test_bodies_that_are_short_again_and_again_are_an_error(server):
    server.faults["GET", "corpus/a.tar"] = ["short"] * 100
    with pytest.raises(ShortBodyError, match="gives 2048 of them, each of 3 times") as caught:
        read(file_of(server))
    assert caught.value.first == CONTENT[:2048]


def test_a_page_in_mid_file_is_not_taken_for_a_piece_of_it(server):
    server.faults["GET", "corpus/a.tar"] = ["", "html", "html"]
    assert read(file_of(server)) == CONTENT


def test_a_stalled_stream_is_ended_and_taken_up_again(server):
    server.faults["GET", "corpus/a.tar"] = ["stall"]
    timeout = aiohttp.ClientTimeout(total=None, sock_read=0.3)
    assert read(file_of(server, client_kwargs={"timeout": timeout})) == CONTENT


def test_over_http_a_stall_is_ended_unless_the_user_says_otherwise(server):
    options = client_options("http", {"client_kwargs": {"trust_env": True}}, Patience(stall_s=7))
    assert options["client_kwargs"]["timeout"].sock_read == 7
    assert options["client_kwargs"]["trust_env"] is True
    own = client_options("http", {"client_kwargs": {"timeout": None}}, Patience())
    assert own["client_kwargs"]["timeout"] is None


def test_over_s3_too_and_the_clients_own_attempts_are_off():
    given = {"anon": True, "config_kwargs": {"region_name": "eu-west-1", "read_timeout": 9}}
    options = client_options("s3", given, Patience(stall_s=7, in_flight=3))
    assert options["anon"] is True
    assert options["max_concurrency"] == 1
    assert options["config_kwargs"] == {
        "connect_timeout": 7,
        "read_timeout": 9,
        "region_name": "eu-west-1",
        "max_pool_connections": 3,
        "retries": {"max_attempts": 0},
    }
    given = {"project": "mine", "requests_timeout": 9}
    assert client_options("gs", given, Patience()).items() >= given.items()
    assert client_options("ftp", {"host": "h"}, Patience()) == {"host": "h"}


def test_a_server_that_says_when_is_asked_again_then(server, monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    server.faults["GET", "corpus/a.tar"] = ["429 7", "503 0.001"]
    assert file_of(server).whole() == CONTENT
    assert waited[0] == 7
    assert waited[1] <= QUICK.longest_s
    server.faults["GET", "corpus/a.tar"] = ["503 3600"]
    with pytest.raises(StoreError, match=r"after 1 attempts .*asks to wait 3600 s"):
        file_of(server).whole()


def test_a_scheme_may_be_in_capitals():
    assert Store("MEMORY://capitals").at("a").whole_if_there() is None
    assert Store("MEMORY://capitals").at("a").url == "memory://capitals/a"


def test_requests_bytes_and_retries_are_counted_where_they_are_made(server):
    store = file_of(server).store
    server.faults["GET", "corpus/a.tar"] = ["503"]
    assert store.at("a.tar").whole() == CONTENT
    assert store.at("a.tar").status().size == len(CONTENT)
    told = Counts(store_requests=3, store_received_bytes=len(CONTENT), retries=1)
    assert store.counts.now == told
    assert pickle.loads(pickle.dumps(store)).counts.now == Counts()
    elsewhere = CountRow()
    assert store.counted_in(elsewhere).at("a.tar").whole() == CONTENT
    assert elsewhere.now == Counts(store_requests=1, store_received_bytes=len(CONTENT))
    assert store.counts.now == told


def test_requests_that_fail_for_good_are_counted_too(server):
    file = file_of(server)
    server.faults["GET", "corpus/a.tar"] = ["503"] * 20
    with pytest.raises(StoreError):
        file.whole()
    counts = file.store.counts.now
    assert counts.store_requests == counts.retries + 1
    assert counts.store_received_bytes == 0


def test_a_server_that_cannot_be_reached_is_an_error_that_names_it(server):
    url = server.url
    server.shutdown()
    server.server_close()
    with pytest.raises(StoreError, match="after 4 attempts"):
        Store(url, patience=QUICK).at("a.tar").status()


def test_a_server_without_ranges_gives_the_whole(server):
    server.has_ranges = False
    assert read(file_of(server)) == CONTENT
    assert server.asked["GET", "corpus/a.tar"] == 1


def test_a_missing_file_is_told_apart_and_asked_for_once(server):
    file = file_of(server, name="b.tar")
    assert file.whole_if_there() is None
    with pytest.raises(WorldError, match="no such file") as caught:
        file.whole()
    assert not isinstance(caught.value, StoreError)
    assert server.asked["GET", "corpus/b.tar"] == 2
    with pytest.raises(WorldError, match="no such file"):
        file.status()


def test_a_missing_file_is_told_apart_where_a_backend_gives_a_cause():
    file = Store("memory://nowhere", patience=QUICK).at("a.tar")
    assert file.whole_if_there() is None
    with pytest.raises(WorldError, match="no such file"):
        file.read(0, 10)


def test_an_object_that_is_not_there_for_a_moment_is_not_missing(server):
    server.faults["HEAD", "corpus/a.tar"] = ["503"]
    server.faults["GET", "corpus/a.tar"] = ["503"]  # fsspec calls that a missing file
    assert file_of(server).status().size == len(CONTENT)


def test_the_version_is_the_etag_or_else_the_time(server):
    before = file_of(server).status()
    server.etags["corpus/a.tar"] = "another"
    after = file_of(server).status()
    assert before.size == after.size == len(CONTENT)
    assert before.version != after.version
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/versions/a", b"1")
    first = Store("memory://versions").at("a").status().version
    assert Store("memory://versions").at("a").status().version == first
    memory.pipe_file("/versions/a", b"2")
    assert Store("memory://versions").at("a").status().version != first


def test_names_with_marks_of_urls_are_files_like_others(server):
    names = ["p#1.tar", "a b.tar", "c%20d.tar", "q?x.tar", "猫.tar"]
    server.content = {f"corpus/{name}": name.encode() for name in names}.get
    assert [file_of(server, name=name).whole() for name in names] == [n.encode() for n in names]


class Expiring(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Accepts a client for its first requests, then refuses it."""

    protocol = "expiring"
    made = 0
    allowed = 3

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        type(self).made += 1
        self.left = self.allowed

    def cat_file(self, path, start=None, end=None, **options):
        if self.left == 0:
            token = self.storage_options.get("token")
            raise PermissionError(f"{token} expired, see https://elsewhere/x?sig=s1gnature")
        self.left -= 1
        return super().cat_file(f"memory://{path.partition('://')[2]}", start, end, **options)


@pytest.fixture
def expiring():
    fsspec.register_implementation("expiring", Expiring, clobber=True)
    Expiring.made, Expiring.allowed = 0, 3
    fsspec.filesystem("memory").pipe_file("/expiring/a.tar", CONTENT * 4)
    return Store("expiring://expiring", {"token": "t0psecret"}, QUICK)


def test_clients_of_s3_share_what_they_know_of_the_service_and_no_credentials(monkeypatch):
    pytest.importorskip("s3fs")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = {"endpoint_url": "http://127.0.0.1:9"}
    sessions = []
    for name in ("first", "second"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", name)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        client = new_client("s3://bucket/a", "s3", options, Patience())
        client.connect()
        assert client.s3._request_signer._credentials.access_key == name
        sessions.append(client.session)
    models = [session.get_component("data_loader") for session in sessions]
    assert sessions[0] is not sessions[1]
    assert models[0] is models[1]


def test_threads_that_ask_at_once_have_one_client(server, monkeypatch):
    two, made = threading.Barrier(2), []

    def new(*given):
        with suppress(threading.BrokenBarrierError):
            two.wait(0.2)  # another thread would get here meanwhile
        made.append(new_client(*given))
        return made[-1]

    monkeypatch.setattr(remote, "new_client", new)
    file = file_of(server)
    with ThreadPoolExecutor(2) as threads:
        assert len(list(threads.map(lambda _: file.status(), range(2)))) == 2
    assert len(made) == 1


def test_an_option_that_s3fs_does_not_know_is_an_error_that_names_it():
    pytest.importorskip("s3fs")
    with pytest.raises(UsageError, match="nonsense"):
        Store("s3://bucket/a", {"nonsense": 1}, QUICK).at("a.tar").status()


def test_after_credentials_expire_a_new_client_goes_on_at_the_offset(expiring):
    assert read(expiring.at("a.tar"), 4) == CONTENT * 4
    assert Expiring.made == 4  # ten requests of 4096 bytes, three a client


def test_credentials_that_a_new_client_has_too_are_an_error_without_them(expiring, caplog):
    Expiring.allowed = 0
    caplog.set_level(logging.DEBUG, "shardloader")
    with pytest.raises(StoreError, match=r"credentials.*a\.tar|a\.tar.*credentials") as caught:
        read(expiring.at("a.tar"))
    assert Expiring.made == 2
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    shown = str(caught.value) + caplog.text + repr(expiring)
    assert "t0psecret" not in shown
    assert "s1gnature" not in shown
    assert "https://elsewhere/x?***" in shown


@pytest.mark.parametrize("fault", ["403", "503", "400", "reset"])
def test_no_secret_of_url_or_options_is_shown(server, fault, caplog):
    caplog.set_level(logging.DEBUG, "shardloader")
    url = server.url.replace("://", "://user:p4ssw0rd@")
    headers = {"X-Token": "h3aderSecret"}
    store = Store(f"{url}/corpus?token=qu3rySecret", {"headers": headers}, QUICK)
    server.faults["GET", "corpus/a.tar"] = [fault] * 20
    with pytest.raises(StoreError) as caught:
        read(store.at("a.tar"))
    shown = f"{caught.value!r} {caplog.text} {store!r} {store.at('a.tar')!r}"
    assert not [s for s in ("p4ssw0rd", "qu3rySecret", "h3aderSecret") if s in shown]
    assert any("h3aderSecret" in seen.values() for seen in server.headers_seen)


def test_a_store_travels_without_its_client(server):
    store = Store(f"{server.url}/corpus", {"headers": {"X-Token": "abc"}}, QUICK)
    assert store.at("a.tar").whole() == CONTENT
    copy = pickle.loads(pickle.dumps(store))
    assert copy._client is None
    assert copy.at("a.tar").whole() == CONTENT
    assert server.headers_seen[-1]["X-Token"] == "abc"


def test_the_identity_has_the_place_and_not_who_reads():
    def identity(url, **options):
        return Store(url, options).at("000.tar").identity

    assert identity("s3://b/train") != identity("s3://b/val")
    assert identity("s3://b/c", endpoint_url="http://one") != identity(
        "s3://b/c", endpoint_url="http://two"
    )
    mine, others = {"key": "a", "secret": "b"}, {"key": "c", "secret": "d"}
    assert identity("s3://b/c", **mine) == identity("s3://b/c", **others)
    assert identity("http://me:a@h/c") == identity("http://h/c")
    assert identity("http://h/c?v=1") != identity("http://h/c?v=2")


@pytest.mark.parametrize("url", ["nonsense://b/c", "memory2://x"])
def test_a_scheme_that_fsspec_does_not_know_is_wrong_use(url):
    with pytest.raises(UsageError, match="fsspec"):
        Store(url).at("a").whole()


def test_a_backend_that_is_not_installed_is_named():
    fsspec.register_implementation("absent", "no_such_module.Class", errtxt="Install absentfs")
    with pytest.raises(MissingExtraError, match="absentfs"):
        Store("absent://b/c").at("a").whole()


def test_a_store_that_gives_nothing_at_first_is_told_of_at_once_and_once(server, caplog):
    """A wrong endpoint is seen before all attempts have been made."""
    file, other = file_of(server), file_of(server)
    server.faults["GET", "corpus/a.tar"] = ["503", "503", "503"]
    with caplog.at_level(logging.WARNING, logger="shardloader"):
        assert file.whole() == CONTENT
    (told,) = caplog.messages
    assert "the store has given nothing yet" in told
    assert "asked 4 times, with waits of up to 0.05 s in all" in told
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="shardloader"):
        assert other.whole() == CONTENT
        for known in (other, pickle.loads(pickle.dumps(other))):  # to be there
            server.faults["GET", "corpus/a.tar"] = ["503"]
            assert known.whole() == CONTENT
    assert not caplog.messages
