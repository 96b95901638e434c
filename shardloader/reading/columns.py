"""What are the values of one field in many samples?

The same values as the decoders of `decode` give one by one, without a call, a view and a dictionary
a sample. Nothing here says which sample is bad: where a column raises, its samples are read again
one by one, and that says it.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import gt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardloader.reading import decode
from shardloader.reading.decode import OwnDecoder, RawArray

if TYPE_CHECKING:
    from shardloader.reading.decode import Decoder

Buffer = mmap.mmap | bytes


class Spans(NamedTuple):
    """One field of some samples: for each its buffer, its first byte and the byte after its last.

    buffers: slicing one copies the bytes; numbers: each sample's key or place in them.
    """

    buffers: Mapping[int, Buffer] | Sequence[Buffer]
    numbers: Sequence[int]
    starts: Sequence[int]
    stops: Sequence[int]


Column = Callable[[Spans], Any]


def column_of(decoder: Decoder) -> Column:
    """What reads a column of a decoder's fields: a list of values, or an array [samples, ...]."""
    if isinstance(decoder, OwnDecoder):
        function = decoder.function
        return lambda spans: list(map(function, _bytes(spans)))
    if isinstance(decoder, RawArray):
        return partial(_raw_arrays, decoder)
    if decoder in _COLUMNS:
        return _COLUMNS[decoder]
    return lambda spans: list(map(decoder, _views(spans)))


def is_quick(decoder: Decoder) -> bool:
    """Whether a decoder does little more than copying: what it takes is mostly Python's own."""
    if isinstance(decoder, OwnDecoder):  # which may have no hash
        return False
    return isinstance(decoder, RawArray) or decoder in _COLUMNS


def _bytes(spans: Spans) -> list[bytes]:
    buffers, *where = spans
    return [buffers[of][start:stop] for of, start, stop in zip(*where, strict=True)]


def _views(spans: Spans) -> list[memoryview]:
    numbered = spans.buffers
    views = {of: memoryview(numbered[of]) for of in set(spans.numbers)}
    return [views[of][start:stop] for of, start, stop in zip(*spans[1:], strict=True)]


def _texts(spans: Spans) -> list[str]:
    buffers, *where = spans
    return [buffers[of][start:stop].decode() for of, start, stop in zip(*where, strict=True)]


def _json(spans: Spans) -> list[Any]:
    fast, values = decode.fast_json, _bytes(spans)
    try:
        return list(map(fast, values))
    except decode.STRICTER:
        return list(map(decode.decode_json, values))


def _integers(spans: Spans) -> list[int]:
    values = _bytes(spans)
    if all(map(bytes.isdigit, values)):
        return list(map(int, values))
    return [decode.decode_int(memoryview(value)) for value in values]


def _arrays(spans: Spans) -> Any:
    """Rows of one array [samples, ...] if all have one header; else a list of arrays."""
    buffers, numbers, starts, stops = spans
    start = decode.npy_start(memoryview(buffers[numbers[0]])[starts[0] : stops[0]])
    if start.order != "C" or start.num_bytes <= 0:
        return list(map(decode.decode_npy, _views(spans)))
    firsts = [at + len(start.header) for at in starts]
    ends = [at + start.num_bytes for at in firsts]
    headers = _bytes(Spans(buffers, numbers, starts, firsts))
    # What follows the numbers is left alone, as numpy does.
    if headers.count(start.header) < len(headers) or any(map(gt, ends, stops)):
        return list(map(decode.decode_npy, _views(spans)))
    return _stacked(_views(Spans(buffers, numbers, firsts, ends)), start.dtype, start.shape)


def _raw_arrays(decoder: RawArray, spans: Spans) -> Any:
    views = _views(spans)
    if {*map(len, views)} != {decoder.num_bytes}:
        return list(map(decoder, views))
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
