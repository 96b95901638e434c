from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import UsageError
from shardloader.writing.pattern import parse_pattern

GOOD = ["shard-{:06d}.tar", "{}.tar", "%d.tar", "a-%03d-of-x.tar", "{0:02d}é.tar", "{:04}.tar"]


@pytest.mark.parametrize("text", GOOD)
@given(number=st.integers(0, 10**9))
def test_names_are_those_that_python_makes_of_the_pattern(text: str, number: int) -> None:
    expected = text % number if "%" in text else text.format(number)
    pattern = parse_pattern(text)
    assert pattern.name(number) == expected
    assert pattern.makes(expected)


def test_a_pattern_makes_only_its_own_names() -> None:
    pattern = parse_pattern("shard-%04d.tar")
    others = ["shard-12.tar", "shard-00012.tar", "shard-.tar", "shard.tar", "shard-00a1.tar"]
    assert not any(
        pattern.makes(name)
        for name in [*others, "x-0001.tar", "shard-\u0660\u0660\u0660\u0661.tar", ""]
    )


@pytest.mark.parametrize(
    "text",
    [
        "out.tar",
        "",
        "%d",
        "%06d.tar.gz",
        "{:06d}-{:06d}.tar",
        "%s.tar",
        "{:6d}.tar",
        "{name}.tar",
        "{{}}.tar",
        "{:x}.tar",
        "sub/%d.tar",
        "..\\%d.tar",
        ".%d.tar",
        "100%-%d.tar",
        "a\n%d.tar",
        "\ud800%d.tar",
    ],
)
def test_a_pattern_that_is_no_file_name_with_one_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a shard pattern") as caught:
        parse_pattern(text)
    assert repr(text) in str(caught.value)
