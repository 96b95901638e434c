"""Decoders: what value a field's bytes stand for.

The last extension of a field decides, whatever its case: `seg.png` is a `png`. Knows bytes and
the libraries that read them; not where the bytes came from, so whoever does adds the place with
`located`. Nothing here runs code from the data: `pickle`, `pyd`, `pt` and `pth` come as bytes
unless a decoder is asked for: the caller's own, or one that a layer above names (`torch`).

Nothing is made as large as the data merely claims. A size is held against the bytes that are there;
an image may have `MAX_PIXELS`, or what `Jpeg(max_pixels=)` and `Png(max_pixels=)` say for a field.

What the names mean, in `DEFAULT_DECODERS` and in `resolve`:

    text    str, strict UTF-8
    json    what json.loads makes of UTF-8
    int     a decimal integer in ASCII; blanks around it are ignored
    npy     numpy array with memory of its own; Python objects are refused
    jpeg    uint8 (height, width, 3), RGB; grey and CMYK are converted
    png     (height, width, channels) as stored, nothing lost that Pillow reads:
            L 1, LA 2, RGB 3, RGBA 4 channels of uint8; I;16 1 channel of uint16; 1 is L with 0
            and 255; P (a palette) is looked up: RGB, or RGBA if the palette has transparency
    rgb     a PNG as uint8 (height, width, 3) whatever its mode: alpha is dropped, grey repeated,
            16 bits shortened to their upper 8
    mask    a PNG's stored numbers as (height, width): palette *indices*, grey levels, 0 and 1;
            colour images are refused. `seg.png` and `mask.png` are read so by default
    bytes   as they are; every extension not in the table

Orientation tags and colour profiles of images are not applied.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from shardloader.errors import DecodeError, UsageError
from shardloader.reading.images import (
    Array,
    Jpeg,
    Png,
    decode_jpeg,
    decode_mask,
    decode_png,
    decode_rgb,
)
from shardloader.reading.sizes import checked_sides

Decoder = Callable[[memoryview], Any]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NPY_START = b"\x93NUMPY"


def decode_bytes(data: memoryview) -> bytes:
    """Return the bytes as they are, copied out of the shard."""
    return bytes(data)


def decode_text(data: memoryview) -> str:
    """Return strict UTF-8 as str."""
    return str(data, "utf-8")


fast_json: Final = msgspec.json.decode
# What it raises where json.loads may not (NaN, lone surrogates), or says in the usual words.
STRICTER: Final = (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError)


def decode_json(data: bytes | memoryview) -> Any:
    """Return the JSON value."""
    try:
        return fast_json(data)
    except STRICTER:
        return json.loads(str(data, "utf-8"))


def decode_int(data: memoryview) -> int:
    """Return a decimal integer written in ASCII."""
    text = str(data, "utf-8").strip()
    if not _INTEGER.fullmatch(text):
        raise ValueError(
            f"{text[:40]!r} is no integer; class names are text: decode={{FIELD: 'text'}}"
        )
    return int(text)


def decode_npy(data: memoryview) -> Array:
    """Return the array of a .npy file, writable, with memory of its own."""
    start = npy_start(data)
    data = data[len(start.header) :]
    if start.num_bytes < 0 or start.num_bytes > len(data):
        raise ValueError(f"its header promises {start.num_bytes} bytes and {len(data)} are there")
    if start.num_bytes == 0:
        return np.empty(start.shape, start.dtype, order=start.order)
    array: Array = np.ndarray(start.shape, start.dtype, buffer=data, order=start.order)
    return array.copy(order="K")


class NpyStart(NamedTuple):
    """What a .npy file says before its numbers; num_bytes: what the numbers take."""

    header: bytes
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    num_bytes: int


def npy_start(data: memoryview) -> NpyStart:
    """Read the header of a .npy file.

    Raises ValueError for what is no .npy file, or holds Python objects.
    """
    start = bytes(data[:12])
    if not start.startswith(_NPY_START):
        raise ValueError("it does not begin as a .npy file does")
    if len(start) < 12 or start[6] not in _NPY_READERS:
        raise ValueError(f"a .npy file has one of the versions 1 to 3: it begins {start!r}")
    length_bytes = 2 if start[6] == 1 else 4
    stop = 8 + length_bytes + int.from_bytes(start[8 : 8 + length_bytes], "little")
    return _npy_start(bytes(data[:stop]))


@lru_cache(maxsize=256)  # the arrays of one dataset mostly share a header, slow to parse
def _npy_start(header: bytes) -> NpyStart:
    try:
        shape, fortran_order, dtype = _NPY_READERS[header[6]](io.BytesIO(header[8:]))
    except MemoryError:  # Python's parser, of a few thousand nested signs
        raise ValueError("its header is nested too deep to be parsed") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never unpickled")
    if dtype.shape:
        raise ValueError(f"the shape stands apart from the kind of number, and that is {dtype}")
    if dtype.itemsize == 0 and math.prod(shape):
        raise ValueError(f"numbers have a size, and it claims {shape} of {dtype}, which have none")
    num_bytes = math.prod(shape) * dtype.itemsize
    return NpyStart(header, tuple(shape), dtype, "F" if fortran_order else "C", num_bytes)


def _read_utf8_header(file: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of version 3, for fields whose names are not Latin-1.

    numpy reads it only with the numbers, which it then makes room for as the header says.
    """
    text = file.read()[4:]
    if len(text) > _MAX_NPY_HEADER_BYTES:
        raise ValueError(f"its header has {len(text)} bytes, more than {_MAX_NPY_HEADER_BYTES}")
    said = ast.literal_eval(text.decode("utf-8").strip())
    if not isinstance(said, dict) or set(said) != {"descr", "fortran_order", "shape"}:
        raise ValueError("its header should say descr, fortran_order and shape, and nothing else")
    shape, dtype = said["shape"], np.lib.format.descr_to_dtype(said["descr"])
    if not isinstance(shape, tuple) or any(type(side) is not int for side in shape):
        raise ValueError(f"its shape should be a tuple of whole numbers, not {shape!r}")
    return shape, bool(said["fortran_order"]), dtype


_MAX_NPY_HEADER_BYTES = 10_000  # numpy's own limit
_NPY_READERS: Mapping[int, Callable[[io.BytesIO], tuple[Any, Any, np.dtype[Any]]]] = {
    1: np.lib.format.read_array_header_1_0,
    2: np.lib.format.read_array_header_2_0,
    3: _read_utf8_header,
}


@dataclass(frozen=True, slots=True)
class RawArray:
    """A decoder of bare numbers: `decode={"bin": sl.RawArray("uint16", (2048,))}`.

    dtype, shape: of every field, in C order and, unless dtype says otherwise, little-endian.
    Returns an array of them; a batch of such fields is filled with one copy a row. Raises
    UsageError for a dtype of objects, or a shape without numbers.
    """

    dtype: Any
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise UsageError(f"RawArray(dtype=) is a numpy dtype: {error}") from None
        if isinstance(self.dtype, str) and self.dtype[:1] not in "<>=|":
            dtype = dtype.newbyteorder("<")
        shape = checked_sides("RawArray(shape=)", self.shape)
        if dtype.hasobject or dtype.itemsize == 0:
            raise UsageError(f"RawArray(dtype=) has numbers of a fixed size, and was {dtype}")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)

    @property
    def num_bytes(self) -> int:
        """What every field has."""
        return math.prod(self.shape) * int(self.dtype.itemsize)

    def __call__(self, data: memoryview) -> Array:
        """The array of one field, writable, with memory of its own."""
        if len(data) != self.num_bytes:
            raise ValueError(
                f"{self.dtype} of the shape {self.shape} takes {self.num_bytes} bytes, and "
                f"{len(data)} are there"
            )
        return np.frombuffer(data, dtype=self.dtype).reshape(self.shape).copy()


NAMED_DECODERS: Mapping[str, Decoder] = {
    "bytes": decode_bytes,
    "text": decode_text,
    "json": decode_json,
    "int": decode_int,
    "npy": decode_npy,
    "jpeg": decode_jpeg,
    "png": decode_png,
    "rgb": decode_rgb,
    "mask": decode_mask,
}

DEFAULT_DECODERS: Mapping[str, Decoder] = {
    **dict.fromkeys(("txt", "text", "transcript"), decode_text),
    **dict.fromkeys(("json", "jsn"), decode_json),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), decode_int),
    "npy": decode_npy,
    **dict.fromkeys(("jpg", "jpeg"), decode_jpeg),
    "png": decode_png,
    **dict.fromkeys(("seg.png", "mask.png"), decode_mask),
    **dict.fromkeys(("bin", "bytes"), decode_bytes),
    **dict.fromkeys(("pickle", "pkl", "pyd", "pt", "pth"), decode_bytes),
}


@dataclass(frozen=True, slots=True)
class OwnDecoder:
    """A caller's decoder: it gets bytes, which every library takes."""

    function: Callable[[bytes], Any]

    def __call__(self, data: memoryview) -> Any:
        """What the caller's function makes of the bytes."""
        return self.function(bytes(data))


@dataclass(frozen=True, slots=True)
class DecodeTable:
    """Which decoder reads which field: a whole field before its last extension.

    `decoders` maps lower-case fields and extensions; what it does not name comes as bytes. A
    table pickles if its decoders do.
    """

    decoders: Mapping[str, Decoder]

    def decoder(self, field: str) -> Decoder:
        """Return the decoder of a field such as "seg.png"."""
        field = field.lower()
        found = self.decoders.get(field)
        return found or self.decoders.get(field.rpartition(".")[2], decode_bytes)

    def decode(self, field: str, data: bytes | memoryview) -> Any:
        """Return the field's value; raises DecodeError that names field and cause.

        Wrong use (an extra that is not installed) and want of memory are raised as what they are,
        not as bad data.
        """
        try:
            return self.decoder(field)(memoryview(data))
        except (UsageError, MemoryError):
            raise
        except Exception as error:
            own = isinstance(self.decoder(field), OwnDecoder)
            told = "its decode= raised" if own else "is not what its name says:"
            raise DecodeError(
                f"field {field!r} ({len(data)} bytes) {told} {_sentence(error)}"
            ) from error


def located(error: DecodeError, *, shard: str, key: str, offset: int) -> DecodeError:
    """Return the error with the place its bytes came from; `offset` is theirs in the shard."""
    return DecodeError(f"shard {shard!r}, sample {key!r}, byte {offset}: {error}")


def resolve(
    decode: str | Mapping[str, Callable[[Any], Any] | str | None] | None = "default",
    *,
    named: Mapping[str, Decoder] = NAMED_DECODERS,
) -> DecodeTable:
    """Return the table that the option `decode` stands for.

    "default" is `DEFAULT_DECODERS`; None is bytes for every field; a mapping of fields or
    extensions to callables that take bytes, names of `named` or None (bytes) is laid over the
    default.
    Raises UsageError for anything else.
    """
    if decode is None:
        return DecodeTable({})
    if decode == "default":
        return DecodeTable(DEFAULT_DECODERS)
    if not isinstance(decode, Mapping):
        raise UsageError(
            f"decode is 'default', None (bytes), or a mapping of fields to decoders, not {decode!r}"
        )
    own = {_field_name(field): _decoder(field, given, named) for field, given in decode.items()}
    # the caller's "png" also speaks for "seg.png", which the default names by itself
    kept = {
        field: decoder
        for field, decoder in DEFAULT_DECODERS.items()
        if field.rpartition(".")[2] not in own
    }
    return DecodeTable(kept | own)


def _field_name(field: object) -> str:
    if not isinstance(field, str) or not field or field.startswith("."):
        raise UsageError(
            f"decode maps fields or extensions without a leading dot, such as 'jpg' or 'seg.png', "
            f"not {field!r}"
        )
    return field.lower()


def _decoder(field: str, given: object, named: Mapping[str, Decoder]) -> Decoder:
    if given is None:
        return decode_bytes
    if isinstance(given, str) and given in named:
        return named[given]
    if isinstance(given, Jpeg | Png | RawArray):
        return given
    if callable(given):
        return OwnDecoder(given)
    raise UsageError(
        f"the decoder of field {field!r} is a callable, a Jpeg, a Png, a RawArray, None, or one of "
        f"{', '.join(named)}; not {given!r}"
    )


def _sentence(error: Exception) -> str:
    text = str(error)
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"
