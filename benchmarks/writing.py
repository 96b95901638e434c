"""How fast are shards written, beside a bare loop and webdataset's writer?

    python benchmarks/writing.py [--corpus T|I|both] [--rounds 5] [--scale 0.1] [--json]

The corpora are those of `benchmarks/feeding`: T, texts of about 1.5 KB with a small JSON, and I,
images of 40 to 60 KB with a class (random bytes here, made before the clock runs; fields are given
as bytes, so that only writing is measured). Each writer writes all of it in this process, in turn,
to files in a temporary folder; what is told is CPU time, user and system together, as the median
of the rounds, and its ratio to the bare loop, which builds ustar headers from a template and does
nothing else: no digest, no index, no check, no fsync. `pip install mosaicml-streaming` adds MDS.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shardloader as sl

if TYPE_CHECKING:
    from collections.abc import Callable

Samples = list[dict[str, Any]]

_BLOCK = 512
_NUL = bytes(1)  # apart: in a literal, digits after it would be read as part of the escape
_TEMPLATE = bytearray(_BLOCK)
_TEMPLATE[100:124] = b"0000644" + _NUL + b"0000000" + _NUL + b"0000000" + _NUL
_TEMPLATE[136:147] = b"00000000000"
_TEMPLATE[148:156] = b"        "
_TEMPLATE[156:157] = b"0"
_TEMPLATE[257:262] = b"ustar"
_TEMPLATE[263:265] = b"00"
_BASE = sum(_TEMPLATE)
_SHARD_SAMPLES = {"T": 10_000, "I": 500}


def corpus(name: str, scale: float) -> Samples:
    rng = random.Random(0)
    if name == "T":
        texts = [rng.randbytes(rng.randint(1000, 2000)) for _ in range(500)]
        return [
            {
                "__key__": f"{number:08d}",
                "json": b'{"id":%d,"lang":"en"}' % number,
                "txt": texts[number % len(texts)],
            }
            for number in range(int(400_000 * scale))
        ]
    images = [rng.randbytes(rng.randint(40_000, 60_000)) for _ in range(100)]
    return [
        {"__key__": f"{number:08d}", "cls": b"%d" % (number % 1000), "jpg": images[number % 100]}
        for number in range(int(12_000 * scale))
    ]


def bare_loop(samples: Samples, folder: Path, shard_samples: int) -> None:
    for at in range(0, len(samples), shard_samples):
        with (folder / f"{at:08d}.tar").open("wb", buffering=1 << 20) as file:
            write = file.write
            for sample in samples[at : at + shard_samples]:
                key = sample["__key__"]
                for field, data in sample.items():
                    if field == "__key__":
                        continue
                    name = f"{key}.{field}".encode()
                    digits = b"%011o" % len(data)
                    header = _TEMPLATE.copy()
                    header[: len(name)] = name
                    header[124:135] = digits
                    header[148:156] = b"%06o\0 " % (_BASE + sum(name) + sum(digits))
                    write(header)
                    write(data)
                    write(bytes(-len(data) % _BLOCK))
            write(bytes(2 * _BLOCK))


def ours(samples: Samples, folder: Path, shard_samples: int) -> None:
    with sl.ShardWriter(folder, max_samples=shard_samples) as writer:
        for sample in samples:
            writer.write(sample)


def ours_zstd(samples: Samples, folder: Path, shard_samples: int) -> None:
    with sl.ShardWriter(folder, max_samples=shard_samples, compression="zstd") as writer:
        for sample in samples:
            writer.write(sample)


def webdataset_writer(samples: Samples, folder: Path, shard_samples: int) -> None:
    import webdataset

    pattern = str(folder / "%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=shard_samples, verbose=0) as writer:
        for sample in samples:
            writer.write(sample)


def _mds(compression: str | None) -> Callable[[Samples, Path, int], None]:
    def write(samples: Samples, folder: Path, shard_samples: int) -> None:
        del shard_samples
        from streaming import MDSWriter

        fields = [field for field in samples[0] if field != "__key__"]
        columns = {"key": "str", **dict.fromkeys(fields, "bytes")}
        options = {"compression": compression, "size_limit": 1 << 26}
        with MDSWriter(out=str(folder), columns=columns, **options) as writer:
            for sample in samples:
                writer.write({"key": sample["__key__"], **{f: sample[f] for f in fields}})

    return write


WRITERS: dict[str, Callable[[Samples, Path, int], None]] = {
    "bare loop": bare_loop,
    "ShardWriter": ours,
    "ShardWriter zstd": ours_zstd,
    "webdataset": webdataset_writer,
}


def measure(name: str, scale: float, rounds: int, folder: Path) -> dict[str, float]:
    samples = corpus(name, scale)
    times: dict[str, list[float]] = {writer: [] for writer in WRITERS}
    for _ in range(rounds):
        for writer, write in WRITERS.items():
            place = folder / "out"
            place.mkdir()
            start = time.process_time()
            write(samples, place, _SHARD_SAMPLES[name])
            times[writer].append(time.process_time() - start)
            shutil.rmtree(place)
    return {writer: len(samples) / statistics.median(taken) for writer, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--corpus", choices=("T", "I", "both"), default="both")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--folder", default=None, help="where to write (default: a temporary one)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        import streaming  # noqa: F401
    except ImportError:
        pass
    else:
        WRITERS["MDS"] = _mds(None)
        WRITERS["MDS zstd"] = _mds("zstd:3")
    names = ["T", "I"] if options.corpus == "both" else [options.corpus]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        told = {name: measure(name, options.scale, options.rounds, Path(folder)) for name in names}
    if options.json:
        print(json.dumps(told, indent=2))
        return
    for name, rates in told.items():
        for writer, rate in rates.items():
            ratio = rate / rates["bare loop"]
            print(
                f"{name}  {writer:<18}{rate:>12,.0f} samples a CPU second  {ratio:5.2f} of the loop"
            )


if __name__ == "__main__":
    main()
