"""What does it mean that a request to a remote store failed, and is it worth another try?

Backends of fsspec raise what they like: errors of the system, of HTTP with a status, or classes
of packages that may not be installed. The tables below tell them apart by status, by errno and
by the classes' names.
"""

from __future__ import annotations

import errno
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

from shardloader.errors import StoreError, WorldError


class MissingFileError(WorldError):
    """The store has no file of that name."""


class PastEndError(StoreError):
    """The file ends before the bytes that were asked for."""


Wanted: TypeAlias = Literal["give the file", "take the file", "list its files"]


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
# What S3 calls its errors, where the status says less: an expired token is 400, as much else is.
# The answer to HEAD has no body, and "400" for a code.
_BY_CODE: Final = {
    "400": Trouble.DENIED,
    "ExpiredToken": Trouble.DENIED,
    "ExpiredTokenException": Trouble.DENIED,
    "InvalidToken": Trouble.DENIED,
    "RequestTimeout": Trouble.PASSING,
    "TokenRefreshRequired": Trouble.DENIED,
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
# Classes of aiohttp, botocore, requests, urllib3, azure, google and httpx: a connection lost, or a
# short body.
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
        "JSONDecodeError",  # another page in the place of an answer
        "ReadTimeoutError",
        "ServiceRequestError",
        "ServiceResponseError",
        "Timeout",
        "TransportError",
    )
)
# What Azure's client says where another page is in the place of an answer.
_NO_ANSWER: Final = "Required Content-Range response header is missing"
# Wherever it stands among the causes: the server is not who it says it is.
_LASTING_CLASSES: Final = frozenset(("ClientConnectorCertificateError", "SSLCertVerificationError"))
# Classes of botocore, google and azure: there are no credentials, or they can't be renewed.
_DENIED_CLASSES: Final = frozenset(
    (
        "ClientAuthenticationError",
        "CredentialRetrievalError",
        "DefaultCredentialsError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "RefreshError",
        "SSOError",
        "TokenRetrievalError",
    )
)


def underlying(error: BaseException) -> BaseException:
    """The error that a backend has wrapped: fsspec's HTTP calls any failure a missing file."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or cause is None:
        return error
    tells_more = _status_of(cause) is not None or trouble_of(cause) is not Trouble.LASTING
    return cause if tells_more else error


def _answer_of(error: BaseException) -> tuple[int | None, str, Any]:
    """Status, code and headers of the answer that an error tells.

    As those of aiohttp, azure, gcsfs, huggingface_hub and botocore do; s3fs gives errors of the
    system botocore's for their cause.
    """
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            meta = response.get("ResponseMetadata", {})
            code = str(response.get("Error", {}).get("Code", ""))
            return meta.get("HTTPStatusCode"), code, meta.get("HTTPHeaders", {})
        headers = getattr(each, "headers", None) or getattr(response, "headers", None) or {}
        own = "code" if type(each).__name__ == "HttpError" else "status"  # as gcsfs calls it
        places = ((each, own), (each, "status_code"), (response, "status_code"))
        told = (getattr(place, name, None) for place, name in places)
        status = next((value for value in told if isinstance(value, int)), None)
        if status is not None:
            return status, "", headers
    return None, "", {}


def _status_of(error: BaseException) -> int | None:
    return _answer_of(error)[0]


def retry_after_of(error: BaseException) -> float | None:
    """How many seconds the server asks to wait, by its header Retry-After: a number or a date."""
    headers = _answer_of(underlying(error))[2]
    told = headers.get("Retry-After") or headers.get("retry-after")
    if told is None:
        return None
    seconds = math.nan
    with suppress(ValueError, TypeError):
        seconds = float(told)
    if math.isnan(seconds):
        with suppress(ValueError, TypeError):
            seconds = parsedate_to_datetime(told).timestamp() - time.time()
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def trouble_of(error: BaseException) -> Trouble:
    """What an error of a backend means.

    >>> trouble_of(ConnectionResetError()), trouble_of(FileNotFoundError("a.tar"))
    (<Trouble.PASSING: 'it may go better in a moment'>, <Trouble.MISSING: 'there is no such file'>)
    """
    error = underlying(error)
    status, code, _ = _answer_of(error)
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status is not None:
        server = Trouble.PASSING if status >= 500 else Trouble.LASTING
        return _BY_STATUS.get(status, server)
    return _trouble_of_kind(error)


def _trouble_of_kind(error: BaseException) -> Trouble:
    """What an error without an answer means."""
    if isinstance(error, FileNotFoundError | IsADirectoryError):
        return Trouble.MISSING
    origins = _origins(error)
    names = {kind.__name__ for each in origins[:2] for kind in type(each).__mro__}
    if any(type(each).__name__ in _LASTING_CLASSES for each in origins):
        return Trouble.LASTING
    is_forbidden = isinstance(error, OSError) and str(error).startswith("Forbidden: ")  # of gcsfs
    if isinstance(error, PermissionError) or is_forbidden or names & _DENIED_CLASSES:
        return Trouble.DENIED
    is_passing = _NO_ANSWER in str(error) or any(
        isinstance(each, TimeoutError | EOFError)
        or (isinstance(each, OSError) and each.errno in _PASSING_ERRNOS)
        for each in origins[:2]
    )
    return Trouble.PASSING if is_passing or names & _PASSING_CLASSES else Trouble.LASTING


def _origins(error: BaseException) -> list[BaseException]:
    """The error, what it was raised from, and so on."""
    found: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in found:
        found.append(each)
        each = each.__cause__ or each.__context__
    return found


@dataclass(frozen=True, slots=True)
class Failure:
    """What was wrong, in words without secrets. asked_s: how long the server asks to wait."""

    trouble: Trouble
    words: str
    asked_s: float | None = None


def error_of(
    shown: str, failure: Failure, attempts: int, wanted: Wanted = "give the file"
) -> WorldError:
    """What to raise for a failure at the file that messages call `shown`."""
    trouble, words = failure.trouble, failure.words
    if trouble is Trouble.MISSING and wanted == "take the file":
        return WorldError(
            f"{shown}: the store has no such place ({words}): make the bucket, or give another URL"
        )
    if trouble is Trouble.MISSING:
        return MissingFileError(
            f"{shown}: the store has no such file ({words}): put it there, or give the folder's "
            "right URL"
        )
    if trouble is Trouble.DENIED:
        return StoreError(
            f"{shown}: the store refuses these credentials, also of a new client ({words}): renew "
            "them, or give others with storage_options="
        )
    if trouble is Trouble.PAST_END:
        return PastEndError(f"{shown}: the file ends before the bytes asked for ({words})")
    if trouble is Trouble.LASTING:
        return StoreError(
            f"{shown}: the store does not {wanted}, and would not at another attempt "
            f"({words}): look at the URL and at storage_options="
        )
    asked = f", and asks to wait {failure.asked_s:g} s" if failure.asked_s else ""
    goes_on = "a checkpoint resumes" if wanted == "give the file" else "the same command goes on"
    return StoreError(
        f"{shown}: the store does not {wanted}, after {attempts} attempts ({words}{asked}): look "
        f"whether it can be reached from here and start the run again; {goes_on} where it was"
    )
