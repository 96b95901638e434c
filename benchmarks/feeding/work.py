"""What is measured: the words that the harness and the loaders share.

A loader is a module in `loaders` with a tuple `LOADERS`. What it imports at its top exists in both
virtual environments; its own library is imported when a work is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from tools.corpora.corpus import Corpus

# raw: every field as bytes, one process. batches: decoded, two workers, images by Pillow. own: as
# batches, with images by the loader's own best decoder.
RAW, BATCHES, OWN = "raw", "batches", "own"
NUM_WORKERS: Final = 2
SEED: Final = 0
BUFFER: Final = 1000  # the shuffle buffer of loaders that have one


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one process is to read: a corpus, in a mode, from the folder of the loader's form.

    device: where a loader that copies by itself gives its batches; all others give them on the
    host.
    """

    corpus: Corpus
    mode: str
    folder: Path
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A loader that stands ready.

    items: what the loader gives, of which every one but perhaps the last holds item_samples.
    columns: an item's fields, each a sequence with one entry a sample; called by checks alone, out
    of the timed part.
    """

    items: Iterable[Any]
    item_samples: int
    columns: Callable[[Any], Mapping[str, Sequence[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """One row of the tables.

    form: of the corpus, as in `tools.corpora`; opens: by mode, what opens a work; packages: whose
    versions are written down; is_peer: whether it lives in the peers' virtual environment;
    gives_samples: whether what it gives can be checked; corpora: which it can read.
    """

    name: str
    form: str
    opens: Mapping[str, Callable[[Work], Opened]]
    packages: tuple[str, ...] = ()
    is_peer: bool = False
    gives_samples: bool = True
    corpora: tuple[str, ...] = ("T", "I", "K")

    def does(self, corpus: str, mode: str) -> bool:
        """Whether it can be measured there."""
        return corpus in self.corpora and mode in self.opens


def one_sample(sample: Mapping[str, Any]) -> Mapping[str, Sequence[Any]]:
    """The columns of an item that is one sample."""
    return {name: (value,) for name, value in sample.items()}


def many_samples(batch: Mapping[str, Sequence[Any]]) -> Mapping[str, Sequence[Any]]:
    """The columns of an item that is a batch already."""
    return batch
