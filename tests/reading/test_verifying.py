"""Verifying a dataset from Python: what the command is made of."""

from __future__ import annotations

import logging
import os

import fsspec

from shardloader.reading import remote
from shardloader.reading.clients import new_client
from shardloader.reading.decode import resolve
from shardloader.reading.indexing import index_dataset
from shardloader.reading.verifying import verify_dataset
from tests.shards import write_shard


def corpus_of(folder, shards=3, samples=4):
    for number in range(shards):
        write_shard(folder / f"{number}.tar", samples, first=samples * number)
    return folder


def test_decoders_of_the_callers_own_need_not_be_pickled(tmp_path):
    corpus = corpus_of(tmp_path)
    index_dataset(corpus, digest=True)

    def only_even(data: bytes) -> int:
        if int(data) % 2:
            raise ValueError("odd")
        return int(data)

    found = verify_dataset(corpus, decode=resolve({"cls": only_even}), num_processes=2)
    assert [(each.kind, each.times) for each in found.findings] == [("undecodable", 2)] * 3
    assert not found.is_sound
    assert verify_dataset(corpus).is_sound


def test_each_shard_that_is_done_is_told(tmp_path):
    corpus = corpus_of(tmp_path)
    told = []

    def watch(total):
        told.append(total)
        return lambda: told.append("done")

    verify_dataset(corpus, watch=watch, num_processes=1)
    assert told == [3, "done", "done", "done"]


def test_indexes_and_manifest_may_lie_elsewhere_and_nothing_is_changed(tmp_path):
    corpus, elsewhere = corpus_of(tmp_path / "corpus"), tmp_path / "indexes"
    index_dataset(corpus, index_dir=elsewhere, digest=True)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    found = verify_dataset(corpus, index_dir=elsewhere)
    assert (found.findings, found.num_checked, found.num_samples) == ((), 3, 12)
    assert [each.kind for each in verify_dataset(corpus).findings] == ["no_manifest", "no_indexes"]
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_what_is_found_is_given_and_not_logged(tmp_path, caplog):
    corpus = corpus_of(tmp_path)
    (corpus / "1.tar").write_bytes(b"")
    with caplog.at_level(logging.INFO, logger="shardloader"):
        assert not verify_dataset(corpus).is_sound
    assert not caplog.records


def test_findings_come_in_the_datasets_order(tmp_path):
    corpus = corpus_of(tmp_path, shards=20)
    index_dataset(corpus, digest=True)
    for path in corpus.glob("*.index"):
        path.unlink()
    found = verify_dataset(corpus, num_processes=2)
    names = [f"{number}.tar" for number in range(20)]
    assert [each.shard for each in found.findings] == sorted(names)


def test_each_process_makes_one_client_of_a_store(tmp_path, monkeypatch):
    """Making one takes as long as reading a small shard."""
    index_dataset(corpus_of(tmp_path, shards=9))
    url = f"memory://verified{tmp_path}"
    fsspec.filesystem("memory").put(f"{tmp_path}/", f"{url}/", recursive=True)
    made = tmp_path / "made"

    def noted(*args):
        with made.open("a") as file:  # which all processes have
            file.write(f"{os.getpid()}\n")
        return new_client(*args)

    monkeypatch.setattr(remote, "new_client", noted)
    assert verify_dataset(url, num_processes=2).is_sound
    processes = made.read_text().split()
    assert len(set(processes)) == len(processes) <= 3
