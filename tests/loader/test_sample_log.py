"""What log_samples writes, and what an audit makes of it."""

from __future__ import annotations

import json
import os
from itertools import islice

import pytest

import shardloader as sl
from shardloader.planning.audit import audit_logs
from shardloader.planning.sample_log import LOG_VERSION
from tests.corpora import kept_corpus, loader_of, loaders_of
from tests.troubled import RefuseSome, troubled_corpus

COUNTS = (9, 0, 14, 9)


def run(folder, *, attempt, world_size=2, steps=None, state=None, epochs=1, **options):
    """One launch: ranks in lockstep, killed after `steps`; returns the state at its last step."""
    loaders = loaders_of(kept_corpus(COUNTS), world_size, **{"batch_size": 3, **options})
    for loader in loaders:
        loader.log_samples(folder, attempt=attempt)
        if state is not None:
            loader.load_state_dict(state)
    for _ in range(epochs):
        for _ in islice(zip(*loaders, strict=True), steps):
            state = loaders[0].state_dict()
    return state


def test_a_whole_run_is_exact(tmp_path):
    run(tmp_path, attempt=1, epochs=3)
    history = audit_logs(tmp_path)
    assert history.is_exact
    assert (history.attempts, history.superseded, history.num_samples) == (1, 0, 32)
    assert [epoch.tally.samples for epoch in history.epochs] == [32] * 3
    assert [epoch.steps for epoch in history.epochs] == [6] * 3
    assert history.epochs[0].tally.pads == 4


def test_a_run_killed_after_its_checkpoint_and_resumed_on_three_ranks_is_exact(tmp_path):
    state = run(tmp_path, attempt=1, steps=2)
    run(tmp_path / "elsewhere", attempt=1, steps=2, state=state)
    run(tmp_path, attempt=2, steps=2, state=state)  # killed again, two steps on
    run(tmp_path, attempt=3, world_size=3, batch_size=2, state=state)
    history = audit_logs(tmp_path)
    assert history.is_exact
    assert history.attempts == 3
    assert history.superseded == 2 * 2  # what attempt 2 read, on both ranks


def test_a_state_loaded_in_the_same_launch_supersedes_what_came_after_it(tmp_path):
    loader = loader_of(kept_corpus(COUNTS), batch_size=4)
    loader.log_samples(tmp_path, attempt=1)
    states = [loader.state_dict() for _ in islice(loader, 5)]
    loader.load_state_dict(states[1])
    list(loader)
    history = audit_logs(tmp_path)
    assert history.is_exact
    assert (history.attempts, history.superseded) == (2, 3)


def test_what_a_wrong_resume_repeats_and_misses_is_found(tmp_path):
    run(tmp_path, attempt=1, steps=3)
    loaders = loaders_of(kept_corpus(COUNTS), 2, batch_size=3)
    for loader in loaders:
        loader.log_samples(tmp_path, attempt=2)
        loader.load_state_dict({**loader.state_dict(), "consumed": 4 * 6})
        list(loader)
    (epoch,) = audit_logs(tmp_path).epochs
    assert not audit_logs(tmp_path).is_exact
    assert epoch.tally.missing.size == 6
    assert epoch.tally.repeated.size == 0


def test_an_epoch_broken_off_and_read_again_is_no_exact_epoch(tmp_path):
    loader = loader_of(kept_corpus(COUNTS), batch_size=4)
    loader.log_samples(tmp_path, attempt=1)
    list(islice(loader, 2))
    list(loader)
    (epoch,) = audit_logs(tmp_path).epochs
    assert epoch.tally.repeated.size == 8


def test_two_epochs_in_one_order_are_found(tmp_path):
    loader = loader_of(kept_corpus(COUNTS), batch_size=4)
    loader.log_samples(tmp_path, attempt=1)
    list(loader)
    (path,) = tmp_path.iterdir()
    lines = path.read_text().splitlines()
    again = [line.replace('"epoch":0', '"epoch":1') for line in lines[1:]]
    path.write_text("\n".join([*lines, *again, ""]))
    history = audit_logs(tmp_path)
    assert history.repeated_orders == ((0, 1),)
    assert not history.is_exact


def test_a_log_of_an_older_version_is_refused_in_words(tmp_path):
    run(tmp_path, attempt=1, world_size=1, steps=2)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace(f'"version":{LOG_VERSION}', '"version":1'))
    with pytest.raises(sl.DataError, match=r"jsonl: .* versions 2, 3, 4, and this .* version 1: "):
        audit_logs(tmp_path)


def test_a_step_is_one_write_without_a_buffer(tmp_path, monkeypatch):
    loader = loader_of(kept_corpus(COUNTS), batch_size=4)
    loader.log_samples(tmp_path, attempt=1)
    written, write = [], os.write

    def counted(file, data):
        written.append(bytes(data))
        return write(file, data)

    monkeypatch.setattr(os, "write", counted)
    list(loader)
    list(loader)
    assert len(written) == 1 + 8 + 8
    (path,) = tmp_path.iterdir()
    assert path.read_bytes() == b"".join(written)


def test_the_line_that_a_kill_tore_is_left_out(tmp_path):
    run(tmp_path, attempt=1, world_size=1)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    history = audit_logs(tmp_path)
    assert history.epochs[0].steps == 10
    assert not history.is_exact


@pytest.mark.parametrize("line", ["{}", "[1]", "3", '{"epoch": "x"}', "not json"])
def test_a_line_that_is_no_record_is_refused_with_its_place(tmp_path, line):
    run(tmp_path, attempt=1, world_size=1, steps=2)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(sl.ShardLoaderError, match=r"jsonl, line 4: a line is one record"):
        audit_logs(tmp_path)


def test_a_batch_before_any_start_is_refused(tmp_path):
    run(tmp_path, attempt=1, world_size=1, steps=2)
    (path,) = tmp_path.iterdir()
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(sl.ShardLoaderError, match=r"line 1: .*before its attempt's start"):
        audit_logs(tmp_path)


def test_a_folder_without_logs_and_empty_logs_are_refused(tmp_path):
    with pytest.raises(sl.UsageError, match="holds none"):
        audit_logs(tmp_path)
    loader_of(kept_corpus(COUNTS), batch_size=4).log_samples(tmp_path, attempt=1)
    with pytest.raises(sl.UsageError, match="no rank has received a batch"):
        audit_logs(tmp_path)


def test_logs_of_two_datasets_in_one_folder_are_refused(tmp_path):
    for attempt, counts in enumerate(((3,), (4,))):
        loader = loader_of(kept_corpus(counts), batch_size=4)
        loader.log_samples(tmp_path, attempt=attempt)
        list(loader)
    with pytest.raises(sl.UsageError, match="folder of their own"):
        audit_logs(tmp_path)


def test_each_rank_writes_one_line_a_step_that_holds_what_it_received(tmp_path):
    loaders = loaders_of(kept_corpus(COUNTS), 2, batch_size=5)
    for loader in loaders:
        loader.log_samples(tmp_path, attempt=7)
    received = [list(loader) for loader in loaders]
    for rank, batches in enumerate(received):
        text = (tmp_path / f"rank-0000{rank}-of-00002.7.jsonl").read_text()
        start, *steps = map(json.loads, text.splitlines())
        assert start["attempt"] == [7, 0]
        assert [step["index"] for step in steps] == [b["__index__"].tolist() for b in batches]
        assert [step["valid"] for step in steps] == [int(b["__valid__"].sum()) for b in batches]


def test_a_line_is_there_as_soon_as_its_batch_is(tmp_path):
    loader = loader_of(kept_corpus(COUNTS), batch_size=5)
    loader.log_samples(tmp_path, attempt=1)
    (path,) = tmp_path.iterdir()
    for number, _ in enumerate(loader, start=1):
        assert path.read_bytes().count(b"\n") == number + 1


def test_one_rank_needs_no_number_and_later_launches_come_later(tmp_path):
    for _ in range(2):
        loader = loader_of(kept_corpus(COUNTS), batch_size=40)
        loader.log_samples(tmp_path)
        list(loader)
    history = audit_logs(tmp_path)
    assert (history.attempts, history.is_exact) == (2, True)


def test_ranks_that_can_not_agree_on_a_number_are_asked_for_one(tmp_path):
    loader = loader_of(kept_corpus(COUNTS), world_size=2)
    with pytest.raises(sl.UsageError, match=r"log_samples\(..., attempt=\)"):
        loader.log_samples(tmp_path)


def test_a_folder_that_can_not_be_written_is_an_error_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    loader = loader_of(kept_corpus(COUNTS))
    with pytest.raises(sl.WorldError, match="can't make the folder of the samples' log"):
        loader.log_samples(tmp_path / "file" / "logs")


def test_an_unshuffled_run_may_repeat_its_order(tmp_path):
    loader = loader_of(kept_corpus(COUNTS), batch_size=4, shuffle=False)
    loader.log_samples(tmp_path, attempt=1)
    for _ in range(2):
        list(loader)
    assert audit_logs(tmp_path).is_exact


def test_a_run_without_a_step_is_a_fault_unless_drop_explains_it(tmp_path):
    run(tmp_path / "drop", attempt=1, batch_size=40, even="drop")
    history = audit_logs(tmp_path / "drop")
    assert (history.epochs, history.is_exact) == ((), True)
    run(tmp_path / "pad", attempt=1, steps=1)
    for path in (tmp_path / "pad").iterdir():
        path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")
    assert [fault.kind for fault in audit_logs(tmp_path / "pad").faults()] == ["nothing"]


def test_steps_skipped_on_purpose_are_no_fault(tmp_path):
    for loader in loaders_of(kept_corpus(COUNTS), 2, batch_size=3):
        loader.log_samples(tmp_path, attempt=1)
        list(islice(loader, 2))
        loader.skip(2)
        list(loader)
    history = audit_logs(tmp_path)
    (epoch,) = history.epochs
    assert (epoch.tally.missing.size, epoch.may_lack, history.is_exact) == (12, 12, True)


def test_a_rank_that_loads_a_state_twice_starts_no_attempt_of_its_own(tmp_path):
    loaders = loaders_of(kept_corpus(COUNTS), 2, batch_size=3)
    for rank, loader in enumerate(loaders):
        loader.log_samples(tmp_path, attempt=1)
        state = loader.state_dict()
        for _ in range(2 - rank):
            loader.load_state_dict(state)
        list(loader)
    assert audit_logs(tmp_path).is_exact


def test_an_epoch_that_a_resume_has_no_step_for_is_whole_under_drop(tmp_path):
    (loader,) = loaders_of(kept_corpus(COUNTS), 1, batch_size=3, even="drop")
    loader.log_samples(tmp_path, attempt=1)
    list(islice(loader, 9))
    state = loader.state_dict()
    (other,) = loaders_of(kept_corpus(COUNTS), 1, batch_size=8, even="drop")
    other.log_samples(tmp_path, attempt=2)
    other.load_state_dict(state)
    assert other.epoch == 1
    list(other)
    history = audit_logs(tmp_path)
    assert [each.tally.missing.size for each in history.epochs] == [5, 0]
    assert history.is_exact


def test_a_batch_whose_line_can_not_be_written_is_not_lost(tmp_path, monkeypatch):
    loader = loader_of(kept_corpus(COUNTS), batch_size=4)
    loader.log_samples(tmp_path, attempt=1)
    iterator = iter(loader)
    next(iterator)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
    with pytest.raises(sl.WorldError, match=r"the disk of the samples' log .* is full"):
        next(iterator)
    monkeypatch.undo()
    assert loader.state_dict()["consumed"] == 4
    with pytest.raises(sl.StaleIteratorError, match="raised an error"):
        next(iterator)
    loader.load_state_dict(loader.state_dict())
    list(loader)
    assert audit_logs(tmp_path).is_exact


@pytest.mark.parametrize("reads_on", [True, False])
def test_what_was_read_behind_a_state_that_closed_its_epoch_is_rolled_back(tmp_path, reads_on):
    """24 samples, a state after 20 of them, and batches of 7 that leave no step for the rest."""
    first = loader_of(kept_corpus((24,)), batch_size=5, even="drop")
    first.log_samples(tmp_path, attempt=1)
    states = [first.state_dict() for _ in first]
    assert len(states) == 4
    first.load_state_dict(states[2])
    list(first)
    closing = loader_of(kept_corpus((24,)), batch_size=10, even="drop")
    closing.log_samples(tmp_path, attempt=2)
    closing.load_state_dict(states[2])  # after 15 samples: 9 are left
    if reads_on:
        list(closing)
    else:  # another launch goes on from the state that this one saved
        third = loader_of(kept_corpus((24,)), batch_size=10, even="drop")
        third.log_samples(tmp_path, attempt=3)
        third.load_state_dict(closing.state_dict())
        list(third)
    history = audit_logs(tmp_path)
    assert history.is_exact
    assert history.epochs[0].tally.samples == 15
    assert history.superseded == 2


def test_a_row_says_which_slots_were_bad_or_refused_and_keeps_the_plans_samples(tmp_path):
    source = troubled_corpus(COUNTS, frozenset({1, 20}))
    options = {"on_error": "skip", "transform": RefuseSome({2}), "shuffle": False, "batch_size": 8}
    loader = loader_of(source, **options)
    loader.log_samples(tmp_path, attempt=1)
    list(loader)
    (path,) = tmp_path.iterdir()
    _, first, second, third, _ = map(json.loads, path.read_text().splitlines())
    assert (first["index"], first["valid"]) == (list(range(8)), 8)
    assert (first["bad"], first["refused"]) == ([1], [2])
    assert "bad" not in second
    assert third["bad"] == [4]
    history = audit_logs(tmp_path, source)
    assert history.is_exact
    (epoch,) = history.epochs
    assert (epoch.bad.tolist(), epoch.refused.tolist()) == ([1, 20], [2])
    assert (epoch.num_given, epoch.tally.samples) == (29, 32)


def test_what_was_rolled_back_is_not_counted_as_bad(tmp_path):
    source = troubled_corpus(COUNTS, frozenset({1}))
    for attempt in (1, 2):  # the second launch begins anew
        loader = loader_of(source, on_error="skip", batch_size=8)
        loader.log_samples(tmp_path, attempt=attempt)
        list(loader)
    (epoch,) = audit_logs(tmp_path, source).epochs
    assert epoch.bad.tolist() == [1]


def test_a_log_of_the_version_before_is_read(tmp_path):
    run(tmp_path, attempt=1)
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace('"version":3', '"version":2'))
    history = audit_logs(tmp_path, kept_corpus(COUNTS))
    assert history.is_exact
    assert history.epochs[0].bad.size == history.epochs[0].refused.size == 0


@pytest.mark.parametrize("slots", [[3], [-1], [True], ["0"], [0.0], 1, {"0": 1}])
@pytest.mark.parametrize("name", ["bad", "refused"])
def test_slots_that_a_row_does_not_have_as_valid_are_no_record(tmp_path, name, slots):
    run(tmp_path, attempt=1, world_size=1)
    (path,) = tmp_path.iterdir()
    lines = path.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), name: slots})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(sl.DataError, match="line 2: a line is one record"):
        audit_logs(tmp_path)
