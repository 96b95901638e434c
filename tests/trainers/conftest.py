"""The ranks that tests launch one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.trainers.launch import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """They share what is imported, and nothing else."""
    ranks = Ranks()
    yield ranks
    ranks.end()
