"""How are the arrays of a safetensors file found without copying them?

A reader of the safetensors header alone: it gives views over a buffer (a memory map), and refuses
whatever is not exactly the expected tensors. The library copies, or opens the file itself.

Format: https://github.com/huggingface/safetensors#format (8 bytes of header length, a JSON header,
the data).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardloader.errors import IndexFileError
from shardloader.format.strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the library's own limit
_DTYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "U32": np.dtype("<u4"),
    "U8": np.dtype("u1"),
}


def read_tensors(
    view: memoryview, expected: Mapping[str, str], *, name: str
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Give the expected one-dimensional tensors as read-only views, and the metadata.

    `expected` maps a tensor's name to its safetensors dtype. Raises IndexFileError, which calls
    the file `name`, for a file with other tensors, or bytes that belong to none.
    """
    header, data = _header(view, name)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise _refusal(name, "its metadata should be a JSON object")
    if set(header) != set(expected):
        raise _refusal(
            name, f"it should hold the tensors {sorted(expected)}, not {sorted(header)[:20]}"
        )
    tensors = {
        tensor: _tensor(data, header[tensor], dtype, f"{name}: {tensor}")
        for tensor, dtype in expected.items()
    }
    places = sorted(header[tensor]["data_offsets"] for tensor in expected)
    if [0, *(stop for _, stop in places)] != [*(start for start, _ in places), len(data)]:
        raise _refusal(
            name, f"its {len(data)} bytes of data should be covered by its tensors, each byte once"
        )
    return tensors, metadata


def _header(view: memoryview, name: str) -> tuple[dict[str, Any], memoryview]:
    if len(view) < _LENGTH_BYTES:
        raise _refusal(name, f"it has {len(view)} bytes, too few for a header")
    length = int.from_bytes(view[:_LENGTH_BYTES], "little")
    stop = _LENGTH_BYTES + length
    if length > _MAX_HEADER_BYTES or stop > len(view):
        raise _refusal(name, f"its header should have {length} bytes, and the file {len(view)}")
    try:
        header = strict_json(bytes(view[_LENGTH_BYTES:stop]))
    except (ValueError, RecursionError) as error:
        raise _refusal(name, f"its header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise _refusal(name, "its header should be a JSON object")
    return header, view[stop:]


def _tensor(data: memoryview, entry: Any, dtype: str, name: str) -> NDArray[Any]:
    if not isinstance(entry, dict) or entry.get("dtype") != dtype:
        raise _refusal(name, f"it should be a tensor of {dtype}")
    start, stop = _pair(entry.get("data_offsets"), name)
    if not 0 <= start <= stop <= len(data):
        raise _refusal(name, f"bytes {start} to {stop} do not lie in the {len(data)} of the data")
    array = np.frombuffer(data[start:stop], dtype=np.uint8)
    itemsize = _DTYPES[dtype].itemsize
    if entry.get("shape") != [array.size / itemsize]:
        raise _refusal(name, f"{array.size} bytes are not of the shape that it declares")
    values = array.view(_DTYPES[dtype]) if array.size else np.empty(0, _DTYPES[dtype])
    values.flags.writeable = False
    return values


def _pair(offsets: Any, name: str) -> tuple[int, int]:
    if not isinstance(offsets, list) or [type(offset) for offset in offsets] != [int, int]:
        raise _refusal(name, "its offsets should be two whole numbers")
    return offsets[0], offsets[1]


def _refusal(name: str, problem: str) -> IndexFileError:
    return IndexFileError(
        f"{name}: not a sound sample index: {problem}; delete it, or make it anew with "
        "`shardloader index`"
    )
