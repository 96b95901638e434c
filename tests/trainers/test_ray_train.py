"""Ray Train itself, two workers, of which one is killed and Ray starts both anew."""

from __future__ import annotations

import pytest

from tests.trainers.launch import Run, Started


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    started = Started(Run.begin(tmp_path_factory.mktemp("ray")), "ray_train", die_at=6)
    yield started
    started.end()


# Ray takes a minute and more to begin on a busy machine: a test each for what is waited for.
def test_ray_begins(started):
    started.wait_for(started.run.out / "ray.json")


def test_the_workers_begin(started):
    started.wait_for(started.run.out / "log")


def test_a_worker_is_killed_between_two_checkpoints(started):
    started.wait_for(started.run.out / "died.json")


def test_the_workers_that_ray_starts_anew_read_every_sample_once(started):
    assert started.wait() == 0, started.printed()
    run = started.run
    history = run.assert_exact(epochs=2)
    assert history.attempts == 2
    assert history.superseded > 0
    assert run.told("result") == {"epoch": 2}


def test_rays_own_wrapper_takes_a_batch_that_training_has_not_had(started):
    """Why docs/trainers.md leaves prepare_data_loader out."""
    assert started.wait() == 0, started.printed()
    assert started.run.told("ahead") == 2
