"""Shards are appended while a run is in mid-epoch: its logs are audited as those of one dataset."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING

import pytest

import shardloader as sl
from shardloader.cli import main
from shardloader.format.manifest import Manifest
from shardloader.planning.audit import audit_logs
from shardloader.reading.catalog import open_catalog
from tests.integration.test_grown_data import AFTER, BEFORE, loader_of, write

if TYPE_CHECKING:
    from pathlib import Path

LAST = AFTER + 9


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write(tmp_path / "corpus", 0, BEFORE)
    return tmp_path / "corpus"


def launch(
    corpus, logs, attempt, *, state=None, world_size=1, epochs=1, steps=None, skip=0, **more
):
    """Train so many epochs, and so many steps of one more; gives the state it was left in."""
    loaders = [
        loader_of(corpus, rank=rank, world_size=world_size, **more) for rank in range(world_size)
    ]
    for loader in loaders:
        loader.log_samples(logs, attempt=attempt)
        if state is not None:
            loader.load_state_dict(state)
        if skip:
            loader.skip(skip)
    for _ in range(epochs):
        for loader in loaders:
            list(loader)
    for _ in islice(zip(*loaders, strict=True), steps or 0):
        state = loaders[0].state_dict()
    return state


def grown_run(corpus, logs, **more):
    """Killed in epoch 1 and resumed on two ranks after an append, then again on three."""
    state = launch(corpus, logs, 1, epochs=1, steps=4, **more)
    write(corpus, BEFORE, AFTER, append=True)
    launch(corpus, logs, 2, state=state, world_size=2, epochs=1, steps=3, **more)  # is lost
    state = launch(corpus, logs, 3, state=state, world_size=2, epochs=2, steps=2, **more)
    write(corpus, AFTER, LAST, append=True)
    launch(corpus, logs, 4, state=state, world_size=3, epochs=3, **more)


def samples(history):
    return [each.tally.distinct for each in history.epochs]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_whose_dataset_grew_twice_is_exact(corpus, tmp_path, num_workers):
    grown_run(corpus, tmp_path / "logs", num_workers=num_workers)
    for source in (None, corpus, open_catalog(corpus)):
        history = audit_logs(tmp_path / "logs", source)
        assert history.is_exact, history.faults()
        assert history.is_compared == (source is not None)
        assert samples(history) == [BEFORE, BEFORE, AFTER, AFTER, LAST, LAST]
        assert history.num_samples == LAST
        assert history.attempts == 4
    assert main(["audit", str(tmp_path / "logs"), str(corpus)]) == 0


def test_what_is_wrong_in_an_epoch_is_told_by_what_it_was_read_from(corpus, tmp_path):
    grown_run(corpus, tmp_path / "logs")
    path = next(iter((tmp_path / "logs").glob("rank-00000-of-00002.3.jsonl")))
    records = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [record for record in records if "index" in record]
    rows[0]["index"][0] = BEFORE  # of epoch 1, which has no such sample
    first = next(record for record in rows if record["epoch"] == 2)
    taken, first["index"][1] = first["index"][1], AFTER - 1
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    faults = audit_logs(tmp_path / "logs", corpus).faults()
    found = {(fault.kind, fault.epoch) for fault in faults}
    assert found >= {("unknown", 1), ("missing", 1), ("out_of_place", 1), ("out_of_place", 2)}
    (missing,) = (each for each in faults if (each.kind, each.epoch) == ("missing", 2))
    assert missing.numbers.tolist() == [taken]
    assert {epoch for _, epoch in found} == {1, 2}


@pytest.mark.parametrize("even", ["pad", "drop", "join"])
def test_the_end_of_an_epoch_is_that_of_what_it_was_read_from(corpus, tmp_path, even):
    grown_run(corpus, tmp_path / "logs", even=even)
    history = audit_logs(tmp_path / "logs", corpus)
    assert history.is_exact, history.faults()
    least = 9 if even == "drop" else 1
    for number, size in zip(samples(history), (40, 40, 65, 65, 74, 74), strict=True):
        assert size - least < number <= size


def test_steps_that_were_skipped_after_an_append_need_not_be_there(corpus, tmp_path):
    logs = tmp_path / "logs"
    state = launch(corpus, logs, 1, epochs=1, steps=4)
    write(corpus, BEFORE, AFTER, append=True)
    launch(corpus, logs, 2, state=state, skip=2, epochs=2)
    history = audit_logs(logs, corpus)
    assert history.is_exact, history.faults()
    assert [each.skipped for each in history.epochs] == [0, 6, 0]


def test_a_state_of_an_epochs_beginning_begins_with_all(corpus, tmp_path):
    logs = tmp_path / "logs"
    state = launch(corpus, logs, 1, epochs=1, steps=0)
    loader = loader_of(corpus)
    list(loader)
    state = loader.state_dict()
    write(corpus, BEFORE, AFTER, append=True)
    launch(corpus, logs, 2, state=state, epochs=2)
    history = audit_logs(logs, corpus)
    assert history.is_exact, history.faults()
    assert samples(history) == [BEFORE, AFTER, AFTER]


def test_logs_of_the_dataset_before_it_grew_are_compared_with_that(corpus, tmp_path):
    launch(corpus, tmp_path / "logs", 1, epochs=2)
    write(corpus, BEFORE, AFTER, append=True)
    history = audit_logs(tmp_path / "logs", corpus)
    assert history.is_exact
    assert samples(history) == [BEFORE, BEFORE]


def test_a_run_that_does_not_go_on_from_the_one_before_is_another(corpus, tmp_path):
    launch(corpus, tmp_path / "logs", 1, epochs=2)
    write(corpus, BEFORE, AFTER, append=True)
    launch(corpus, tmp_path / "logs", 2, epochs=1)
    for source in (None, corpus):
        with pytest.raises(sl.UsageError, match="an audit is of one dataset"):
            audit_logs(tmp_path / "logs", source)


def test_one_manifest_of_several_is_no_source_and_a_kept_one_that_is_gone_is_missed(
    corpus, tmp_path
):
    grown_run(corpus, tmp_path / "logs")
    manifest = open_catalog(corpus).manifest
    assert isinstance(manifest, Manifest)
    with pytest.raises(sl.UsageError, match="give the source of that run"):
        audit_logs(tmp_path / "logs", manifest)
    for kept in corpus.glob("manifest-*.json"):
        kept.unlink()
    with pytest.raises(sl.UsageError, match="give the source of that run"):
        audit_logs(tmp_path / "logs", corpus)
    assert audit_logs(tmp_path / "logs").is_exact
