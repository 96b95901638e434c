"""Hypothesis profiles; a home of the tests' own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "nightly", deadline=None, max_examples=3000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def _home_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Leave the user's node cache alone; other libraries keep theirs."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(
            "XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME", str(Path("~/.cache").expanduser()))
        )
        patched.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield
