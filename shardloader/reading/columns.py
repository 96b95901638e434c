"""What are the values of one field in many samples?

The same values as the decoders of `decode` give one by one, without a call, a view and a dictionary
a sample. Nothing here says which sample is bad: where a column raises, its samples are read again
one by one, and that says it.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardloader.reading import decode
from shardloader.reading.decode import OwnDecoder, RawArray

if TYPE_CHECKING:
    from shardloader.reading.decode import Decoder

Buffer = mmap.mmap | bytes


class Spans(NamedTuple):
    """One field of some samples: for each its buffer, its first byte and the byte after its last.

    Slicing a buffer copies the bytes.
    """

    buffers: Sequence[Buffer]
    starts: Sequence[int]
    stops: Sequence[int]


Column = Callable[[Spans], Any]


def column_of(decoder: Decoder) -> Column:
    """What reads a column of a decoder's fields: a list of values, or an array [samples, ...]."""
    if isinstance(decoder, OwnDecoder):
        function = decoder.function
        return lambda spans: [function(b[i:j]) for b, i, j in zip(*spans, strict=True)]
    if isinstance(decoder, RawArray):
        return partial(_raw_arrays, decoder)
    if decoder in _COLUMNS:
        return _COLUMNS[decoder]
    return lambda spans: [decoder(memoryview(b)[i:j]) for b, i, j in zip(*spans, strict=True)]


def is_quick(decoder: Decoder) -> bool:
    """Whether a decoder does little more than copying: what it takes is mostly Python's own."""
    if isinstance(decoder, OwnDecoder):  # which may have no hash
        return False
    return isinstance(decoder, RawArray) or decoder in _COLUMNS


def _bytes(spans: Spans) -> list[bytes]:
    return [buffer[start:stop] for buffer, start, stop in zip(*spans, strict=True)]


def _texts(spans: Spans) -> list[str]:
    return [buffer[start:stop].decode() for buffer, start, stop in zip(*spans, strict=True)]


def _json(spans: Spans) -> list[Any]:
    fast, values = decode.fast_json, _bytes(spans)
    try:
        return [fast(value) for value in values]
    except decode.STRICTER:
        return [decode.decode_json(value) for value in values]


def _integers(spans: Spans) -> list[int]:
    values = [buffer[start:stop] for buffer, start, stop in zip(*spans, strict=True)]
    if all(map(bytes.isdigit, values)):
        return list(map(int, values))
    return [decode.decode_int(memoryview(value)) for value in values]


def _arrays(spans: Spans) -> Any:
    """Rows of one array [samples, ...] if all have one header; else a list of arrays."""
    views = [memoryview(b)[i:j] for b, i, j in zip(*spans, strict=True)]
    start = decode.npy_start(views[0])
    if start.order != "C" or start.num_bytes <= 0:
        return [decode.decode_npy(view) for view in views]
    skip, row_bytes = len(start.header), start.num_bytes
    if any(view[:skip] != start.header or len(view) < skip + row_bytes for view in views):
        return [decode.decode_npy(view) for view in views]
    return _stacked([view[skip : skip + row_bytes] for view in views], start.dtype, start.shape)


def _raw_arrays(decoder: RawArray, spans: Spans) -> Any:
    views = [memoryview(b)[i:j] for b, i, j in zip(*spans, strict=True)]
    if {*map(len, views)} != {decoder.num_bytes}:
        return [decoder(view) for view in views]
    return _stacked(views, decoder.dtype, decoder.shape)


def _stacked(rows: list[memoryview], dtype: Any, shape: tuple[int, ...]) -> Any:
    """An array [rows, ...] of rows' bytes: one copy."""
    joined = bytearray().join(rows)
    return np.frombuffer(joined, dtype=dtype).reshape(len(rows), *shape)


_COLUMNS: Mapping[Decoder, Column] = {
    decode.decode_bytes: _bytes,
    decode.decode_text: _texts,
    decode.decode_json: _json,
    decode.decode_int: _integers,
    decode.decode_npy: _arrays,
}
