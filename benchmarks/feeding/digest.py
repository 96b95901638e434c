"""Did two loaders give the same samples? A sum over samples, so that order does not matter.

Every field becomes the same bytes whether it came raw or decoded, except an image, whose pixels
are what was asked for. Images by a loader's own decoder can't be alike to the bit: there the sum
takes the class and the shape, and `brightness` the pixels, to be compared within a tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xxhash

from tools.corpora.corpus import NPY_HEADER_BYTES
from tools.corpora.samples import canonical_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

BRIGHTNESS_TOLERANCE: Final = 0.01  # of the mean of all pixels, relative


@dataclass(slots=True)
class Digest:
    """What arrived so far."""

    samples: int = 0
    total: int = 0
    brightness: float = 0.0

    def add(self, columns: Mapping[str, Sequence[Any]], fields: Sequence[str], mode: str) -> None:
        """Add the samples of an item."""
        values = [list(columns[field]) for field in fields]
        for sample in zip(*values, strict=True):
            self.samples += 1
            pieces = []
            for field, value in zip(fields, sample, strict=True):
                if field == "jpg" and mode == "own":
                    pixels = np.asarray(value)
                    self.brightness += float(pixels.mean())
                    pieces.append(str(pixels.shape).encode())
                else:
                    pieces.append(_as_bytes(field, value))
            joined = b"".join(len(piece).to_bytes(4, "little") + piece for piece in pieces)
            self.total = (self.total + xxhash.xxh3_64_intdigest(joined)) % 2**64

    def differs_from(self, other: Digest) -> str:
        """What differs, in words; empty if nothing does."""
        if self.samples != other.samples:
            return f"{self.samples} samples arrived, and the corpus has {other.samples}"
        if self.total != other.total:
            return "what arrived is not what the corpus holds: its digest differs"
        if abs(self.brightness - other.brightness) > BRIGHTNESS_TOLERANCE * other.brightness:
            return "the images are not the ones of the corpus: their brightness differs"
        return ""


def _as_bytes(field: str, value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)[NPY_HEADER_BYTES if field == "npy" else 0 :]
    return _SPELLINGS[field](value)


def _pixels_or_tokens(value: Any) -> bytes:
    return np.asarray(value).tobytes()


# A decoded field as the bytes that it was decoded from, or that its numbers are made of.
_SPELLINGS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "txt": str.encode,
    "json": canonical_json,
    "cls": lambda value: str(int(value)).encode(),
    "jpg": _pixels_or_tokens,
    "npy": _pixels_or_tokens,
}
