"""With which options does fsspec make a client, so that it waits and tries as we say?

One place knows what each file system calls its timeouts and its own attempts, and which extra
installs it. Where a backend tries again by itself, that is switched off: then attempts are counted,
Retry-After is seen, and the deadline holds. What a user has given goes before all of it.
"""

from __future__ import annotations

import os
import re
import ssl
from types import MethodType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from shardloader.reading.hub import HubFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardloader.reading.patience import Patience

HTTP: Final = ("http", "https")
S3: Final = ("s3", "s3a")
GOOGLE: Final = ("gs", "gcs")
AZURE: Final = ("az", "abfs", "abfss")
HUB: Final = ("hf",)
# A writer puts files and takes them away: the one takes none, the other makes a commit of each.
READ_ONLY: Final = (*HTTP, *HUB)
# The extra of this package that installs what fsspec needs for a scheme.
EXTRAS: Final = {
    "http": "http",
    "https": "http",
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
    "adl": "azure",
    "hf": "hf",
}
# Else a file's status is what a list said of it, at some time.
_NO_LISTINGS_KEPT: Final = {"use_listings_cache": False}
_MARK: Final = re.compile(r"[?#]")

# Botocore's descriptions of services, by the folders that they lie in. To unpack and parse them is
# most of what a client of S3 costs, so it is done once; a process that is forked has them as well.
_MODELS: Final[dict[str | None, Any]] = {}

# What a process that is forked inherits it never lets go of. To close a connection there would take
# it off the parent's list of those to listen to (epoll, which both have), and let the parent wait.
_LIVE: Final[WeakValueDictionary[int, Any]] = WeakValueDictionary()
_INHERITED: Final[list[Any]] = []
os.register_at_fork(after_in_child=lambda: _INHERITED.extend(_LIVE.values()))


def client_options(scheme: str, given: Mapping[str, Any], patience: Patience) -> dict[str, Any]:
    """The options of a client, with those that were given. Raises OSError for a file of none."""
    table = {HTTP: _of_http, S3: _of_s3, GOOGLE: _of_google, AZURE: _of_azure}
    of_it = next((options for schemes, options in table.items() if scheme in schemes), None)
    return dict(given) if of_it is None else of_it(given, patience)


def _of_http(given: Mapping[str, Any], patience: Patience) -> dict[str, Any]:
    """An option `ssl` that is a path is the certificate of whoever signs the server's."""
    kept = {"timeout": _timeout(patience), **(given.get("client_kwargs") or {})}
    options = {**given, "client_kwargs": kept}
    if isinstance(given.get("ssl"), str | os.PathLike):
        options["ssl"] = ssl.create_default_context(cafile=given["ssl"])
    return options


def _of_s3(given: Mapping[str, Any], patience: Patience) -> dict[str, Any]:
    config = {
        "connect_timeout": patience.stall_s,
        "read_timeout": patience.stall_s,
        "max_pool_connections": patience.in_flight,
        "retries": {"max_attempts": 0},
    }
    config |= given.get("config_kwargs") or {}
    # More than one would cost a HEAD before each GET of a whole file.
    return {"max_concurrency": 1, **_NO_LISTINGS_KEPT, **given, "config_kwargs": config}


def _of_google(given: Mapping[str, Any], patience: Patience) -> dict[str, Any]:
    session = {"raise_for_status": _raise_what_may_pass, **(given.get("session_kwargs") or {})}
    kept = {"requests_timeout": _timeout(patience), **_NO_LISTINGS_KEPT}
    return {**kept, **given, "session_kwargs": session}


def _of_azure(given: Mapping[str, Any], patience: Patience) -> dict[str, Any]:
    stall = patience.stall_s
    return {"connection_timeout": stall, "read_timeout": stall, **_NO_LISTINGS_KEPT, **given}


def _timeout(patience: Patience) -> Any:
    import aiohttp

    stall = patience.stall_s
    return aiohttp.ClientTimeout(total=None, sock_connect=stall, sock_read=stall)


async def _raise_what_may_pass(response: Any) -> None:
    """Raise an error that has the answer's headers, which those of gcsfs have not."""
    if response.status in {408, 429} or response.status >= 500:
        response.raise_for_status()


def new_client(url: str, scheme: str, given: Mapping[str, Any], patience: Patience) -> Any:
    """A client of this process alone. Raises whatever fsspec and the backend do."""
    client = _made(url, scheme, given, patience)
    _LIVE[id(client)] = client
    return client


def _made(url: str, scheme: str, given: Mapping[str, Any], patience: Patience) -> Any:
    import fsspec

    options = client_options(scheme, given, patience)
    if scheme in GOOGLE:
        return _new_of_google(options)
    client = fsspec.core.url_to_fs(url, skip_instance_cache=True, **options)[0]
    if scheme in S3 and hasattr(client, "retries"):
        client.retries = 1  # s3fs's own, beside those of its botocore
        if client.session is None:
            client.session = _session(client.kwargs)
    if scheme in AZURE:
        _settle_azure(client)
    if scheme in HUB and not client._strip_protocol(url).startswith("buckets/"):  # noqa: SLF001 - all backends have it
        return HubFiles(client, patience.stall_s)
    return client


def _session(options: Mapping[str, Any]) -> Any:
    """What s3fs would make: a session with credentials of its own; but the models are shared."""
    from aiobotocore.session import AioSession

    session = AioSession(**options)
    path = session.get_config_variable("data_path")
    models = _MODELS.get(path) or session.get_component("data_loader")
    session.register_component("data_loader", _MODELS.setdefault(path, models))
    return session


def _new_of_google(options: Mapping[str, Any]) -> Any:
    """One that speaks the JSON API alone, and asks once.

    What fsspec would make asks over gRPC first, for each bucket, of what kind that is; a process
    that is forked while gRPC runs gets no answers. `_request` tries six times. `_info` lists
    a folder of the file's name meanwhile, by a second request, which costs more than the first.
    """
    import gcsfs

    client = gcsfs.core.GCSFileSystem(skip_instance_cache=True, **options)
    client._get_directory_info = _no_folder  # noqa: SLF001 - there is no option
    once = getattr(type(client)._request, "__wrapped__", None)  # noqa: SLF001 - there is no option
    if once is not None:
        client._request = MethodType(once, client)  # noqa: SLF001
    return client


async def _no_folder(path: str, *_: object) -> Any:
    raise FileNotFoundError(path)


def _settle_azure(client: Any) -> None:
    """Ask once, and take `#` in a name for what it is: adlfs reads paths as URLs."""
    strip = client._strip_protocol  # noqa: SLF001 - all backends have it

    def stripped(path: Any) -> Any:
        if isinstance(path, list):
            return [stripped(each) for each in path]
        head = _MARK.split(path, maxsplit=1)[0]
        return strip(head) + path[len(head) :]

    client._strip_protocol = stripped  # noqa: SLF001
    client.service_client._config.retry_policy.total_retries = 0  # noqa: SLF001 - no option, too
