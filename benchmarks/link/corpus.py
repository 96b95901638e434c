"""Which samples lie on the server, and in which form does each loader want them?

    python -m benchmarks.link.corpus FORM FOLDER SAMPLES SAMPLES_A_SHARD SAMPLE_BYTES

Every sample has `bin`, random bytes that no layer can pack, and `cls`, a number as text; both
follow from the sample's number, so each form is made without the others. FORM is `tar`, `mds` or
`litdata`; the last two need the peers' libraries. All have as many samples a shard.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FIELDS = ("bin", "cls")


class Corpus(NamedTuple):
    """How many samples, and how large."""

    num_samples: int
    shard_samples: int
    sample_bytes: int

    @property
    def payload_bytes(self) -> int:
        """What a loader gives in one pass, but for the few bytes of `cls`."""
        return self.num_samples * self.sample_bytes

    @property
    def total(self) -> int:
        """The digest of all samples, in whatever order."""
        return sum(digest_of(sample) for sample in samples(self)) % 2**64


def samples(corpus: Corpus) -> Iterator[dict[str, bytes]]:
    """Yield all samples, in order."""
    for number in range(corpus.num_samples):
        words = np.random.Philox(key=number).random_raw(-(-corpus.sample_bytes // 8))
        yield {
            "bin": words.tobytes()[: corpus.sample_bytes],
            "cls": str(number % 1000).encode(),
        }


def digest_of(sample: Mapping[str, Any]) -> int:
    """A number for a sample's fields, as bytes of whatever kind."""
    hasher = xxhash.xxh3_64()
    for field in FIELDS:
        hasher.update(sample[field])
    return hasher.intdigest()


def digests_of(several: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """What is left of a batch: the digest of each sample.

    It is made where the samples are, in a worker, so that no loader's hand-over is measured.
    """
    return {"digests": [digest_of(sample) for sample in several]}


def make(form: str, folder: Path, corpus: Corpus) -> None:
    """Write one form."""
    {"tar": _tar, "mds": _mds, "litdata": _litdata}[form](folder, corpus)


def _tar(folder: Path, corpus: Corpus) -> None:
    import shardloader as sl

    with sl.ShardWriter(folder, max_samples=corpus.shard_samples) as writer:
        for number, sample in enumerate(samples(corpus)):
            writer.write({"__key__": f"{number:08d}", **sample})


def _mds(folder: Path, corpus: Corpus) -> None:
    from tools.corpora.forms.mds import let_torchvision_import

    let_torchvision_import()
    from streaming import MDSWriter

    limit = corpus.shard_samples * (corpus.sample_bytes + 32)
    columns = dict.fromkeys(FIELDS, "bytes")
    with MDSWriter(out=str(folder), columns=columns, size_limit=limit) as writer:
        for sample in samples(corpus):
            writer.write(sample)


def _litdata(folder: Path, corpus: Corpus) -> None:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_size=corpus.shard_samples)
    for number, sample in enumerate(samples(corpus)):
        writer.add_item(number, sample)
    writer.done()
    writer.merge()


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]), Corpus(*map(int, sys.argv[3:6])))
