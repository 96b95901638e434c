"""The comparison over a link runs, compares what arrived, and says what failed."""

from __future__ import annotations

import json

import pytest

from benchmarks.link.__main__ import SMALL, chosen, made, parsed, report, rounds
from benchmarks.link.corpus import Corpus, digests_of, samples
from benchmarks.link.loaders import LIMIT, LOADERS
from benchmarks.link.rounds import Link, LinkError, steady
from benchmarks.link.tables import markdown
from tests.servers.nginx import nginx_path
from tools.multinode.hosts import NoHostsError

LEAST = Corpus(num_samples=6, shard_samples=3, sample_bytes=50)


def test_shardloader_reads_over_a_link_what_the_server_has(tmp_path):
    if nginx_path() is None:
        pytest.skip("nginx is not installed")
    words = ["--small", "--rounds", "1", "--only", "http", "--caches", str(tmp_path)]
    words += ["--work", str(tmp_path / "work"), "--results", str(tmp_path)]
    try:
        found = report(parsed(words))
    except (NoHostsError, LinkError) as error:
        pytest.skip(str(error))
    (turns,) = found["rounds_read"]
    own, limit = turns["shardloader, HTTP"], turns[LIMIT]["pass"]
    assert own["pass"].get("samples") == SMALL.num_samples, own
    assert own["resumed"]["first_s"] > 0
    assert limit["requests"] == SMALL.num_samples // SMALL.shard_samples
    assert own["pass"]["body_bytes"] >= limit["body_bytes"] > SMALL.payload_bytes
    assert (tmp_path / "link.md").read_text() == markdown(
        json.loads((tmp_path / "link.json").read_text())
    )


def test_a_loader_that_gives_something_else_has_failed():
    class Gives(Link):
        """A link on which every pass gives the same digest."""

        def __init__(self):
            pass

        def turn(self, loader, what):
            return {"samples": 6, "total": 7, "first_s": 0.1}

    (right,) = rounds(Gives(), LOADERS, 1, total=7)
    (wrong,) = rounds(Gives(), LOADERS, 1, total=8)
    assert not any("failed" in turn["pass"] for turn in right.values())
    failed = {name for name, turn in wrong.items() if "failed" in turn["pass"]}
    assert failed == {each.name for each in LOADERS} - {LIMIT}
    assert {name for name, turn in right.items() if "resumed" in turn} == {
        each.name for each in LOADERS if each.resumes
    }


def test_the_digest_of_a_corpus_is_that_of_its_samples_in_any_order():
    given = list(samples(LEAST))
    assert sum(digests_of(given[::-1])["digests"]) % 2**64 == LEAST.total
    assert sum(digests_of(given[1:])["digests"]) % 2**64 != LEAST.total


def test_a_steady_rate_is_that_of_the_second_half_of_the_bytes():
    meter = [(0.0, 0), (1.0, 1000), (2.0, 1100), (4.0, 1900), (5.0, 2000), (9.0, 2000)]
    assert steady(iter(meter), 0.0, 9.0) == 250.0
    assert steady(iter(meter), 10.0, 11.0) == 0.0


def test_small_runs_have_no_peers_and_the_limit_always_takes_part():
    assert not any(each.is_peer for each in chosen(parsed(["--small"])))
    names = [each.name for each in chosen(parsed(["--only", "LitData"]))]
    assert names == [LIMIT, "LitData"]


def test_a_form_is_made_once(tmp_path):
    loaders = [each for each in LOADERS if each.form == "tar"]
    served = made(LEAST, loaders, tmp_path, tmp_path)
    manifest = served / "corpus" / "tar" / "manifest.json"
    before = manifest.stat().st_mtime_ns
    assert made(LEAST, loaders, tmp_path, tmp_path) == served
    assert manifest.stat().st_mtime_ns == before
