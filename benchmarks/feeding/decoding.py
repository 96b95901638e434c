"""What does a loader without decoders of its own make of a batch's bytes? The same for all.

T: texts as str, the JSON as what it holds. K: one uint16 tensor [rows, 2048], each row viewed
behind the header of its .npy, the fastest way there is. I: the class as an int64 tensor, the image
by `pillow_square`.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tools.corpora.corpus import NPY_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SIDE: Final = 224


def square_box(width: int, height: int) -> tuple[float, float, float, float]:
    """The largest square in the middle of an image: left, top, right, bottom."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def pillow_square(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The middle square of a JPEG, uint8 [224, 224, 3], decoded whole and resized bilinearly."""
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    return resized(image)


def resized(image: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The middle square of a Pillow image, uint8 [224, 224, 3]."""
    from PIL import Image

    box = square_box(*image.size)
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box))


def collate(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A batch of samples whose fields are bytes."""
    return decoded(
        {name: [s[name] for s in samples] for name in COLUMN_DECODERS if name in samples[0]}
    )


def decoded(columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """A batch of columns of bytes; what is no field of a corpus is left out."""
    return {
        name: COLUMN_DECODERS[name](values)
        for name, values in columns.items()
        if name in COLUMN_DECODERS
    }


def _texts(values: Sequence[bytes]) -> list[str]:
    return [str(value, "utf-8") for value in values]


def _jsons(values: Sequence[bytes]) -> list[Any]:
    return [json.loads(value) for value in values]


def _classes(values: Sequence[bytes]) -> Any:
    import torch

    return torch.tensor([int(value) for value in values])


def _images(values: Sequence[bytes]) -> Any:
    import torch

    return torch.from_numpy(np.stack([pillow_square(value) for value in values]))


def _tokens(values: Sequence[bytes]) -> Any:
    import torch

    rows = [np.frombuffer(value, dtype="<u2", offset=NPY_HEADER_BYTES) for value in values]
    return torch.from_numpy(np.stack(rows))


COLUMN_DECODERS: Final[Mapping[str, Callable[[Sequence[bytes]], Any]]] = {
    "txt": _texts,
    "json": _jsons,
    "cls": _classes,
    "jpg": _images,
    "npy": _tokens,
}
