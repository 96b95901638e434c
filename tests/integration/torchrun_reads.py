"""What each rank runs under torchrun: read some steps, write down what came, save the state.

torchrun --nproc-per-node 2 torchrun_reads.py CORPUS OUT STEPS
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from torch import distributed

import shardloader as sl


def main() -> None:
    """Read STEPS more steps of the run in OUT, or all that are left for 0."""
    corpus, out, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) or None
    distributed.init_process_group("gloo")
    loader: Any = sl.ShardLoader(sl.ShardDataset(corpus), batch_size=2, num_workers=1)
    loader.log_samples(out / "log")
    state = out / "state.json"
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    given = 0
    for batch in islice(loader, steps):
        given += 1
        counts = [0] * distributed.get_world_size()
        distributed.all_gather_object(counts, int(batch["__valid__"].sum()))
        assert sum(counts) == batch["__global_valid__"]
    states = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, (given, loader.state_dict()))
    assert all(each == states[0] for each in states)
    if distributed.get_rank() == 0:
        state.write_text(json.dumps(loader.state_dict()))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
