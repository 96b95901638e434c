"""What does an error that was answered go on holding?

Its traceback has the frames that it passed, and they have those around them, with all their values:
mapped tars among them, which the node's cache then can't remove. Often frame and error hold each
other, so that only Python's search for cycles ends it, at some time or other (fsspec's `sync` keeps
what it raises). So whoever keeps an error, or answers one that may be kept so, lets go of frames.
"""

from __future__ import annotations

from typing import TypeVar

_E = TypeVar("_E", bound=BaseException)


def without_frames(error: _E) -> _E:
    """The error, which holds no frame any more; nor do those that it came from.

    >>> try:
    ...     int("x")
    ... except ValueError as error:
    ...     print(without_frames(error).__traceback__)
    None
    """
    left: list[BaseException] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = None
        left += [origin for origin in (each.__cause__, each.__context__) if origin is not None]
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
    return error
