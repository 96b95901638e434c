"""Hosts of namespaces are hosts, and nothing of them is left. What befalls them: make multinode."""

from __future__ import annotations

import sys
import time
from collections import Counter

import psutil
import pytest

from tools.multinode.hosts import Network, NoHostsError
from tools.multinode.store import fetched
from tools.progress import Progress, progress

PATHS = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


@pytest.fixture
def network(tmp_path):
    try:
        with Network(["one", "two"], tmp_path) as network:
            yield network
    except NoHostsError as error:
        pytest.skip(str(error))


def said(network, name, command, folder):
    """Exit code and output of a command on a host."""
    with (folder / "said").open("w+b") as output:
        started = network.hosts[name].start(command, environment=PATHS, output=output)
        psutil.wait_procs([psutil.Process(started.pid)], timeout=60)
        output.seek(0)
        return started.ended, output.read().decode()


ASK = ["-c", "import socket; socket.create_connection(('two', 9), 2)"]


def test_a_host_has_a_name_an_address_and_processes_of_its_own(network, tmp_path):
    assert said(network, "one", ["hostname"], tmp_path) == (0, "one\n")
    assert said(network, "one", ["cat", "/proc/1/comm"], tmp_path) == (0, "cat\n")
    reached = said(network, "one", [sys.executable, *ASK], tmp_path)
    assert "ConnectionRefusedError" in reached[1]  # by two, where nothing listens


def test_a_cable_that_is_pulled_loses_in_silence_until_it_is_put_back(network, tmp_path):
    network.cut("two")
    lost = said(network, "one", [sys.executable, *ASK], tmp_path)
    assert "TimeoutError" in lost[1] or "No route to host" in lost[1]
    network.mend("two")
    deadline = time.monotonic() + 60  # the host remembers for a while that nobody answered
    while "ConnectionRefusedError" not in said(network, "one", [sys.executable, *ASK], tmp_path)[1]:
        assert time.monotonic() < deadline


def test_the_end_of_a_network_ends_all_that_runs_on_its_hosts(network, tmp_path):
    with (tmp_path / "said").open("wb") as output:
        network.hosts["one"].start(["sleep", "1000"], environment=PATHS, output=output)
    firsts = [psutil.Process(process.pid) for process in network._first]
    of_ours = firsts + [each for first in firsts for each in first.children(recursive=True)]
    network.__exit__()
    gone, left = psutil.wait_procs(of_ours, timeout=60)
    assert gone
    assert not left


def test_a_store_s_log_tells_what_each_host_fetched():
    log = (
        '10.77.0.2 - - [30/Nov/2026 14:29:05] "GET /corpus/a.tar.index HTTP/1.1" 200 -\n'
        '10.77.0.2 - - [30/Nov/2026 14:29:05] "\x1b[35m\x1b[1mGET /corpus/a.tar HTTP/1.1\x1b[0m"'
        " 206 -\n"
        '10.77.0.2 - - [30/Nov/2026 14:29:06] "GET /corpus/a.tar HTTP/1.1" 503 -\n'
    )
    assert fetched(log) == {"10.77.0.2": Counter({"a.tar": 1})}


def test_progress_is_that_of_the_newest_launch(tmp_path):
    assert progress(tmp_path, 10) == Progress(launch=0, ranks=0, place=0)
    (tmp_path / "rank-00000-of-00003.17.jsonl").write_text('{"epoch": 1, "consumed": 4}\n')
    (tmp_path / "rank-00000-of-00002.18.jsonl").write_text('{"epoch": 0, "consumed": 8}\n{"epo')
    assert progress(tmp_path, 10) == Progress(launch=18, ranks=2, place=0)
    (tmp_path / "rank-00000-of-00002.18.jsonl").write_text('{"epoch": 1, "consumed": 2}\n')
    assert progress(tmp_path, 10) == Progress(launch=18, ranks=2, place=12)
