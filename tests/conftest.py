"""Hypothesis profiles; a home of the tests' own; servers that are started when first needed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.nginx import nginx_path, nginx_server
from tests.servers.s3 import S3, s3_server

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


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server. Its buckets stay: each test makes its own."""
    with s3_server() as server:
        yield server


class Nginx(NamedTuple):
    """A server of files: those of `folder`, below `{url}/ranges` and `{url}/whole`."""

    folder: Path
    url: str


@pytest.fixture(scope="session")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    """nginx, where it is installed. Each test serves a folder of its own below `folder`."""
    if nginx_path() is None:
        pytest.skip("nginx is not installed (apt-get install nginx-light, as .ci/run does)")
    folder = tmp_path_factory.mktemp("nginx")
    with nginx_server(folder) as url:
        yield Nginx(folder, url)
