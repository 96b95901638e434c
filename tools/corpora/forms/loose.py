"""The form of a map-style dataset: one file a field, a thousand samples a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tools.corpora.shards import stored

if TYPE_CHECKING:
    from pathlib import Path

    from tools.corpora.corpus import Corpus

FOLDER_SAMPLES: Final = 1000


def make(corpus: Corpus, source: Path, folder: Path) -> None:
    """Write every field to a file of its own."""
    for number, sample in enumerate(stored(corpus, source)):
        stem = folder / stem_of(corpus, number)
        if number % FOLDER_SAMPLES == 0:
            stem.parent.mkdir()
        for field, data in sample.items():
            stem.with_suffix(f".{field}").write_bytes(data)


def stem_of(corpus: Corpus, number: int) -> str:
    """The path of a sample's files within the folder, without their extension."""
    return f"{number // FOLDER_SAMPLES:04d}/{corpus.key(number)}"
