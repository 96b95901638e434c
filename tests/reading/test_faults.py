"""What a failed request means, whatever the backend raised."""

from __future__ import annotations

import errno

import pytest

from shardloader.reading.faults import Trouble, trouble_of, underlying


class Answered(Exception):  # noqa: N818 - as aiohttp's, which may not be installed
    def __init__(self, status):
        super().__init__(status)
        self.status = status


class BotocoreAnswered(Exception):  # noqa: N818
    def __init__(self, status):
        super().__init__(status)
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


def wrapped(cause, error=None):
    error = error or FileNotFoundError("a.tar")
    error.__cause__ = cause
    return error


def botocores(status):
    """As s3fs raises it: an error of the system, whose cause has the answer."""
    return wrapped(BotocoreAnswered(status), OSError(errno.EINVAL, "the range is not satisfiable"))


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
        (type("IncompleteRead", (Exception,), {})(), Trouble.PASSING),
        (ValueError("nonsense"), Trouble.LASTING),
    ],
    ids=lambda value: (
        value.name if isinstance(value, Trouble) else f"{value!r}<-{value.__cause__!r}"
    ),
)
def test_a_failure_is_told_by_its_status_its_number_or_its_class(error, trouble):
    assert trouble_of(error) is trouble


def test_a_cause_that_says_more_is_what_is_shown():
    answered, key = Answered(503), KeyError("a.tar")
    assert underlying(wrapped(answered)) is answered
    assert isinstance(underlying(wrapped(key)), FileNotFoundError)
