"""The scripts of docs/trainers.md are those that the tests beside this one run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "trainers.md"
# What logs is tried by tests/integrations.
SCRIPTS, LOGGING = PAGE.read_text().split("## Log how the loop is fed")
BLOCKS = re.findall(r"```python\n(.*?)```", SCRIPTS, flags=re.DOTALL)


def lines(text: str) -> list[str]:
    """What is said, apart from what only the tests and the type checker need."""
    told = (re.sub(r"  # (type: ignore|noqa).*", "", line).strip() for line in text.splitlines())
    return [line for line in told if line and not line.endswith("# for the test")]


def stands_in(block: Sequence[str], script: Sequence[str]) -> bool:
    """Whether the block's lines follow one another in the script."""
    starts = range(len(script) - len(block) + 1)
    return any(script[start : start + len(block)] == block for start in starts)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_script_of_the_page_is_run_by_a_test(number):
    scripts = {path.name: lines(path.read_text()) for path in HERE.glob("*.py")}
    found = [name for name, script in scripts.items() if stands_in(lines(BLOCKS[number]), script)]
    assert found, BLOCKS[number]


def test_the_callbacks_that_log_are_imported_as_their_test_does():
    tried = lines((HERE.parent / "integrations" / "test_feed_loggers.py").read_text())
    imports = [line for line in lines(LOGGING) if line.startswith("from ")]
    assert len(imports) == 2
    assert set(imports) <= set(tried)


def test_each_trainer_has_its_script():
    assert len(BLOCKS) >= 7
