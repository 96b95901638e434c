"""Encoders: which bytes stand for a field's value, and which names a sample may use.

The other way round than `shardloader.reading.decode`: what is written here reads back there the
same, or is refused with key, field and type before any byte of the sample exists. Knows values
and names; not files, and not where in a shard a member will lie.

| last extension                               | takes                                         |
|----------------------------------------------|-----------------------------------------------|
| any                                          | bytes, bytearray, memoryview: as they are     |
| txt, text, transcript                        | str, as UTF-8                                 |
| json, jsn                                    | what JSON can say, as compact UTF-8           |
| cls, cls2, class, count, index, inx, id      | int (numpy's too), in decimal                 |
| cls, cls2, class                             | str as well: class names, as UTF-8; they are  |
|                                              | read with decode={"cls": "text"}              |
| npy                                          | numpy arrays without Python objects           |

JSON keeps the order of keys that it is given, which is part of the sample, so equal input gives
equal bytes. NaN and infinity, and keys that are no str, are refused: they would not read back
(a tuple does, as a list).
Images are not encoded here; their fields take the bytes of an image file.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from shardloader.errors import SampleError
from shardloader.format.samples import split_name
from shardloader.format.tar_header import NAME_BYTES

Encoder = Callable[[Any], bytes]

# One encoder for all samples: json.dumps would make a new one at each call.
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
# Keys that need no closer look: most datasets have no others.
_PLAIN_KEY = re.compile(r"(?!__)[A-Za-z0-9_-][A-Za-z0-9_ -]*(?:/[A-Za-z0-9_-][A-Za-z0-9_ -]*)*")
_LONG_KEY = 256
_MAX_KEY_BYTES = 4096  # as long as a path may be on Linux; far beyond, PAX headers are refused
_MAX_FIELD_BYTES = 255  # a file name's length
_META = "__"
_BUFFERS = (bytes, bytearray, memoryview)
_TEXT = {str}
_JSON_SCALARS = {str, int, float, bool, type(None)}


class Layout(NamedTuple):
    """What is the same for all samples with the same fields, which are in byte order.

    `encoders` has an entry for each of `fields`. A key of at most `longest_key` characters, if it
    is ASCII, makes member names that an ordinary header can say.
    """

    fields: tuple[str, ...]
    values: Callable[[Mapping[str, Any]], tuple[Any, ...]]  # of the fields of a sample
    encoders: tuple[Encoder, ...]
    num_fields: int
    longest_key: int


class EncodedSample(NamedTuple):
    """A sample that may be written: its key, and the bytes of its fields in their order."""

    key: str
    fields: list[tuple[str, bytes]]


def encode_sample(sample: Mapping[str, Any]) -> EncodedSample:
    """Return the sample's bytes, fields in the byte order of their names.

    Raises SampleError that names the key, and the field and type where it is about them.
    """
    key, layout = checked(sample)
    values = encoded(key, layout, layout.values(sample))
    return EncodedSample(key, list(zip(layout.fields, values, strict=True)))


def checked(sample: Mapping[str, Any]) -> tuple[str, Layout]:
    """Return the key and the layout of a sample; raises SampleError for names it can't have."""
    try:
        key: Any = sample.get("__key__")
    except AttributeError:
        raise SampleError(
            f"a sample is a mapping of '__key__' and fields, not {type(sample).__name__}"
        ) from None
    is_plain = is_plain_key(key)
    if not is_plain:
        key = _checked_key(sample)
    try:
        layout = field_layout(tuple(sample))
    except ValueError as error:
        raise SampleError(f"sample {key!r} can't be written: {error}") from None
    if not is_plain and key.startswith(_META):
        _check_together(key, layout)
    return key, layout


def is_plain_key(key: object) -> bool:
    """Whether a key is ASCII and plain enough to need no closer look; most are.

    >>> is_plain_key("a/000001"), is_plain_key("000001"), is_plain_key("v1.0/a"), is_plain_key("é")
    (True, True, False, False)
    """
    if type(key) is not str or len(key) >= _LONG_KEY:
        return False
    return (key.isalnum() and key.isascii()) or _PLAIN_KEY.fullmatch(key) is not None


def encoded(key: str, layout: Layout, values: Iterable[Any]) -> list[bytes]:
    """Return the bytes of values; raises SampleError that names all there is to name."""
    found: list[bytes] = []
    for field, encode, value in zip(layout.fields, layout.encoders, values, strict=True):
        try:
            found.append(value if type(value) is bytes else encode(value))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise SampleError(
                f"sample {key!r} can't be written: field {field!r} got a value of type "
                f"{type(value).__name__}: {error}"
            ) from error
    return found


@lru_cache(maxsize=1024)  # the samples of one dataset have few sets of fields between them
def field_layout(names: tuple[str, ...]) -> Layout:
    """Return the layout of samples with these entries; raises ValueError with a reason.

    >>> field_layout(("__key__", "txt", "json")).fields
    ('json', 'txt')
    """
    fields = [name for name in names if name != "__key__"]
    if not fields:
        raise ValueError("it has no field, and a sample without members can't be read back")
    for field in fields:
        _check_field(field)
    fields.sort(key=lambda field: field.encode())
    longest = max(map(len, fields))
    return Layout(
        fields=tuple(fields),
        values=itemgetter(*fields) if len(fields) > 1 else _only(fields[0]),
        encoders=tuple(_encoder(field) for field in fields),
        num_fields=len(fields),
        longest_key=NAME_BYTES - 1 - longest if all(map(str.isascii, fields)) else -1,
    )


def key_problem(key: object) -> str | None:
    """Return why no sample can have this key, or None if one can."""
    if not isinstance(key, str):
        return f"a key is a str, not {type(key).__name__}"
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "a key is valid Unicode, and this one holds a lone surrogate"
    if size > _MAX_KEY_BYTES:
        return f"a key has at most {_MAX_KEY_BYTES} bytes, and this one has {size}"
    if key.startswith("/") or {".", ".."} & set(key.split("/")):
        return "a key is a plain relative path: no '/' at its start, no '.' or '..' in it"
    if "\0" in key or split_name(f"{key}.x") != (key, "x"):
        return (
            "it would not read back: a key is not empty, does not end in '/', and has no NUL "
            "and no dot in its last part"
        )
    return None


def _checked_key(sample: Mapping[str, Any]) -> str:
    try:
        key = sample["__key__"]
    except KeyError:
        raise SampleError(
            f"a sample has a '__key__', and this one has only {sorted(map(str, sample))}"
        ) from None
    problem = key_problem(key)
    if problem is not None:
        raise SampleError(f"key {_short(key)} can't be written: {problem}")
    return str(key)


def _check_together(key: str, layout: Layout) -> None:
    """Refuse a reserved name that only key and field together make."""
    for field in layout.fields:
        if split_name(f"{key}.{field}") != (key, field):
            raise SampleError(
                f"sample {key!r} can't be written: '{key}.{field}' would not read back, names "
                f"that begin and end with '{_META}' are reserved"
            )


def _check_field(field: object) -> None:
    if not isinstance(field, str):
        raise ValueError(f"a field is a str, and {field!r} is {type(field).__name__}")  # noqa: TRY004
    if field != field.lower():
        raise ValueError(
            f"a field is lower case, as it is read back, and {field!r} is not: "
            f"name it {field.lower()!r}"
        )
    if field.startswith(_META):
        raise ValueError(
            f"names that begin with '{_META}' are the loader's own, and {field!r} does"
        )
    if "\0" in field or split_name(f"k.{field}") != ("k", field) or not _fits(field):
        raise ValueError(
            f"field {_short(field)} would not read back: a field is valid Unicode of 1 to "
            f"{_MAX_FIELD_BYTES} bytes, without '/' and NUL"
        )


def _only(field: str) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    return lambda sample: (sample[field],)


def _fits(field: str) -> bool:
    try:
        return len(field.encode()) <= _MAX_FIELD_BYTES
    except UnicodeEncodeError:
        return False


def _as_is(value: Any, takes: str = "bytes; encode the value first, an image as a file") -> bytes:
    if not isinstance(value, _BUFFERS):
        raise TypeError(f"this field takes {takes}")
    return bytes(value)  # a copy: the caller may use the buffer again


def _text(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else _as_is(value, "str or bytes")


def _integer(value: Any) -> bytes:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return b"%d" % int(value)
    return _as_is(value, "an int or bytes")


def _class(value: Any) -> bytes:
    if not isinstance(value, str):
        return _integer(value)
    if not value:
        raise ValueError("a class has a name or a number")
    return value.encode()


def _json(value: Any) -> bytes:
    if isinstance(value, _BUFFERS):
        return bytes(value)
    text = _JSON.encode(value)
    if "{" in text:
        _check_json_keys(value)
    return text.encode()


def _check_json_keys(value: Any) -> None:
    """Refuse keys that JSON would turn into other keys; the value is known to have no cycle."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if not (set(map(type, value)) <= _TEXT or all(isinstance(key, str) for key in value)):
                raise TypeError("JSON's keys are str, and others would come back as str")
            value = value.values()
        if not set(map(type, value)) <= _JSON_SCALARS:
            waiting.extend(item for item in value if isinstance(item, dict | list | tuple))


def _npy(value: Any) -> bytes:
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        return _as_is(value, "a plain numpy array or the bytes of a .npy file")
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, value, allow_pickle=False)
    return buffer.getvalue()


_ENCODERS: Mapping[str, Encoder] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("json", "jsn"), _json),
    **dict.fromkeys(("cls", "cls2", "class"), _class),
    **dict.fromkeys(("count", "index", "inx", "id"), _integer),
    "npy": _npy,
}


def _encoder(field: str) -> Encoder:
    return _ENCODERS.get(field.rpartition(".")[2], _as_is)


def _short(name: object) -> str:
    text = repr(name)
    return text if len(text) <= 400 else f"{text[:300]}... ({len(text)} characters)"
