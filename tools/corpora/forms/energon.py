"""Megatron-Energon's form: the same tar shards, behind the metadata that `prepare` makes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tools.corpora.shards import paths

if TYPE_CHECKING:
    from pathlib import Path

    from tools.corpora.corpus import Corpus

DATASET_YAML = """\
__module__: megatron.energon
__class__: CrudeWebdataset
"""


def make(_: Corpus, source: Path, folder: Path) -> None:
    """Link the shards and let Energon index them."""
    from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

    for shard in paths(source):
        os.link(shard, folder / shard.name)
    WebdatasetPreparator.prepare_dataset(
        folder,
        [shard.name for shard in paths(folder)],
        split_parts_ratio=[("train", 1.0)],
        workers=2,
    )
    (folder / ".nv-meta" / "dataset.yaml").write_text(DATASET_YAML)
