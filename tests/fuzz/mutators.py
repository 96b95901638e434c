"""How are inputs changed so that they are still nearly sound?

Bytes changed at random are refused at the first checksum. These keep the form: a header's field is
changed and its checksum mended, blocks are moved, a JSON value is replaced by an odd one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

BLOCK = 512
_FIELDS = {  # of a tar header: start, stop
    "name": (0, 100),
    "mode": (100, 108),
    "uid": (108, 116),
    "size": (124, 136),
    "mtime": (136, 148),
    "checksum": (148, 156),
    "type": (156, 157),
    "linkname": (157, 257),
    "magic": (257, 265),
    "prefix": (345, 500),
    "realsize": (483, 495),
}
_NAMES = (
    *(b"a.txt", b"a.TXT", b"a.cls", b"b/a.txt", b"README", b"a", b"", b".a", b"a.", b"a.b/"),
    *(b"__x__/a.txt", b"../a.txt", b"/a.txt", b"\xff.txt", b"\xc3\xa9.txt", b"k" * 100),
    *(b"././@LongLink", b"./a.txt", b"a..b", b"a\0b.txt", b"a b.1.txt"),
)
_SIZES = (0, 1, 20, 511, 512, 513, 1024, 8**11 - 1, 2**33, 2**62, 2**63, 2**64 - 1, 2**88)
_RECORDS = (
    *((b"path", name) for name in _NAMES),
    *((b"size", b"%d" % size) for size in _SIZES),
    *((b"size", text) for text in (b"-1", b"", b"1_0", b" 7", b"0x10", b"1.5", b"9" * 25)),
    *((b"hdrcharset", b"BINARY"), (b"mtime", b"1.5"), (b"mtime", b"nan"), (b"", b"x")),
    *((b"GNU.sparse.major", b"1"), (b"GNU.sparse.map", b"0,1"), (b"GNU.sparse.name", b"a.txt")),
    *((b"comment", b"x" * 300), (b"linkpath", b"a"), (b"SCHILY.realsize", b"5"), (b"a=b", b"c")),
)


def _number(rng: random.Random, width: int) -> bytes:
    size = rng.choice(_SIZES)
    style = rng.randrange(7)
    if style == 0 and size < 2 ** (8 * width - 2):
        return bytes((0x80 | size >> 8 * (width - 1),)) + (
            size & ((1 << 8 * (width - 1)) - 1)
        ).to_bytes(width - 1, "big")
    if style == 1:
        return b"\xff" * (width - 1) + bytes((rng.randrange(256),))
    if style == 2:
        return (b"%o" % size).rjust(width - 1)[:width].ljust(width, b" ")
    if style == 3:
        return (b"%o\0" % size)[:width].ljust(width, b"7")
    if style == 4:
        return bytes(rng.choice(b"01789 \0-+_") for _ in range(width))
    return (b"%0*o" % (width - 1, size))[:width].ljust(width, b"\0")


def sealed(block: bytearray, *, signed: bool = False) -> None:
    """Give a header the checksum that it should have."""
    block[148:156] = b" " * 8
    total = sum(block) - (256 * sum(byte > 127 for byte in block) if signed else 0)
    block[148:156] = b"%06o\0 " % max(0, total)


def header(name: bytes, size: int, typeflag: bytes = b"0") -> bytearray:
    """A sound ustar header."""
    block = bytearray(BLOCK)
    block[: len(name[:100])] = name[:100]
    block[100:124] = b"0000644\x000000000\x000000000\0"
    block[124:148] = b"%011o\x0000000000000\0" % size
    block[156:157] = typeflag
    block[257:265] = b"ustar\x0000"
    sealed(block)
    return block


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % BLOCK)


def _record(rng: random.Random) -> bytes:
    keyword, value = rng.choice(_RECORDS)
    body = b" " + keyword + b"=" + value + b"\n"
    length = len(body) + 1
    while len(b"%d" % length) + len(body) != length:
        length += 1
    wrong = rng.randrange(12)
    if wrong == 0:
        length += rng.choice((-1, 1, 10, -10, 10**19))
    told = b"%d" % max(0, length)
    return (b"0" + told if wrong == 1 else told) + body


def _extension(rng: random.Random) -> bytes:
    typeflag = rng.choice((b"x", b"x", b"x", b"g", b"L", b"L", b"K", b"X", b"V"))
    if typeflag in b"LK":
        content = rng.choice(_NAMES) * rng.choice((1, 1, 2, 9)) + rng.choice((b"\0", b""))
    else:
        content = b"".join(_record(rng) for _ in range(rng.randint(0, 3)))
    return bytes(header(b"././@LongLink", len(content), typeflag)) + _padded(content)


def _member(rng: random.Random) -> bytes:
    content = rng.randbytes(rng.choice((0, 1, 20, 511, 512, 513)))
    typeflag = rng.choice(b"0000\x007512346SMDNVZ").to_bytes(1, "big")
    return bytes(header(rng.choice(_NAMES), len(content), typeflag)) + _padded(content)


def _headers(data: bytearray) -> list[int]:
    """Blocks that look like headers: their checksum field ends as one does."""
    return [
        at
        for at in range(0, len(data) - BLOCK + 1, BLOCK)
        if data[at] and data[at + 154 : at + 156].strip(b"\0 ") == b""
    ] or [0]


def _change_field(data: bytearray, rng: random.Random) -> None:
    at = rng.choice(_headers(data))
    block = data[at : at + BLOCK]
    if len(block) < BLOCK:
        return
    field = rng.choice(list(_FIELDS))
    start, stop = _FIELDS[field]
    if field in {"size", "mtime", "uid", "realsize"}:
        block[start:stop] = _number(rng, stop - start)
    elif field == "type":
        block[start] = rng.choice(b"0\x00123456 7xgXLKVSMDNZ")
    elif field == "magic":
        block[start:stop] = rng.choice((b"ustar\x0000", b"ustar  \0", bytes(8), b"ustar   "))
    elif field in {"name", "prefix", "linkname"}:
        block[start:stop] = rng.choice(_NAMES)[: stop - start].ljust(stop - start, b"\0")
    else:
        block[rng.randrange(start, stop)] = rng.randrange(256)
    if rng.randrange(8):
        sealed(block, signed=not rng.randrange(8))
    data[at : at + BLOCK] = block


def _insert(make: Callable[[random.Random], bytes]) -> Callable[[bytearray, random.Random], None]:
    def insert(data: bytearray, rng: random.Random) -> None:
        at = rng.choice(_headers(data))
        data[at:at] = make(rng)

    return insert


def _cut(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at if rng.randrange(2) else at // BLOCK * BLOCK :]


def _splice(data: bytearray, rng: random.Random) -> None:
    blocks = len(data) // BLOCK
    first, second = sorted((rng.randint(0, blocks), rng.randint(0, blocks)))
    moved = bytes(data[first * BLOCK : second * BLOCK])
    if rng.randrange(2):
        del data[first * BLOCK : second * BLOCK]
    at = rng.choice(_headers(data)) if rng.randrange(2) else rng.randint(0, blocks) * BLOCK
    data[at:at] = moved


def _flip(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _end(data: bytearray, rng: random.Random) -> None:
    data += bytes(BLOCK * rng.randint(0, 3))


_TAR_CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    *(_change_field,) * 6,
    *(_insert(_extension),) * 4,
    *(_insert(_member),) * 3,
    _insert(lambda rng: bytes(BLOCK * rng.randint(1, 2))),
    _cut,
    _splice,
    _splice,
    _flip,
    _end,
)


def tar(data: bytes, rng: random.Random) -> bytes:
    """A tar that differs a little."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(_TAR_CHANGES)(changed, rng)
    return bytes(changed)


_ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        7,
        2**31,
        2**53 + 1,
        2**62,
        2**63 - 1,
        2**63,
        2**64,
        -(2**63),
    ),
    *(
        10**400,
        0.0,
        1.0,
        -0.5,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "a",
        "1",
        "a.tar",
        "../a.tar",
    ),
    *("\0", "\ud800", "é", "x" * 300, "0" * 32, [], [0], [1, 1, 1], [[]], {}, {"": 0}, {"a": {}}),
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a JSON value, with every key or number in it."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        found += [(value, key) for key in value]
    elif isinstance(value, list):
        found += [(value, number) for number in range(len(value))]
    for container, key in tuple(found):
        found += _places(container[key])
    return found


def json_value(data: bytes, rng: random.Random) -> bytes:
    """A JSON document that differs in a value or a key; of bytes that are none, one bit."""
    try:
        document = json.loads(data)
        places = _places(document)
    except (ValueError, RecursionError):
        places = []
    if not places or not rng.randrange(8):
        changed = bytearray(data)
        _flip(changed, rng)
        return bytes(changed)
    for _ in range(rng.choice((1, 1, 2))):
        _change_value(*rng.choice(places), rng)
    try:
        return json.dumps(document, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return data


def _change_value(container: Any, key: Any, rng: random.Random) -> None:
    if isinstance(container, dict) and key not in container:
        return
    if isinstance(container, list) and key >= len(container):
        return
    action = rng.randrange(6)
    if action == 0:
        del container[key]
    elif action == 1 and isinstance(container, dict):
        container[rng.choice(("version", "a", "seed", "names"))] = rng.choice(_ODD)
    elif action == 1:
        container.insert(key, rng.choice(_ODD))
    elif action == 2 and isinstance(container[key], int):
        container[key] += rng.choice((-1, 1, 2, 100))
    else:
        container[key] = json.loads(json.dumps(rng.choice(_ODD)))


def after_length(data: bytes, rng: random.Random) -> bytes:
    """A safetensors file whose header differs, with the header's length mended; or its numbers."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        return data
    head, body = data[8 : 8 + length], bytearray(data[8 + length :])
    if rng.randrange(2):
        head = _index_header(head, rng)
    elif len(body) >= 8:
        at = rng.randrange(len(body) // 8) * 8
        number = rng.choice((0, 1, -1, 2, 512, 2**31, 2**62, 2**63 - 1, -(2**63)))
        body[at : at + 8] = number.to_bytes(8, "little", signed=True)
        if not rng.randrange(4):
            _cut(body, rng)
    return len(head).to_bytes(8, "little") + head + bytes(body)


def _index_header(head: bytes, rng: random.Random) -> bytes:
    """The header; half of the time what is a JSON text in it."""
    try:
        document = json.loads(head)
        (mark, inner), *_ = document["__metadata__"].items()
    except (ValueError, RecursionError, KeyError, AttributeError, TypeError):
        return json_value(head, rng)
    if not isinstance(inner, str) or rng.randrange(2):
        return json_value(head, rng)
    document["__metadata__"][mark] = json_value(inner.encode("utf-8", "replace"), rng).decode(
        "utf-8", "replace"
    )
    return json.dumps(document, separators=(",", ":")).encode()
