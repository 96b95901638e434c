from __future__ import annotations

from typing import Any

import pytest

from shardloader.errors import UsageError
from shardloader.reading.sizes import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("512 B", 512),
        ("1k", 1000),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("200MB", 200_000_000),
        (" 1 gib ", 2**30),
        ("1.5GB", 1_500_000_000),
        ("0.1TiB", 109_951_162_777),
        ("9007199254740993", 2**53 + 1),
        (7, 7),
    ],
)
def test_a_size_is_bytes_or_a_number_with_a_unit(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "wrong",
    ["", "GB", "1XB", "1e9", "-1", "1_000", "0", "0.1B", -5, 1.5, True, None, "\u0661MB", "1..5kB"],
)
def test_anything_else_is_refused_with_what_was_given(wrong: Any) -> None:
    with pytest.raises(UsageError, match="a size is") as caught:
        parse_bytes(wrong)
    assert repr(wrong) in str(caught.value)
