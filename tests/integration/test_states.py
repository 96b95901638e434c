"""A state goes through torch.distributed.checkpoint, torch.save and JSON, to other rank counts."""

from __future__ import annotations

import json
import time

from torch.multiprocessing.spawn import start_processes

from tests.corpora import each_once, kept_corpus
from tests.integration.states import WAYS, start

COUNTS = (9, 0, 8, 7)


def launch(world_size, out):
    """Each rank's word, by rank; a hang fails."""
    arguments = (world_size, str(kept_corpus(COUNTS)), str(out))
    context = start_processes(start, arguments, world_size, join=False, start_method="fork")
    try:
        deadline = time.monotonic() + 90
        while not context.join(timeout=5):
            assert time.monotonic() < deadline, "a rank hangs"
    finally:
        for process in context.processes:
            process.kill()
    paths = [out / f"read-{world_size}-{rank}.json" for rank in range(world_size)]
    return [json.loads(path.read_text()) for path in paths]


def test_a_state_of_two_ranks_is_resumed_on_three_and_on_one_however_it_was_kept(tmp_path):
    before = [number for of_rank in launch(2, tmp_path) for number in of_rank]
    assert len(before) == 3 * 4
    for world_size in (3, 1):
        rest = launch(world_size, tmp_path)
        for way in WAYS:
            after = [number for of_rank in rest for number in of_rank[way]]
            assert each_once(before + after, sum(COUNTS)), way
