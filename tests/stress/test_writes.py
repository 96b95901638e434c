from __future__ import annotations

from tests.stress import writes


def test_writes_that_are_killed_again_and_again_come_out_the_same() -> None:
    assert writes.run(10, seed=1) > 5
