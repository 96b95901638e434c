"""MosaicML Streaming's form: every field is stored as bytes, a shard as large as the tar's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tools.corpora.shards import paths, stored

if TYPE_CHECKING:
    from pathlib import Path

    from tools.corpora.corpus import Corpus

declared: Final[list[Any]] = []  # a library that is collected takes its operators with it


def make(corpus: Corpus, source: Path, folder: Path) -> None:
    """Write MDS shards of the samples."""
    let_torchvision_import()
    from streaming import MDSWriter

    columns = dict.fromkeys(corpus.fields, "bytes")
    size = max(shard.stat().st_size for shard in paths(source))
    with MDSWriter(out=str(folder), columns=columns, size_limit=size) as writer:
        for sample in stored(corpus, source):
            writer.write(sample)


def let_torchvision_import() -> None:
    """Declare the operators that torchvision's import asks for; call it before MDS is imported.

    MDS imports torchvision for datasets of its own that are not used here, and a torchvision built
    for CUDA can't load its operators beside a torch without, but imports once they are known.
    """
    import torch

    declared.append(torch.library.Library("torchvision", "FRAGMENT"))  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            declared[-1].define(f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor")
