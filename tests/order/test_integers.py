from __future__ import annotations

import numpy as np
import pytest

from shardloader.errors import UsageError
from shardloader.order.integers import checked, shown


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3)])
def test_any_kind_of_integer_becomes_a_python_int(value):
    number = checked("n", value, least=0)
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize("value", [True, False, np.True_, 3.0, np.float64(4), "3", None, [3]])
def test_what_is_no_integer_is_refused_with_its_value_and_type(value):
    with pytest.raises(UsageError) as refused:
        checked("window", value, least=1)
    message = str(refused.value)
    assert message.startswith("window must be an integer, and is ")
    assert repr(value) in message
    assert f"a {type(value).__name__}" in message
    assert message.endswith("give a whole number of at least 1")


def test_bounds_are_half_open_and_named():
    assert checked("n", 1, least=1, below=3) == 1
    assert checked("n", 2, least=1, below=3) == 2
    with pytest.raises(UsageError, match=r"^n must be at least 1, and is 0$"):
        checked("n", 0, least=1, below=3)
    with pytest.raises(UsageError, match=r"^n must be less than 3, and is 3$"):
        checked("n", 3, least=1, below=3)
    with pytest.raises(UsageError, match=r"^n must be less than 9223372036854775808, and is"):
        checked("n", 2**63, least=0)


def test_numbers_that_python_will_not_print_are_shown_by_their_size():
    with pytest.raises(UsageError, match="is a number of 20001 bits"):
        checked("seed", 2**20000, least=0)
    assert shown("x" * 1000).endswith("...")
    assert len(shown("x" * 1000)) < 250
