"""Hugging Face's Trainer itself, on two ranks: killed in mid-epoch, resumed, ended on one rank."""

from __future__ import annotations

import pytest

from tests.trainers.launch import Run

STEPS = 11


@pytest.fixture(scope="module")
def run(tmp_path_factory, ranks):
    run = Run.begin(tmp_path_factory.mktemp("trainer"))

    epochs, steps = {"num_train_epochs": 2}, {"max_steps": 2 * STEPS}
    ranks.launch(run, "hf_train", 2, ends="killed", name="a", die_at=7, length=epochs)
    # After the first step of the second epoch: the last checkpoint is of the first one's end.
    again = {"num_workers": 1, "die_at": STEPS + 1, "length": steps, "ways": ["dataset"]}
    ranks.launch(run, "hf_train", 2, ends="killed", name="b", **again)
    ranks.launch(run, "hf_train", 1, name="c", batch_size=4, length=epochs, ways=["skip"])
    return run


def test_a_run_killed_twice_reads_every_sample_once_in_each_epoch(run):
    history = run.assert_exact(epochs=2)
    assert history.attempts == 3
    assert history.superseded > 0
    told = run.told("c-0")
    assert told["steps"] == 2 * STEPS
    assert (told["state"]["epoch"], told["state"]["consumed"]) == (2, 0)


def test_a_resume_that_would_replay_the_data_is_refused_with_what_to_do(run):
    said = run.told("c-0-ways")["skip"]
    assert "ignore_data_skip=True" in said
    assert "load_state_dict" in said


def test_a_dataset_given_to_trainer_itself_is_refused_on_two_ranks(run):
    for rank in (0, 1):
        assert "get_train_dataloader" in run.told(f"b-{rank}-ways")["dataset"]
