"""What an audit finds: nothing in a true history, and each fault that is put into a real log."""

from __future__ import annotations

import json
import random
from itertools import islice

import pytest

import shardloader as sl
from shardloader.format.manifest import Manifest
from shardloader.planning.audit import audit_logs
from shardloader.reading.catalog import open_catalog
from tests.corpora import kept_corpus, loader_of, loaders_of

COUNTS = (9, 0, 14, 9)
CORPUS = kept_corpus(COUNTS)
STEPS = 6  # of 32 samples on two ranks in threes: the last holds one sample and two pads each


def write_logs(folder, *, epochs=2, **options):
    """The logs of two ranks in lockstep: a line for the start, and one a step."""
    loaders = loaders_of(CORPUS, 2, **{"batch_size": 3, **options})
    for loader in loaders:
        loader.log_samples(folder, attempt=1)
    for _ in range(epochs):
        for _ in zip(*loaders, strict=True):
            pass


@pytest.fixture
def logs(tmp_path):
    write_logs(tmp_path)
    return tmp_path


def edit(folder, change, *, rank=0):
    """Let `change` alter the list of a rank's records."""
    (path,) = folder.glob(f"rank-{rank:05d}-*")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    change(records)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def kinds(history, **options):
    return [fault.kind for fault in history.faults(**options)]


def put(row, slot, sample):
    def change(records):
        records[row]["index"][slot] = sample

    return change


def test_a_true_history_is_exact_and_in_place(logs):
    history = audit_logs(logs, CORPUS)
    assert (history.is_exact, history.is_compared) == (True, True)
    assert [epoch.steps for epoch in history.epochs] == [STEPS] * 2


def test_two_samples_swapped_in_a_batch_are_out_of_place_and_nothing_else(logs):
    swapped = []

    def change(records):
        index = records[3]["index"]
        index[0], index[2] = index[2], index[0]
        swapped.extend([index[0], index[2]])

    edit(logs, change)
    (fault,) = audit_logs(logs, CORPUS).faults()
    assert (fault.kind, fault.epoch, fault.numbers.tolist()) == ("out_of_place", 0, swapped)
    assert audit_logs(logs).is_exact  # counting alone can't see it


def test_two_batches_that_changed_ranks_are_out_of_place(logs):
    rows = []
    for rank in range(2):
        edit(logs, lambda records: rows.append(records[9]), rank=rank)
    for rank in range(2):
        edit(logs, lambda records, rank=rank: records.__setitem__(9, rows[1 - rank]), rank=rank)
    history = audit_logs(logs, CORPUS)
    assert kinds(history) == ["out_of_place"]
    assert history.epochs[0].out_of_place.size == 0
    assert sorted(history.epochs[1].out_of_place) == sorted(rows[0]["index"] + rows[1]["index"])


def test_a_sample_in_the_place_of_another_is_out_of_place_repeated_and_leaves_it_missing(logs):
    edit(logs, lambda records: records[2]["index"].__setitem__(1, records[1]["index"][0]))
    assert kinds(audit_logs(logs, CORPUS)) == ["missing", "repeated", "out_of_place"]
    edit(logs, put(2, 1, 32))
    assert kinds(audit_logs(logs, CORPUS)) == ["missing", "unknown", "out_of_place"]


def test_a_pad_of_another_sample_is_out_of_place(logs):
    edit(logs, lambda records: records[STEPS]["index"].__setitem__(2, records[1]["index"][0]))
    history = audit_logs(logs, CORPUS)
    assert kinds(history) == ["out_of_place"]
    assert history.epochs[0].out_of_place.size == 1


def test_a_pad_that_counts_as_valid_is_a_fault_of_the_mask(logs):
    edit(logs, lambda records: records[STEPS].update(valid=2))
    history = audit_logs(logs, CORPUS)
    assert kinds(history) == ["repeated", "mask"]
    assert history.epochs[0].mismarked.tolist() == history.epochs[0].tally.repeated.tolist()


def test_a_sample_that_counts_as_a_pad_is_a_fault_of_the_mask(logs):
    edit(logs, lambda records: records[4].update(valid=2))
    history = audit_logs(logs, CORPUS)
    assert kinds(history) == ["missing", "mask"]
    assert history.epochs[0].mismarked.tolist() == history.epochs[0].tally.missing.tolist()


def test_a_line_that_is_not_there_leaves_its_samples_missing(logs):
    gone = []
    edit(logs, lambda records: gone.append(records.pop(3)), rank=1)
    (fault,) = audit_logs(logs, CORPUS).faults()
    assert (fault.kind, fault.numbers.tolist()) == ("missing", sorted(gone[0]["index"]))


def test_a_line_that_is_there_twice_repeats_its_samples(logs):
    twice = []

    def change(records):
        records.insert(5, records[2])
        twice.extend(records[2]["index"])

    edit(logs, change)
    (fault,) = audit_logs(logs, CORPUS).faults()
    assert (fault.kind, fault.numbers.tolist()) == ("repeated", sorted(twice))


def test_a_rank_without_a_file_is_named(logs):
    (path,) = logs.glob("rank-00001-*")
    path.unlink()
    history = audit_logs(logs, CORPUS)
    assert kinds(history) == ["missing", "missing", "no_log"]
    fault = history.faults()[-1]
    assert (fault.launch, fault.epoch, fault.numbers.tolist()) == (1, 0, [1])
    path.touch()
    assert kinds(audit_logs(logs, CORPUS)) == ["missing", "missing"]


def test_a_batch_at_a_step_that_the_epoch_does_not_have_is_out_of_place(logs):
    for consumed in (33, 36):
        edit(logs, lambda records, at=consumed: records[-1].update(consumed=at))
        found = audit_logs(logs, CORPUS).epochs[1]
        assert found.out_of_place.size == 3
        assert found.tally.is_exact


def test_a_batch_with_a_slot_too_many_or_too_few_is_out_of_place(logs):
    edit(logs, lambda records: records[STEPS]["index"].append(5))
    (fault,) = audit_logs(logs, CORPUS).faults()
    assert (fault.kind, fault.numbers.tolist()) == ("out_of_place", [5])
    edit(logs, lambda records: records[STEPS]["index"].pop())
    edit(logs, lambda records: records[STEPS]["index"].pop())
    (fault,) = audit_logs(logs, CORPUS).faults()
    assert (fault.kind, fault.numbers.size) == ("out_of_place", 1)


def test_another_seed_window_grid_or_policy_than_was_logged_is_seen(logs):
    (path,) = logs.glob("rank-00000-*")
    text = path.read_text()
    for change in ({"seed": 1}, {"window": 3}, {"grid": [1, 1, 6]}, {"batch_size": 2}):
        path.write_text(text)
        edit(logs, lambda records, change=change: records[0].update(change))
        assert "out_of_place" in kinds(audit_logs(logs, CORPUS)), change
    path.write_text(text)
    edit(logs, lambda records: records[0].update(even="drop"))
    assert "out_of_place" in kinds(audit_logs(logs, CORPUS))


def test_rows_that_were_rolled_back_are_compared_too(tmp_path):
    loader = loader_of(CORPUS, batch_size=4)
    loader.log_samples(tmp_path, attempt=1)
    states = [loader.state_dict() for _ in islice(loader, 5)]
    loader.load_state_dict(states[1])
    list(loader)
    edit(tmp_path, put(5, 0, 7))
    (fault,) = audit_logs(tmp_path, CORPUS).faults()
    assert (fault.kind, fault.is_superseded, fault.numbers.tolist()) == ("out_of_place", True, [7])


def test_a_pass_that_a_slot_does_not_belong_to_is_out_of_place(tmp_path):
    loader = loader_of(CORPUS, batch_size=4, steps_per_epoch=5)
    loader.log_samples(tmp_path, attempt=1)
    for _ in range(4):
        list(loader)
    assert audit_logs(tmp_path, CORPUS).is_exact
    edit(tmp_path, lambda records: records[10].update({"pass": [0, 1, 1, 1]}))
    assert "out_of_place" in kinds(audit_logs(tmp_path, CORPUS))


def test_a_dataset_that_is_another_is_refused_in_words(logs):
    with pytest.raises(sl.UsageError, match="give the source of that run") as raised:
        audit_logs(logs, kept_corpus((9, 14, 9)))
    assert open_catalog(CORPUS).manifest.digest in str(raised.value)


def test_a_manifest_serves_as_the_dataset(logs):
    manifest = open_catalog(CORPUS).manifest
    assert isinstance(manifest, Manifest)
    assert audit_logs(logs, manifest).is_compared


@pytest.mark.parametrize(
    ("counts", "window", "is_fault"),
    [((32,), 1, False), ((16, 16), 1, False), ((32,), 2, False), ((32,), 32, True)],
)
def test_the_same_order_is_a_fault_only_where_the_shuffle_could_have_made_another(
    counts, window, is_fault, tmp_path
):
    loader = loader_of(kept_corpus(counts), batch_size=4, shuffle=sl.Shuffle(window=window))
    loader.log_samples(tmp_path, attempt=1)
    list(loader)

    def again(records):
        records += [record | {"epoch": 1} for record in records[1:]]

    edit(tmp_path, again)
    assert kinds(audit_logs(tmp_path)) == ["same_order"] * is_fault


def test_many_shards_can_be_told_apart_also_without_a_window(tmp_path):
    source = kept_corpus((1,) * 24)
    loader = loader_of(source, batch_size=4, shuffle=sl.Shuffle(window=1))
    loader.log_samples(tmp_path, attempt=1)
    list(loader)
    edit(tmp_path, lambda records: records.extend([r | {"epoch": 1} for r in records[1:]]))
    assert kinds(audit_logs(tmp_path)) == ["same_order"]


def test_what_was_skipped_is_told_apart_from_what_is_missing(tmp_path):
    for loader in loaders_of(CORPUS, 2, batch_size=3):
        loader.log_samples(tmp_path, attempt=1)
        list(islice(loader, 1))
        loader.skip(2)
        list(loader)
        list(loader)
    history = audit_logs(tmp_path, CORPUS)
    assert history.is_exact
    assert [epoch.skipped for epoch in history.epochs] == [12, 0]
    edit(tmp_path, lambda records: records.pop(-1))
    assert kinds(audit_logs(tmp_path, CORPUS)) == ["missing"]


def test_skips_are_told_by_pass_where_epochs_are_not_passes(tmp_path):
    loader = loader_of(CORPUS, batch_size=4, steps_per_epoch=6)
    loader.log_samples(tmp_path, attempt=1)
    list(loader)
    next(iter(loader))
    loader.skip(3)  # positions 28 .. 39: the last 4 of pass 0, the first 8 of pass 1
    list(loader)
    list(loader)
    history = audit_logs(tmp_path, CORPUS)
    assert history.is_exact
    assert [epoch.skipped for epoch in history.epochs] == [4, 8, 0]
    edit(tmp_path, lambda records: records.pop(2))
    assert kinds(audit_logs(tmp_path, CORPUS)) == ["missing"]


def test_a_grid_that_changes_at_an_epochs_start_is_logged_and_followed(tmp_path):
    loader = loader_of(CORPUS, batch_size=4)
    states = [loader.state_dict() for _ in islice(loader, 3)]
    for rank, other in enumerate(loaders_of(CORPUS, 2, batch_size=3)):
        other.log_samples(tmp_path, attempt=1)
        other.load_state_dict(states[-1])
        list(other)
        list(other)
        lines = (tmp_path / f"rank-0000{rank}-of-00002.1.jsonl").read_text().splitlines()
        grids = [record["grid"] for record in map(json.loads, lines) if "grid" in record]
        assert grids == [[1, 1, 4], [2, 1, 3]]
    assert audit_logs(tmp_path, CORPUS).is_exact


def test_progress_is_told_in_bytes_and_in_samples(logs):
    told = {}

    class Bar:
        def __init__(self, what, unit, total):
            told[what] = [unit, total, 0]
            self.what = what

        def __enter__(self):
            return self.more

        def __exit__(self, *_):
            pass

        def more(self, done):
            told[self.what][2] += done

    audit_logs(logs, CORPUS, watch=Bar)
    size = sum(path.stat().st_size for path in logs.iterdir())
    slots = 2 * 2 * STEPS * 3
    assert told == {"reading": ["B", size, size], "comparing": ["sample", slots, slots]}


class Training:
    """A run that is killed, resumed, rolled back and skips, as a random generator says."""

    def __init__(self, folder, number):
        self.random = random.Random(number)
        self.folder = folder
        self.options = {
            "even": self.random.choice(["pad", "drop", "join"]),
            "steps_per_epoch": self.random.choice([None, None, 5]),
            "shuffle": self.random.choice([True, sl.Shuffle(window=3), False]),
            "grid": self.random.choice([None, None, sl.Grid(ranks=2, workers=3, batch=2)]),
        }
        self.launch = 0
        self.states = []

    def __call__(self):
        """One launch in a topology of its own."""
        self.launch += 1
        world_size, batch_size = self.random.randint(1, 3), self.random.choice([1, 2, 3, 5])
        loaders = loaders_of(CORPUS, world_size, batch_size=batch_size, **self.options)
        # A later launch never goes back to what this one rolls back.
        self.states = self.states[: max(1, len(self.states) - self.random.randint(0, 3))]
        state = self.states[-1] if self.states else None
        for loader in loaders:
            loader.log_samples(self.folder, attempt=self.launch)
            if state is not None:
                loader.load_state_dict(state)
        for _ in range(self.random.randint(1, 3)):
            self.epoch(loaders)

    def epoch(self, loaders):
        steps = self.random.choice([None, None, 1, 3])
        iterators = [islice(loader, steps) for loader in loaders]
        # Under "join" a rank without a last batch is at its end when it is asked for one.
        while sum(next(each, None) is not None for each in iterators) == len(loaders):
            self.states.append(loaders[0].state_dict())
        if steps is None:
            self.states.append(loaders[0].state_dict())
            return
        change, arguments = self.random.choice(
            [("skip", [self.random.randint(0, 3)]), ("load_state_dict", self.states[-1:])]
        )
        for loader in loaders:
            getattr(loader, change)(*arguments)


@pytest.mark.parametrize("number", range(12))
def test_a_true_history_of_any_turns_is_in_place_and_exact_so_far(number, tmp_path):
    training = Training(tmp_path, number)
    for _ in range(4):
        training()
    history = audit_logs(tmp_path, CORPUS)
    assert history.is_compared
    assert kinds(history, unfinished=True) == []
