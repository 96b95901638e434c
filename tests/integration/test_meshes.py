"""On a device mesh, replicas of a data-parallel rank read the same, and data ranks read apart."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from torch.multiprocessing.spawn import start_processes

from tests.corpora import each_once, kept_corpus
from tests.integration.meshes import start

COUNTS = (9, 0, 8, 7, 1)


def launch(shape, out):
    """What each process wrote down."""
    count = math.prod(shape.values())
    arguments = (shape, str(kept_corpus(COUNTS)), str(out))
    context = start_processes(start, arguments, count, join=False, start_method="fork")
    try:
        deadline = time.monotonic() + 100
        while not context.join(timeout=5):
            assert time.monotonic() < deadline, "a rank hangs"
    finally:
        for process in context.processes:
            process.kill()
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(count)]


@pytest.mark.parametrize(
    "shape",
    [{"dp": 2, "tp": 2}, {"pp": 2, "dp": 2, "tp": 2}],
    ids=" x ".join,
)
def test_peers_get_the_same_batches_and_data_ranks_the_epoch_between_them(tmp_path, shape):
    told = launch(shape, tmp_path)
    for source in ("by mesh", "by group"):
        of_rank: dict[int, Any] = {}
        for each in told:
            batches = of_rank.setdefault(each["place"]["dp"], each[source])
            assert each[source] == batches  # tensor and pipeline peers
        read = [
            [
                number
                for index, valid, _ in batches
                for number, ok in zip(index, valid, strict=True)
                if ok
            ]
            for batches in of_rank.values()
        ]
        assert not set(read[0]) & set(read[1])
        assert each_once(read[0] + read[1], sum(COUNTS))
