"""What counts as an integer, for every constructor of the order.

numpy's integers are as good as Python's; booleans and floats are mistakes, whatever their value.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from shardloader.errors import UsageError

MAX_SEED = 2**63


def checked(name: str, value: Any, *, least: int, below: int = 2**63) -> int:
    """Return `value` as a Python int in [least, below).

    Raises UsageError that names the argument, the rule and the value.
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise UsageError(
            f"{name} must be an integer, and is {shown(value)} (a {type(value).__name__}): give a "
            f"whole number of at least {least}"
        )
    if not least <= number < below:
        bound = f"at least {least}" if number < least else f"less than {below}"
        raise UsageError(f"{name} must be {bound}, and is {shown(number)}")
    return number


def shown(value: Any) -> str:
    """A value as a message shows it: short, whatever it is."""
    if isinstance(value, int) and abs(value) >= 2**128:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
