"""What does it mean that a request to a remote store failed, and is it worth another try?

Backends of fsspec raise what they like: errors of the system, of HTTP with a status, or classes
of packages that may not be installed. The tables below tell them apart by status, by errno and
by the classes' names.
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import Final


class Trouble(Enum):
    """What a failed request means for whoever asked."""

    MISSING = "there is no such file"
    DENIED = "the store does not let this user read"
    PAST_END = "the file ends before the bytes asked for"
    PASSING = "it may go better in a moment"
    LASTING = "it would fail again"


_BY_STATUS: Final = {
    401: Trouble.DENIED,
    403: Trouble.DENIED,
    404: Trouble.MISSING,
    408: Trouble.PASSING,
    410: Trouble.MISSING,
    416: Trouble.PAST_END,
    425: Trouble.PASSING,
    429: Trouble.PASSING,
}
_PASSING_ERRNOS: Final = frozenset(
    (
        errno.EAGAIN,
        errno.EBUSY,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.ETIMEDOUT,
    )
)
# Classes of aiohttp, botocore, requests, urllib3 and azure: a connection lost, or a short body.
_PASSING_CLASSES: Final = frozenset(
    (
        "ClientConnectionError",
        "ClientPayloadError",
        "ConnectTimeoutError",
        "ConnectionClosedError",
        "ConnectionError",
        "EndpointConnectionError",
        "HTTPClientError",
        "IncompleteRead",
        "IncompleteReadError",
        "ReadTimeoutError",
        "ServiceRequestError",
        "ServiceResponseError",
        "Timeout",
    )
)


def underlying(error: BaseException) -> BaseException:
    """The error that a backend has wrapped: fsspec's HTTP calls any failure a missing file."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or cause is None:
        return error
    tells_more = _status_of(cause) is not None or trouble_of(cause) is not Trouble.LASTING
    return cause if tells_more else error


def _status_of(error: BaseException) -> int | None:
    """The HTTP status that an error tells, as aiohttp's, azure's and botocore's do."""
    response = getattr(error, "response", None)
    answer = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    told = (
        getattr(error, "status", None),
        getattr(error, "status_code", None),
        answer.get("HTTPStatusCode"),
    )
    return next((status for status in told if isinstance(status, int)), None)


def trouble_of(error: BaseException) -> Trouble:
    """What an error of a backend means.

    >>> trouble_of(ConnectionResetError()), trouble_of(FileNotFoundError("a.tar"))
    (<Trouble.PASSING: 'it may go better in a moment'>, <Trouble.MISSING: 'there is no such file'>)
    """
    error = underlying(error)
    status = _status_of(error)
    if status is None and error.__cause__ is not None:
        status = _status_of(error.__cause__)  # s3fs gives errors of the system their cause
    if status is not None:
        server = Trouble.PASSING if status >= 500 else Trouble.LASTING
        return _BY_STATUS.get(status, server)
    if isinstance(error, FileNotFoundError | IsADirectoryError):
        return Trouble.MISSING
    if isinstance(error, PermissionError):
        return Trouble.DENIED
    if isinstance(error, TimeoutError | EOFError):
        return Trouble.PASSING
    if isinstance(error, OSError) and error.errno in _PASSING_ERRNOS:
        return Trouble.PASSING
    names = {kind.__name__ for kind in type(error).__mro__}
    return Trouble.LASTING if names.isdisjoint(_PASSING_CLASSES) else Trouble.PASSING
