"""What do the bytes of a `.pt` field stand for, if the caller asks for that by name?

`decode={"pt": "torch"}` reads what `torch.save` wrote: tensors and plain containers. By itself a
`.pt` field stays bytes. `torch.load(weights_only=True)` makes no object that runs code, but some
that take as much memory as a few bytes say (`bytearray(n)`); so what a file names is looked at
first, and its records lie in it uncompressed.
"""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from typing import TYPE_CHECKING, Any

from shardloader.reading.decode import NAMED_DECODERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardloader.reading.decode import Decoder

# What may be named, as pickle's GLOBAL writes it: a module, a space, a name.
_READ = re.compile(
    r"collections OrderedDict"
    r"|(?:__builtin__|builtins) (?:set|complex)|_codecs encode"  # the last: how bytes are written
    r"|torch (?:\w+Storage|Size|device|bool|(?:u?int|b?float|complex)\w+)"
    r"|torch\.storage \w+Storage"
    r"|torch\._utils _rebuild_(?:tensor_v[23]|parameter)"
)
_OTHER_WAYS_TO_NAME = frozenset(("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"))


def decode_torch(data: memoryview) -> Any:
    """Return what torch.save wrote, on the CPU, with `weights_only=True`.

    Raises ValueError for a file in the format before torch 1.6, for one that is compressed, and for
    one that holds anything but tensors, numbers, texts and plain containers of them.
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
        for entry in entries:
            if entry.filename.endswith("data.pkl"):
                _check_names(archive.read(entry))
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def _check_names(pickled: bytes) -> None:
    """Refuse a pickle, without unpickling it, that names what is no tensor or container."""
    for operation, argument, _ in pickletools.genops(pickled):
        named = operation.name == "GLOBAL"
        if operation.name in _OTHER_WAYS_TO_NAME or (named and not _READ.fullmatch(str(argument))):
            raise ValueError(
                f"it holds a {str(argument)[:80]!r}, and tensors and plain containers are read: "
                "give a decoder of your own if you trust the data"
            )


TORCH_DECODERS: Mapping[str, Decoder] = {**NAMED_DECODERS, "torch": decode_torch}
