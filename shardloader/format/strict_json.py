"""What does a JSON text say, if it says one thing only?

Python's reader takes the last of two equal keys, and NaN, which is no JSON: two readers of such a
file would see two files. A manifest and an index are read here, and such texts are refused.
"""

from __future__ import annotations

import json
import math
from typing import Any


def strict_json(data: bytes | str) -> Any:
    """Give the value of a JSON text in UTF-8.

    Raises ValueError for what is not that, or has a key twice or a number that is none, and
    RecursionError for a text nested without end.
    """
    text = data if isinstance(data, str) else data.decode("utf-8")
    return json.loads(
        text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in made if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} is there twice in one object")
    return made


def _finite(text: str) -> float:
    """What would become Infinity could not be written again."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is beyond the numbers that are read")
    return number


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
