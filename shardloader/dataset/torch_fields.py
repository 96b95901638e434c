"""What do the bytes of a `.pt` field stand for, if the caller asks for that by name?

`decode={"pt": "torch"}` reads what `torch.save` wrote: tensors and plain containers, never an
object whose making runs code (`weights_only`). By itself a `.pt` field stays bytes. What
`torch.load` would unpack or make room for on the file's word is refused first.
"""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

from shardloader.reading.decode import NAMED_DECODERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardloader.reading.decode import Decoder


def decode_torch(data: memoryview) -> Any:
    """Return what torch.save wrote, on the CPU, with `weights_only=True`.

    Raises ValueError for a file in the format before torch 1.6, or one that is compressed.
    """
    import torch

    file = io.BytesIO(data)
    if not zipfile.is_zipfile(file):
        raise ValueError("it is no zip archive, as torch.save has written since torch 1.6")
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    is_plain = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
    if not is_plain or sum(entry.file_size for entry in entries) > len(data):
        raise ValueError("its records should lie in it uncompressed, as torch.save writes them")
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


TORCH_DECODERS: Mapping[str, Decoder] = {**NAMED_DECODERS, "torch": decode_torch}
