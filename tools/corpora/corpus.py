"""What are the corpora T, I and K, and where does each form of one lie?

Knows sizes, names and fields; makes nothing. Read by the makers, the harness and every loader, in
either virtual environment, so it imports only the standard library.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

# A smaller corpus has a divisor of the samples, but never fewer than this.
LEAST_SAMPLES: Final = 96
VERSION: Final = 1  # of what the generators make; a change makes every corpus anew
ROW_TOKENS: Final = 2048
NPY_HEADER_BYTES: Final = 128  # of a .npy file of one row, which numpy pads to 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """One corpus.

    fields: in the order in which a sample's members lie in its shard; batch, raw_batch: samples a
    batch when decoded and when raw; window: samples of four shards.
    """

    name: str
    about: str
    num_samples: int
    num_shards: int
    fields: tuple[str, ...]
    batch: int
    raw_batch: int

    @property
    def shard_samples(self) -> int:
        """Samples of every shard but, perhaps, the last."""
        return -(-self.num_samples // self.num_shards)

    @property
    def window(self) -> int:
        """Samples of four shards."""
        return 4 * self.shard_samples

    @property
    def stamp(self) -> str:
        """What a made corpus was made by, as JSON: another stamp means making it anew."""
        made_by = [VERSION, self.name, self.num_samples, self.num_shards, self.fields]
        return json.dumps(made_by)

    def key(self, number: int) -> str:
        """The key of sample `number`."""
        return f"{number:07d}"

    def folder(self, work: Path, form: str) -> Path:
        """Where a form of the corpus lies: `tar`, or the name of a module in `forms`."""
        return work / f"{self.name}-{self.num_samples}" / form


FULL: Final = (
    Corpus(
        name="T",
        about="400,000 texts of about 1.5 KB with a small JSON",
        num_samples=400_000,
        num_shards=40,
        fields=("json", "txt"),
        batch=256,
        raw_batch=256,
    ),
    Corpus(
        name="I",
        about="12,000 JPEGs of 40 to 60 KB with a class",
        num_samples=12_000,
        num_shards=24,
        fields=("cls", "jpg"),
        batch=64,
        raw_batch=64,
    ),
    Corpus(
        name="K",
        about="60,000 rows of 2,048 uint16 tokens, each a .npy",
        num_samples=60_000,
        num_shards=20,
        fields=("npy",),
        batch=8,
        raw_batch=256,
    ),
)


def corpus_of(name: str, divide: int = 1) -> Corpus:
    """Corpus `name` with `divide` times fewer samples, in as many shards."""
    full = next(corpus for corpus in FULL if corpus.name == name)
    return Corpus(
        name=name,
        about=full.about,
        num_samples=max(LEAST_SAMPLES, full.num_samples // divide),
        num_shards=full.num_shards,
        fields=full.fields,
        batch=full.batch,
        raw_batch=full.raw_batch,
    )
