"""What does one sample cost that is read from the middle of a compressed shard?

By the formats alone: the index says where the sample's bytes lie in the tar, the seek table which
frame they are in, and that frame is unpacked.
"""

from __future__ import annotations

import os
import random
import struct
import time
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.writing.writers import Task, Writer

NUM_SAMPLES: Final = 1000
ENTRY_BYTES: Final = 8
FOOT_BYTES: Final = 9


class Shard(NamedTuple):
    """A shard that stands ready: its file, its index, and where frames begin in file and tar."""

    handle: int
    index: Any
    packed_starts: list[int]
    plain_starts: list[int]


def accessed(writer: Writer, task: Task) -> dict[str, Any]:
    """Read samples at random; tells how many frames were unpacked for one, and how long it took."""
    from zstandard import ZstdDecompressor

    writer.write(task)
    shards = [opened(path) for path in sorted(task.folder.glob("*.tar.zst"))]
    size, unpack = task.corpus.shard_samples, ZstdDecompressor().decompress
    drawn = random.Random(0).choices(range(len(task.samples)), k=NUM_SAMPLES)
    unpacked, most, clock = 0, 0, time.perf_counter()
    for number in drawn:
        shard, frames, plain_bytes = shards[number // size], 0, 0
        plain, plain_start, plain_stop = b"", 0, 0
        first, last = shard.index.sample_starts[number % size :][:2].tolist()
        for member in range(first, last):
            start = int(shard.index.member_offsets[member])
            stop = start + int(shard.index.member_sizes[member])
            if not plain_start <= start < plain_stop:
                frame = frame_of(shard, start)
                plain = unpack(packed(shard, frame))
                plain_start, plain_stop = shard.plain_starts[frame : frame + 2]
                frames, plain_bytes = frames + 1, plain_bytes + len(plain)
            field = shard.index.fields[shard.index.member_fields[member]]
            if plain[start - plain_start : stop - plain_start] != task.samples[number][field]:
                raise AssertionError(f"sample {number} is not what was written")
        unpacked, most = unpacked + plain_bytes, max(most, frames)
    seconds = time.perf_counter() - clock
    for shard in shards:
        os.close(shard.handle)
    return {
        "samples": NUM_SAMPLES,
        "seconds": seconds,
        "most_frames": most,
        "unpacked_bytes": unpacked / NUM_SAMPLES,
    }


def opened(path: Path) -> Shard:
    """Open a shard; reads its index and its seek table."""
    from shardloader.format.index import SampleIndex

    handle = os.open(path, os.O_RDONLY)
    size = os.fstat(handle).st_size
    count, _, _ = struct.unpack("<IBI", os.pread(handle, FOOT_BYTES, size - FOOT_BYTES))
    table = os.pread(handle, ENTRY_BYTES * count, size - FOOT_BYTES - ENTRY_BYTES * count)
    entries = list(struct.iter_unpack("<II", table))
    starts = [list(accumulate(sizes, initial=0)) for sizes in zip(*entries, strict=True)]
    index_path = path.with_name(path.name + ".index")
    index = SampleIndex.from_buffer(index_path.read_bytes(), name=index_path.name)
    return Shard(handle, index, *starts)


def frame_of(shard: Shard, offset: int) -> int:
    """The frame that a byte of the tar lies in."""
    return bisect_right(shard.plain_starts, offset) - 1


def packed(shard: Shard, frame: int) -> bytes:
    """A frame's bytes in the file."""
    start, stop = shard.packed_starts[frame : frame + 2]
    return os.pread(shard.handle, stop - start, start)
