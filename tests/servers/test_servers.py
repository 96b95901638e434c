"""The servers that other tests rely on do what they say."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.servers.messages import Head
from tests.servers.nginx import nginx_path, nginx_server
from tests.servers.plan import Dealer, Fault, Plan
from tests.servers.processes import HANG_S, ROOT
from tests.servers.proxy import CHUNK, FaultProxy

CONTENT = bytes(range(256)) * 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    (folder / "a b+%.bin").write_bytes(CONTENT)
    return folder


@pytest.fixture(scope="module")
def origin(folder):
    if nginx_path() is None:
        pytest.skip("nginx is not installed")
    with nginx_server(folder) as url:
        yield url


NAME = "ranges/a b+%.bin"
TARGET = "/ranges/a%20b%2B%25.bin"


def get(url, target=TARGET, *, method="GET", timeout=HANG_S, body=None, **headers):
    """Status, headers and body, which may be cut off."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout)
    try:
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def through(origin, *faults, **line):
    return FaultProxy(origin, Plan(faults=faults, **line))


def test_nginx_gives_ranges_in_one_place_and_none_in_the_other(origin):
    assert get(origin, Range="bytes=3-5")[::2] == (206, CONTENT[3:6])
    assert get(origin, TARGET.replace("ranges", "whole"), Range="bytes=3-5")[::2] == (200, CONTENT)


def test_a_proxy_without_a_plan_changes_nothing_and_counts(origin):
    with through(origin) as proxy:
        assert get(proxy.url)[2] == CONTENT
        assert get(proxy.url, Range="bytes=3-5")[::2] == (206, CONTENT[3:6])
        status, headers, body = get(proxy.url, method="HEAD")
        assert (status, headers["Content-Length"], body) == (200, str(len(CONTENT)), b"")
        assert get(proxy.url, "/nothing")[0] == 404
        counts = proxy.counts()
    assert counts["by_path"] == {f"GET {NAME}": 2, f"HEAD {NAME}": 1, "GET nothing": 1}
    assert [each.status for each in proxy.seen] == [200, 206, 200, 404]
    assert [each.sent_bytes for each in proxy.seen[:3]] == [len(CONTENT), 3, 0]


def test_answers_of_the_proxys_own(origin):
    faults = (
        Fault(kind="status", status=429, retry_after=7, times=1),
        Fault(kind="status", times=1),
        Fault(kind="page", times=1),
        Fault(kind="expired", times=1),
    )
    with through(origin, *faults) as proxy:
        answers = [get(proxy.url) for _ in range(5)]
    assert [status for status, _, _ in answers] == [429, 503, 200, 400, 200]
    assert [headers["Retry-After"] for _, headers, _ in answers[:2]] == ["7", None]
    assert answers[2][2].startswith(b"<!DOCTYPE")
    assert b"<Code>ExpiredToken</Code>" in answers[3][2]
    assert answers[4][2] == CONTENT


@pytest.mark.parametrize(
    ("kind", "error"), [("reset", ConnectionResetError), ("cut", http.client.IncompleteRead)]
)
def test_a_body_is_broken_off(origin, kind, error):
    with through(origin, Fault(kind=kind, times=1)) as proxy:
        with pytest.raises(error):
            get(proxy.url)
        assert get(proxy.url)[2] == CONTENT
    assert proxy.seen[0].sent_bytes == len(CONTENT) // 2


def test_a_stalled_body_gives_nothing_more_and_stays_open(origin):
    with through(origin, Fault(kind="stall", times=1)) as proxy:
        with pytest.raises(TimeoutError):
            get(proxy.url, timeout=0.3)
        assert get(proxy.url)[2] == CONTENT


def test_a_body_is_short_damaged_or_of_another_version(origin):
    faults = [Fault(kind=kind, times=1) for kind in ("short", "damage", "changed")]
    with through(origin, *faults) as proxy:
        short, damaged, changed, right = (get(proxy.url) for _ in range(4))
    half = len(CONTENT) // 2
    assert (short[1]["Content-Length"], short[2]) == (str(half), CONTENT[:half])
    assert [n for n in range(len(CONTENT)) if damaged[2][n] != CONTENT[n]] == [half]
    assert changed[2] == right[2] == CONTENT
    assert changed[1]["ETag"] != right[1]["ETag"]


def test_a_line_has_its_latency_and_bandwidth(origin):
    with through(origin, latency_s=0.2, bytes_per_s=len(CONTENT)) as proxy:
        start = time.monotonic()
        assert get(proxy.url)[2] == CONTENT
        assert time.monotonic() - start >= 1.2 - CHUNK / len(CONTENT)


def test_a_plan_deals_the_same_faults_in_whatever_order_requests_come():
    plan = Plan(faults=(Fault(kind="reset", chance=0.3),), seed=5)
    requests = [("GET", f"{number % 40}.tar", "") for number in range(400)]

    def dealt(order):
        dealer = Dealer(plan)
        met: dict[tuple[str, str, str], list[bool]] = {}
        for request in order:
            met.setdefault(request, []).append(dealer.fault_of(*request) is not None)
        return met

    assert dealt(requests) == dealt(sorted(requests)) == dealt(requests[::-1])
    share = sum(map(sum, dealt(requests).values())) / 400
    assert 0.2 < share < 0.4


def test_faults_begin_and_end_where_the_plan_says():
    dealer = Dealer(Plan(faults=(Fault(kind="cut", path="*.tar", after=1, times=2),)))
    assert dealer.fault_of("GET", "a.json") is None
    assert dealer.fault_of("HEAD", "a.tar") is None
    met = [dealer.fault_of("GET", f"{n}.tar") is not None for n in range(5)]
    assert met == [False, True, True, False, False]
    with pytest.raises(ValueError, match="kind"):
        Fault(kind="fire")


def test_a_fault_that_is_kept_apart_lets_requests_for_its_path_through_in_between():
    dealer = Dealer(Plan(faults=(Fault(kind="damage", path="*.tar", apart=2),)))
    dealt = [dealer.fault_of("GET", "a.tar", span) is not None for span in "vwxyz"]
    assert dealt == [True, False, False, True, False]
    assert dealer.fault_of("GET", "b.tar") is not None


def test_the_proxy_runs_as_a_process_and_takes_another_plan(origin, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text('{"faults": [{"kind": "status", "status": 500}]}')
    command = [sys.executable, "-m", "tests.servers.proxy", "--to", origin, "--plan", str(plan)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert get(url)[0] == 500
        get(url, "/-/plan", method="POST", body=Plan().to_json())
        assert get(url)[0] == 200
        assert json.loads(get(url, "/-/counts")[2])["requests"] == 2
        told, _ = process.communicate(timeout=HANG_S)
    assert json.loads(told)["by_path"] == {f"GET {NAME}": 2}


class LookedAt:
    """A connection to a client; notes whether a request still counts as open while it is sent."""

    def __init__(self, proxy):
        self._proxy = proxy
        self.was_open = []

    def write(self, data):
        self.was_open.append(bool(self._proxy._open))

    async def drain(self):
        pass


class Answering:
    """A server that gives one answer."""

    def __init__(self, first, *, length, body=b""):
        self._head = Head(first, [("Content-Length", str(length))])
        self._body = body

    async def ask(self, head, body):
        reader = asyncio.StreamReader()
        reader.feed_data(self._body)
        reader.feed_eof()
        return self._head, reader

    def close(self):
        pass


def finish(proxy, work):
    """Do what a proxy's thread would do, and let go of it."""
    loop = proxy._loop
    loop.run_until_complete(work)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.mark.parametrize(
    ("method", "answer", "faults"),
    [
        ("GET", {"first": "HTTP/1.1 200 OK", "length": 3, "body": b"abc"}, ()),
        ("GET", {"first": "HTTP/1.1 200 OK", "length": 0}, ()),
        ("HEAD", {"first": "HTTP/1.1 200 OK", "length": 3}, ()),
        ("DELETE", {"first": "HTTP/1.1 204 No Content", "length": 0}, ()),
        ("GET", {"first": "HTTP/1.1 200 OK", "length": 0}, (Fault(kind="status"),)),
        ("GET", {"first": "HTTP/1.1 200 OK", "length": 0}, (Fault(kind="page"),)),
    ],
)
def test_a_request_is_open_until_the_last_of_its_answer_is_sent(method, answer, faults):
    """Then its client may make another, which would be one too many."""
    proxy: Any = FaultProxy("127.0.0.1:1", Plan(faults=faults))
    sent = LookedAt(proxy)

    async def answered():
        head = Head(f"{method} /a HTTP/1.1", [])
        await proxy._answer(head, asyncio.StreamReader(), sent, Answering(**answer))

    finish(proxy, answered())
    assert proxy.most_at_once == 1
    assert sent.was_open[-1] is False
    assert sent.was_open[:-1] == [True] * (len(sent.was_open) - 1)


def test_what_was_open_before_is_not_counted_from_here_on():
    proxy: Any = FaultProxy("127.0.0.1:1")
    sent = LookedAt(proxy)

    class Forgetting(Answering):
        async def ask(self, head, body):
            proxy.forget()
            await proxy._answer(head, asyncio.StreamReader(), sent, Answering(**answer))
            return await super().ask(head, body)

    answer = {"first": "HTTP/1.1 200 OK", "length": 0}
    head = Head("GET /a HTTP/1.1", [])
    finish(proxy, proxy._answer(head, asyncio.StreamReader(), sent, Forgetting(**answer)))
    assert proxy.most_at_once == 1
