"""What does a sample of T, I or K hold? A pure function of its number, drawn from Philox.

Texts are slices of one long random text, behind their number; images are cut from a few fields of
smooth noise and compressed until they have between 40 and 60 KB; tokens are uniform.
"""

from __future__ import annotations

import io
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tools.corpora.corpus import ROW_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tools.corpora.corpus import Corpus

NUM_CLASSES: Final = 1000
LEAST_BYTES, MOST_BYTES = 40_000, 60_000  # of a JPEG
FIRST_QUALITY: Final = 75
NUM_NOISES: Final = 6
NOISE_PIXELS: Final = 640  # the side of a field of noise
TEXT_WORDS: Final = 400_000  # of the long text
WHOLE_CORPUS: Final = 2**40  # numbers above it draw what all samples share


def drawn(corpus: str, number: int) -> np.random.Generator:
    """The random numbers of one sample."""
    return np.random.Generator(np.random.Philox(key=[ord(corpus), number]))


def sample(corpus: Corpus, number: int) -> dict[str, bytes]:
    """The fields of sample `number`, as the bytes of its files."""
    return _MAKERS[corpus.name](number)


def _text(number: int) -> dict[str, bytes]:
    long_text = _long_text()
    random = drawn("T", number)
    size = int(random.integers(1_200, 1_800))
    start = int(random.integers(len(long_text) - size))
    text = b"%07d " % number + long_text[start : start + size]
    about = {"bytes": len(text), "number": number, "source": f"shelf-{number % 97}"}
    return {"txt": text, "json": canonical_json(about)}


def canonical_json(value: Any) -> bytes:
    """The one spelling that the corpus and the digests use."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


@lru_cache(maxsize=1)
def _long_text() -> bytes:
    random = drawn("T", WHOLE_CORPUS)
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgkqjxz", dtype=np.uint8)
    # rarer letters more rarely: the square of a uniform number leans to the front
    words = [
        letters[(random.random(int(size)) ** 2 * len(letters)).astype(np.int64)].tobytes()
        for size in random.integers(2, 10, size=5_000)
    ]
    picked = (random.random(TEXT_WORDS) ** 2 * len(words)).astype(np.int64)
    return b" ".join([words[each] for each in picked])


def _image(number: int) -> dict[str, bytes]:
    import simplejpeg

    random = drawn("I", number)
    height, width = (int(side) for side in random.integers(400, 501, size=2))
    top, left = (int(random.integers(NOISE_PIXELS - side + 1)) for side in (height, width))
    noise = _noise(number % NUM_NOISES)
    pixels = np.ascontiguousarray(noise[top : top + height, left : left + width])
    quality, data = FIRST_QUALITY, b""
    while not LEAST_BYTES <= len(data) <= MOST_BYTES:
        if data:
            quality += 2 if len(data) < LEAST_BYTES else -2
        data = simplejpeg.encode_jpeg(pixels, quality=quality, colorsubsampling="420")
    label = int(random.integers(NUM_CLASSES))
    return {"jpg": data, "cls": str(label).encode()}


@lru_cache(maxsize=NUM_NOISES)
def _noise(which: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Smooth noise, uint8 [side, side, 3]: coarse and fine grids, made larger and added."""
    random = drawn("I", WHOLE_CORPUS + which)
    total = np.zeros((NOISE_PIXELS, NOISE_PIXELS, 3))
    for cells, weight in ((8, 60.0), (40, 30.0), (320, 26.0)):
        grid = random.standard_normal((cells, cells, 3))
        repeat = NOISE_PIXELS // cells
        grown = grid.repeat(repeat, axis=0).repeat(repeat, axis=1)
        for axis in (0, 1):  # a running mean as wide as a cell takes the steps away
            summed = np.cumsum(grown, axis=axis)
            grown = (summed - np.roll(summed, repeat, axis=axis)) / repeat
            edge = [slice(None)] * 3
            edge[axis] = slice(0, repeat)
            grown[tuple(edge)] = 0.0
        total += weight * grown
    return np.clip(total + 128.0, 0, 255).astype(np.uint8)


def _tokens(number: int) -> dict[str, bytes]:
    file = io.BytesIO()
    row = drawn("K", number).integers(2**16, size=ROW_TOKENS, dtype=np.uint16)
    np.save(file, row, allow_pickle=False)
    return {"npy": file.getvalue()}


_MAKERS: Final[Mapping[str, Callable[[int], dict[str, bytes]]]] = {
    "T": _text,
    "I": _image,
    "K": _tokens,
}
