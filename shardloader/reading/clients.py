"""With which options does fsspec make a client, so that it waits and tries as we say?

One place knows what each file system calls its timeouts and its own attempts, and which extra
installs it. Where a backend tries again by itself, that is switched off: then attempts are counted,
Retry-After is seen, and the deadline holds. What a user has given goes before all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardloader.reading.patience import Patience

HTTP: Final = ("http", "https")
S3: Final = ("s3", "s3a")
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


def client_options(scheme: str, given: Mapping[str, Any], patience: Patience) -> dict[str, Any]:
    """The options of a client, with those that were given."""
    if scheme in HTTP:
        import aiohttp

        stall = patience.stall_s
        limit = aiohttp.ClientTimeout(total=None, sock_connect=stall, sock_read=stall)
        return {**given, "client_kwargs": {"timeout": limit, **(given.get("client_kwargs") or {})}}
    if scheme in S3:
        config = {
            "connect_timeout": patience.stall_s,
            "read_timeout": patience.stall_s,
            "max_pool_connections": patience.in_flight,
            "retries": {"max_attempts": 0},
        }
        config |= given.get("config_kwargs") or {}
        # More than one would cost a HEAD before each GET of a whole file.
        return {"max_concurrency": 1, **given, "config_kwargs": config}
    return dict(given)


def new_client(url: str, scheme: str, given: Mapping[str, Any], patience: Patience) -> Any:
    """A client of this process alone. Raises whatever fsspec and the backend do."""
    import fsspec

    options = client_options(scheme, given, patience)
    client = fsspec.core.url_to_fs(url, skip_instance_cache=True, **options)[0]
    if scheme in S3 and hasattr(client, "retries"):
        client.retries = 1  # s3fs's own, beside those of its botocore
    return client
