"""Many shards in every batch, in threads, with few descriptors: a process of its own for its limit.

python few_files.py CORPUS LIMIT
"""

from __future__ import annotations

import resource
import sys
from typing import Any

import shardloader as sl
from shardloader.dataset.samples import SampleReader


def main() -> None:
    """Print how many samples came, and whether any batch had to be read one by one."""
    limit = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    one_by_one: list[str] = []
    read = SampleReader.read

    def noted(reader: SampleReader, **of: Any) -> Any:
        one_by_one.append(str(of))
        return read(reader, **of)

    SampleReader.read = noted  # type: ignore[assignment, method-assign]
    dataset = sl.ShardDataset(sys.argv[1], decode={"txt": bytes})
    loader: Any = sl.ShardLoader(dataset, batch_size=100, decode_threads=8)
    print(sum(len(batch["__key__"]) for batch in loader), len(one_by_one))


if __name__ == "__main__":
    main()
