"""What a failed request means, whatever the backend raised."""

from __future__ import annotations

import errno
import ssl

import pytest

from shardloader.reading.faults import Trouble, retry_after_of, trouble_of, underlying


class Answered(Exception):  # noqa: N818 - as aiohttp's, which may not be installed
    def __init__(self, status):
        super().__init__(status)
        self.status = status
        self.headers: dict[str, str] = {}


class BotocoreAnswered(Exception):  # noqa: N818
    def __init__(self, status, code="", headers=None):
        super().__init__(status)
        meta = {"HTTPStatusCode": status, "HTTPHeaders": headers or {}}
        self.response = {"ResponseMetadata": meta, "Error": {"Code": code}}


def wrapped(cause, error=None):
    error = error or FileNotFoundError("a.tar")
    error.__cause__ = cause
    return error


def botocores(*answer):
    """As s3fs raises it: an error of the system, whose cause has the answer."""
    return wrapped(BotocoreAnswered(*answer), OSError(errno.EINVAL, "the range is not satisfiable"))


def of_class(name):
    return type(name, (Exception,), {})()


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (Answered(404), Trouble.MISSING),
        (Answered(403), Trouble.DENIED),
        (Answered(429), Trouble.PASSING),
        (Answered(503), Trouble.PASSING),
        (Answered(400), Trouble.LASTING),
        (Answered(416), Trouble.PAST_END),
        (wrapped(Answered(503)), Trouble.PASSING),
        (wrapped(Answered(403)), Trouble.DENIED),
        (wrapped(Answered(404)), Trouble.MISSING),
        (wrapped(ConnectionResetError()), Trouble.PASSING),
        (wrapped(KeyError("a.tar")), Trouble.MISSING),
        (botocores(416), Trouble.PAST_END),
        (botocores(503), Trouble.PASSING),
        (IsADirectoryError(), Trouble.MISSING),
        (PermissionError(errno.EACCES, "expired"), Trouble.DENIED),
        (TimeoutError(), Trouble.PASSING),
        (OSError(errno.ECONNRESET, "reset"), Trouble.PASSING),
        (OSError(errno.EBUSY, "slow down"), Trouble.PASSING),
        (OSError(errno.EINVAL, "what?"), Trouble.LASTING),
        (botocores(400, "ExpiredToken"), Trouble.DENIED),
        (BotocoreAnswered(400, "TokenRefreshRequired"), Trouble.DENIED),
        (botocores(400, "400"), Trouble.DENIED),
        (botocores(400, "RequestTimeout"), Trouble.PASSING),
        (botocores(400, "InvalidArgument"), Trouble.LASTING),
        (of_class("NoCredentialsError"), Trouble.DENIED),
        (of_class("IncompleteRead"), Trouble.PASSING),
        (ValueError("nonsense"), Trouble.LASTING),
        (OSError("Forbidden: https://host/b/o\nno access"), Trouble.DENIED),
        (of_class("RefreshError"), Trouble.DENIED),
        (of_class("TransportError"), Trouble.PASSING),
        (of_class("JSONDecodeError"), Trouble.PASSING),
        (wrapped(of_class("IncompleteReadError"), of_class("HttpResponseError")), Trouble.PASSING),
        (wrapped(ssl.SSLCertVerificationError(), of_class("TransportError")), Trouble.LASTING),
        (ValueError("Required Content-Range response header is missing"), Trouble.PASSING),
    ],
    ids=lambda value: (
        value.name
        if isinstance(value, Trouble)
        else f"{value!r}<-{value.__cause__!r} {getattr(value.__cause__, 'response', '')}"
    ),
)
def test_a_failure_is_told_by_its_status_its_number_or_its_class(error, trouble):
    assert trouble_of(error) is trouble


def test_a_cause_that_says_more_is_what_is_shown():
    answered, key = Answered(503), KeyError("a.tar")
    assert underlying(wrapped(answered)) is answered
    assert isinstance(underlying(wrapped(key)), FileNotFoundError)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("7", 7.0), ("0", 0.0), ("-3", 0.0), ("soon", None), ("inf", None), (None, None)],
)
def test_a_server_says_when_to_come_again(told, seconds):
    headers = {} if told is None else {"retry-after": told}
    assert retry_after_of(botocores(503, "SlowDown", headers)) == seconds
    answered = Answered(429)
    answered.headers = {} if told is None else {"Retry-After": told}
    assert retry_after_of(wrapped(answered)) == seconds
    assert retry_after_of(ValueError()) is None


def test_it_may_be_a_date():
    answered = Answered(429)
    answered.headers = {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"}
    assert (retry_after_of(answered) or 0) > 1e6
    answered.headers = {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}
    assert retry_after_of(answered) == 0
