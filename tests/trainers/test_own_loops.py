"""Loops of one's own on real ranks: DDP, FSDP2 with torch.distributed.checkpoint, torchtitan's way.

Every chain ends on another number of ranks than it began on, with the same global batch.
"""

from __future__ import annotations

from tests.trainers.launch import Run

STEPS = 8  # of 6 samples


def test_ddp_killed_on_two_ranks_goes_on_with_three(tmp_path, ranks):
    run = Run.begin(tmp_path)
    ranks.launch(run, "ddp_train", 2, ends="killed", num_workers=1, die_at=4)
    ranks.launch(run, "ddp_train", 3)
    history = run.assert_exact(epochs=2)
    assert history.attempts == 2
    assert [epoch.steps for epoch in history.epochs] == [STEPS, STEPS]


def test_fsdp_with_distributed_checkpoints_goes_on_with_three_ranks_and_then_one(tmp_path, ranks):
    run = Run.begin(tmp_path)
    ranks.launch(run, "fsdp_train", 2, ends="killed", num_workers=1, die_at=4)
    # The end of the first epoch: after its last checkpoint, and before the next.
    ranks.launch(run, "fsdp_train", 3, ends="killed", die_at=STEPS - 4)
    ranks.launch(run, "fsdp_train", 1)
    history = run.assert_exact(epochs=2)
    assert history.attempts == 3
    assert [epoch.steps for epoch in history.epochs] == [STEPS, STEPS]


def test_torchtitans_states_are_exact_on_as_many_ranks_and_a_shared_one_on_any(tmp_path, ranks):
    run = Run.begin(tmp_path)
    ranks.launch(
        run, "titan_train", 2, ends="killed", name="a", steps=16, resume="per rank", die_at=5
    )
    ranks.launch(run, "titan_train", 2, name="b", steps=STEPS + 3, resume="per rank")
    assert run.told("b-0") == {"said": "", "epoch": 1}
    ranks.launch(run, "titan_train", 3, name="c", steps=2 * STEPS, resume="shared")
    assert all("dp_rank_2" in run.told(f"c-{rank}")["said"] for rank in range(3))
    run.assert_exact(epochs=2)
