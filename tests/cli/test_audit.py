"""`shardloader audit`: a sound history passes, and every doctored one fails in words."""

from __future__ import annotations

import pytest

from shardloader.reading.indexing import index_dataset
from tests.cli.workplace import Run, make_corpus


@pytest.fixture
def logs(place):
    made = Run(place / "logs")
    made.attempt(1, epoch=0)
    made.attempt(1, epoch=1)
    return made


@pytest.fixture
def corpus_logs(place):
    """Logs of a dataset that is there, in two epochs."""
    make_corpus(place / "corpus", shards=4, samples=16)
    manifest, _ = index_dataset(place / "corpus")
    made = Run(place / "logs", manifest=manifest)
    made.attempt(1, epoch=0)
    made.attempt(1, epoch=1)
    return made


def kinds(ended):
    return [fault["kind"] for fault in ended.json["faults"]]


def test_a_whole_history_is_exact(logs, run):
    ended = run("audit", "logs")
    assert (ended.code, ended.err) == (0, "")
    assert "exact: every sample once in every epoch" in ended.out
    assert "no two epochs alike" in ended.out
    told = run("audit", "logs", "--json").json
    assert (told["is_exact"], told["attempts"], told["superseded_batches"]) == (True, 1, 0)
    assert [(each["epoch"], each["steps"]) for each in told["epochs"]] == [(0, 8), (1, 8)]
    assert {each["samples"] for each in told["epochs"]} == {64}


def test_pads_are_counted_and_are_no_repetition(place, run):
    Run(place / "logs", world_size=3).attempt(1)
    (epoch,) = run("audit", "logs", "--json").json["epochs"]
    assert (epoch["samples"], epoch["pads"], epoch["repeated"]["count"]) == (64, 8, 0)


def test_a_missing_sample_is_a_fault_that_names_it(logs, run):
    lines = logs.read(1, 1)
    lost = lines.pop(3)
    logs.rewrite(1, 1, lines)
    ended = run("audit", "logs")
    assert ended.code == 1
    first = ", ".join(map(str, sorted(lost["index"])))
    assert f"FAULT  epoch 0: 4 samples never read: {first}" in ended.out
    told = run("audit", "logs", "--json")
    assert (told.code, kinds(told)) == (1, ["missing"])
    assert told.json["epochs"][0]["missing"] == {"count": 4, "first": sorted(lost["index"])}


def test_a_repeated_and_an_unknown_sample_are_faults(logs, run):
    lines = logs.read(0, 1)
    lines[1]["index"][0] = lines[2]["index"][0]
    lines[4]["index"][1] = 64
    logs.rewrite(0, 1, lines)
    ended = run("audit", "logs", "--json")
    assert (ended.code, kinds(ended)) == (1, ["missing", "repeated", "unknown"])
    assert ended.json["epochs"][0]["repeated"]["first"] == [lines[2]["index"][0]]
    assert ended.json["epochs"][0]["unknown"]["first"] == [64]
    assert "64" in run("audit", "logs").out


def test_the_first_few_of_many_are_listed(place, run):
    made = Run(place / "logs")
    made.attempt(1, stop=1)
    ended = run("audit", "logs")
    assert ended.code == 1
    assert "56 samples never read" in ended.out
    assert "and 51 more" in ended.out
    assert len(run("audit", "logs", "--json").json["epochs"][0]["missing"]["first"]) == 10


def test_the_same_order_twice_is_a_fault(place, run):
    made = Run(place / "logs")
    made.attempt(1, epoch=0)
    for rank in range(2):
        again = [line | {"epoch": 1} for line in made.read(rank, 1)[1:]]
        made.write(rank, 1, again)
    ended = run("audit", "logs", "--json")
    assert (ended.code, kinds(ended)) == (1, ["same_order"])
    assert ended.json["repeated_orders"] == [[0, 1]]
    text = run("audit", "logs").out
    assert "FAULT  epochs 0 and 1 were read in the same order" in text
    assert "the same in epochs 0 and 1" in text


def test_steps_that_were_rolled_back_are_superseded_over_attempts(place, run):
    made = Run(place / "logs")
    made.attempt(1, stop=6)
    with made.path(1, 1).open("a") as file:
        file.write('{"epoch":0,"consumed":48,"ind')  # what a kill leaves
    made.attempt(2, start=4, stop=5)
    made.attempt(3, start=3)
    ended = run("audit", "logs", "--json")
    assert ended.code == 0
    assert (ended.json["attempts"], ended.json["superseded_batches"]) == (3, 2 * (3 + 1))
    (epoch,) = ended.json["epochs"]
    assert (epoch["steps"], epoch["samples"]) == (8, 64)


def test_a_hole_between_attempts_is_a_fault(place, run):
    made = Run(place / "logs")
    made.attempt(1, stop=3)
    made.attempt(2, start=4)
    assert run("audit", "logs").code == 1


def test_an_unfinished_last_epoch_may_lack_samples_and_nothing_else(logs, run):
    logs.attempt(1, epoch=2, stop=5)
    assert run("audit", "logs").code == 1
    ended = run("audit", "logs", "--unfinished")
    assert ended.code == 0
    assert "exact so far: every sample once, 24 of epoch 2 yet to come" in ended.out
    lines = logs.read(0, 1)
    lines[-1]["index"][0] = lines[-2]["index"][0]
    logs.rewrite(0, 1, lines)
    assert kinds(run("audit", "logs", "--unfinished", "--json")) == ["repeated"]


def test_a_batch_lost_in_the_middle_of_an_unfinished_epoch_is_a_fault(place, run):
    made = Run(place / "logs")
    made.attempt(1, stop=6)
    lines = made.read(1, 1)
    del lines[3]
    made.rewrite(1, 1, lines)
    ended = run("audit", "logs", "--unfinished")
    assert ended.code == 1
    assert "FAULT  epoch 0: 4 samples in no log, of steps that every rank has passed" in ended.out


def test_a_rank_that_is_behind_has_lost_nothing(place, run):
    made = Run(place / "logs")
    made.attempt(1, stop=6)
    lines = made.read(1, 1)
    made.rewrite(1, 1, lines[:-2])
    assert run("audit", "logs", "--unfinished").code == 0
    made.rewrite(1, 1, lines[:1])
    assert run("audit", "logs", "--unfinished").code == 0


def test_an_earlier_epoch_is_never_unfinished(logs, run):
    lines = logs.read(0, 1)
    del lines[2]
    logs.rewrite(0, 1, lines)
    assert run("audit", "logs", "--unfinished").code == 1


def test_samples_that_drop_leaves_out_are_no_fault(place, run):
    made = Run(place / "logs", world_size=3)
    made.attempt(1, even="drop")
    ended = run("audit", "logs")
    assert ended.code == 0
    assert "no sample twice, and no more than 4 left out, as was asked for" in ended.out
    lines = made.read(0, 1)
    made.rewrite(0, 1, lines[:-1])
    assert run("audit", "logs").code == 1


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        "7",
        '{"epoch": 0}',
        '{"attempt": 7}',
        '{"attempt": [1, 0], "rank": "first"}',
        '{"epoch": 0, "consumed": 0, "index": ["a"], "valid": 1}',
        "\udcff",
    ],
)
def test_garbage_in_a_log_is_exit_code_1_and_names_the_line(line, logs, run):
    path = logs.path(0, 1)
    path.write_bytes(path.read_bytes() + line.encode("utf-8", "surrogateescape") + b"\n")
    ended = run("audit", "logs")
    assert (ended.code, ended.out) == (1, "")
    assert f"{path.name}, line 19" in ended.err


def test_logs_of_two_datasets_are_refused(logs, place, run):
    Run(place / "logs", samples=32).attempt(2)
    assert run("audit", "logs").code == 2


def test_a_start_without_batches_is_a_fault(place, run):
    Run(place / "logs").attempt(1, stop=0)
    ended = run("audit", "logs")
    assert ended.code == 1
    assert "no rank received a batch" in ended.out


def test_with_the_dataset_every_row_is_compared_with_the_plan(corpus_logs, run):
    ended = run("audit", "logs", "corpus")
    assert (ended.code, ended.err) == (0, "")
    assert "every row is what the plan has for its rank and step" in ended.out
    assert "exact: every sample once in every epoch, in its place" in ended.out
    told = run("audit", "logs", "corpus", "--json").json
    assert told["is_compared"] is True
    assert {each["out_of_place"]["count"] for each in told["epochs"]} == {0}


def test_without_the_dataset_it_says_that_nothing_was_compared_and_how_to(corpus_logs, run):
    ended = run("audit", "logs")
    assert ended.code == 0
    assert "rows were not compared" in ended.out
    assert "shardloader audit logs SRC" in ended.out
    told = run("audit", "logs", "--json").json
    assert told["is_compared"] is False
    assert [each["out_of_place"] for each in told["epochs"]] == [None, None]


def test_samples_out_of_place_are_a_fault_that_names_them(corpus_logs, run):
    lines = corpus_logs.read(1, 1)
    index = lines[3]["index"]
    index[0], index[1] = index[1], index[0]
    corpus_logs.rewrite(1, 1, lines)
    assert run("audit", "logs").code == 0
    ended = run("audit", "logs", "corpus")
    assert ended.code == 1
    named = f"{index[0]}, {index[1]}"
    assert f"FAULT  epoch 0: 2 samples not where the plan has them: {named}" in ended.out
    assert "2 slots other than the plan has them" in ended.out
    told = run("audit", "logs", "corpus", "--json")
    assert (told.code, kinds(told)) == (1, ["out_of_place"])
    assert told.json["epochs"][0]["out_of_place"] == {"count": 2, "first": index[:2]}


def test_a_rank_whose_log_was_not_brought_along_is_named(logs, run):
    logs.path(1, 1).unlink()
    ended = run("audit", "logs")
    assert ended.code == 1
    assert "FAULT  launch 1, which read from epoch 0 on: 1 rank without a log: 1 (" in ended.out
    assert kinds(run("audit", "logs", "--json")) == ["missing", "missing", "no_log"]


def test_a_dataset_that_was_not_read_is_wrong_use(logs, place, run):
    make_corpus(place / "corpus")
    index_dataset(place / "corpus")
    ended = run("audit", "logs", "corpus")
    assert (ended.code, ended.out) == (2, "")
    assert "give the source of that run" in ended.err


def test_no_shard_is_read_for_the_plan(corpus_logs, place, run):
    for path in (place / "corpus").glob("*.tar"):
        path.write_bytes(bytes(path.stat().st_size))
    assert run("audit", "logs", "corpus").code == 0


def test_an_index_folder_without_a_dataset_is_wrong_use(logs, run):
    assert run("audit", "logs", "--index-dir", "corpus").code == 2


def test_the_table_tells_what_each_epoch_holds(place, run):
    made = Run(place / "logs", world_size=3)
    made.attempt(1, stop=2)
    for rank in range(3):
        made.write(rank, 1, [{"epoch": 0, "consumed": 24, "skipped": 12}])
    made.attempt(2, start=3)
    header, row = run("audit", "logs").out.split("\n\n")[1].splitlines()
    assert header.replace("out of place", "out_of_place").split() == [
        "epoch",
        "steps",
        "samples",
        "pads",
        "missing",
        "repeated",
        "unknown",
        "out_of_place",
        "skipped",
    ]
    assert row.split() == ["0", "5", "52", "8", "12", "0", "0", "-", "12"]


def test_orders_that_can_hardly_differ_are_not_compared(place, run):
    made = Run(place / "logs")
    for epoch in range(2):
        made.attempt(1, epoch=epoch, shuffle=False)
    ended = run("audit", "logs")
    assert ended.code == 0
    assert "orders      not compared: " in ended.out


def test_a_run_that_drops_all_it_has_is_exact(place, run):
    made = Run(place / "logs", samples=8, world_size=3)
    made.attempt(1, even="drop")
    ended = run("audit", "logs")
    assert ended.code == 0
    assert "exact: " in ended.out


def test_bad_and_refused_samples_are_counted_and_are_no_fault(logs, run):
    lines = logs.read(1, 1)
    lines[3]["bad"] = [0, 2]
    lines[4]["refused"] = [1]
    logs.rewrite(1, 1, lines)
    ended = run("audit", "logs")
    assert ended.code == 0
    assert "2 were bad and 1 were refused by the transform" in ended.out
    assert "bad  refused" in ended.out
    told = run("audit", "logs", "--json").json
    assert told["is_exact"]
    first, second = told["epochs"]
    bad = sorted(lines[3]["index"][slot] for slot in (0, 2))
    assert first["bad"] == {"count": 2, "first": bad}
    assert first["refused"] == {"count": 1, "first": [lines[4]["index"][1]]}
    assert (first["samples"], first["missing"]["count"]) == (61, 0)
    assert second["bad"]["count"] == 0


def test_a_run_that_went_on_without_a_shard_can_be_audited(corpus_logs, place, run):
    (place / "corpus" / "shard-001.tar").unlink()
    ended = run("audit", "logs", "corpus")
    assert ended.code == 0
    assert "every row is what the plan has" in ended.out
    assert "shard-001.tar: the manifest lists this shard, and it can't be found" in ended.err


def test_a_shard_that_was_changed_since_is_a_warning_and_no_fault_of_the_run(place, run):
    make_corpus(place / "corpus", shards=4, samples=16)
    manifest, _ = index_dataset(place / "corpus")
    Run(place / "logs", manifest=manifest).attempt(1)
    with (place / "corpus" / "shard-001.tar").open("ab") as file:
        file.write(b"x")
    ended = run("audit", "logs", "corpus")
    assert ended.code == 0
    assert "shard-001.tar: the shard has" in ended.err
    ended = run("plan", "corpus", "--batch-size", "4")
    assert ended.code == 0
    assert "shard-001.tar: the shard has" in ended.err
