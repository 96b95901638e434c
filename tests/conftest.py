"""Hypothesis profiles; a home of the tests' own; servers that are started when first needed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.azurite import INSTALL, Azurite, azurite_path, azurite_server
from tests.servers.gcs import Gcs, gcs_server
from tests.servers.hub import Hub, hub_server
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
    pytest.importorskip("s3fs")
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[Gcs]:
    """A server of Google's storage. Its buckets stay: each test makes its own."""
    pytest.importorskip("gcp_storage_emulator", reason="pip install gcp-storage-emulator")
    pytest.importorskip("gcsfs", reason="pip install 'shardloader[gcs]'")
    with gcs_server() as server:
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """A server of Azure's blobs, where it is installed. Its containers stay."""
    pytest.importorskip("adlfs", reason="pip install 'shardloader[azure]'")
    if azurite_path() is None:
        pytest.skip(f"azurite is not installed ({INSTALL}, as .ci/run does)")
    with azurite_server() as server:
        yield server


@pytest.fixture(scope="session")
def hub() -> Iterator[Hub]:
    """A server that speaks as the Hugging Face Hub does. Its repositories stay."""
    pytest.importorskip("huggingface_hub", reason="pip install 'shardloader[hf]'")
    with hub_server() as server:
        yield server


class Nginx(NamedTuple):
    """A server of files: those of `folder`, below `{url}/ranges` and `{url}/whole`.

    authority: the certificate of who signed its own, of one that speaks https.
    """

    folder: Path
    url: str
    authority: Path | None = None


@pytest.fixture(scope="session")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    """nginx, where it is installed. Each test serves a folder of its own below `folder`."""
    _needs_nginx()
    folder = tmp_path_factory.mktemp("nginx")
    with nginx_server(folder) as url:
        yield Nginx(folder, url)


@pytest.fixture(scope="session")
def nginx_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    """The same over https, with a certificate of its own."""
    _needs_nginx()
    certificates = pytest.importorskip("tests.servers.certificates")
    folder = tmp_path_factory.mktemp("nginx-tls")
    certificate = certificates.certificate_in(tmp_path_factory.mktemp("certificates"))
    with nginx_server(folder, certificate) as url:
        yield Nginx(folder, url, certificate.authority)


def _needs_nginx() -> None:
    if nginx_path() is None:
        pytest.skip("nginx is not installed (apt-get install nginx-light, as .ci/run does)")
