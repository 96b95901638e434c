"""Which paths does a brace pattern stand for?

`{000..127}` counts (with leading zeros, when an end is written with them; `{0..10..2}` by twos),
`{a,b}` chooses, `::` puts patterns one after the other. What is neither is literal. This module
touches no files, and a path is text: no character in it but these has a meaning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import islice, product
from typing import TYPE_CHECKING, TypeGuard
from urllib.parse import unquote

from shardloader.errors import UsageError
from shardloader.format.urls import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_NAMES = 10_000_000

_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(-?\d{1,18}))?")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def expand(pattern: str) -> list[str]:
    """Give the paths of a pattern, in order. Raises UsageError for more than ten million.

    >>> expand("a-{08..10}.tar::b-{x,y}.tar")
    ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-x.tar', 'b-y.tar']
    """
    names: list[str] = []
    for part in pattern.split("::"):
        names.extend(islice(_expand(part), MAX_NAMES + 1 - len(names)))
        if len(names) > MAX_NAMES:
            raise UsageError(
                f"a pattern stands for at most {MAX_NAMES} shards, and "
                f"{without_secrets(pattern)!r} for more: give the folder, whose manifest lists them"
            )
    return names


def local_path(text: str) -> str:
    """Give the path that a user's text means: itself, or what follows `file://`.

    Raises UsageError for the URL of a remote store, and for an empty text.

    >>> local_path("c%20d#1.tar"), local_path("file:///data/c%20d.tar")
    ('c%20d#1.tar', '/data/c d.tar')
    """
    if not text:
        raise UsageError("a path is not empty, and here is one that is: give a folder or a shard")
    match = _URL.match(text)
    if match is None:
        return text
    if match.group().lower() == "file://":
        return unquote(text[match.end() :]).removeprefix("localhost")
    raise UsageError(
        f"here local files are read, and {without_secrets(text)!r} is a URL: copy the shards to a "
        "local or mounted folder and give its path"
    )


def is_url(text: object) -> TypeGuard[str]:
    """Whether a text begins as the URL of a remote store.

    >>> is_url("s3://bucket/corpus"), is_url("file:///data"), is_url("u:v.tar")
    (True, False, False)
    """
    match = _URL.match(text) if isinstance(text, str) else None
    return match is not None and match.group().lower() != "file://"


def is_remote(source: object) -> bool:
    """Whether a source is of a remote store: a URL, a pattern of URLs, or a list with one in it.

    >>> is_remote("s3://b/{0..9}.tar"), is_remote(["s3://b/0.tar"]), is_remote(["0.tar"])
    (True, True, False)
    """
    if isinstance(source, str | os.PathLike):
        return is_url(source)
    return isinstance(source, Sequence) and any(map(is_url, source))


def _expand(pattern: str) -> Iterator[str]:
    """Yield what one pattern stands for: the product of its groups, the last one fastest."""
    pieces: list[Sequence[str]] = []
    position = 0
    while (group := _next_group(pattern, position)) is not None:
        start, stop = group
        choices = _choices(pattern[start + 1 : stop - 1])
        if choices is None:
            pieces.append((pattern[position : start + 1],))
            position = start + 1
            continue
        pieces.append((pattern[position:start],))
        pieces.append(choices)
        position = stop
    pieces.append((pattern[position:],))
    for combination in product(*pieces):
        yield "".join(combination)


def _next_group(pattern: str, position: int) -> tuple[int, int] | None:
    """Find the next balanced pair of braces, as a half-open range; an unclosed one is literal."""
    while (start := pattern.find("{", position)) >= 0:
        depth = 0
        for place in range(start, len(pattern)):
            depth += (pattern[place] == "{") - (pattern[place] == "}")
            if depth == 0:
                return start, place + 1
        position = start + 1
    return None


def _choices(inside: str) -> list[str] | None:
    """Give what a group stands for; None when it is literal."""
    counted = _RANGE.fullmatch(inside)
    if counted is not None:
        return _count(*counted.groups())
    parts = _split_at_commas(inside)
    if len(parts) < 2:
        return None
    return [name for part in parts for name in _expand(part)]


def _count(first: str, last: str, by: str | None) -> list[str]:
    start, stop = int(first), int(last)
    step = abs(int(by or 1)) or 1
    if abs(stop - start) // step >= MAX_NAMES:
        raise UsageError(
            f"a pattern stands for at most {MAX_NAMES} shards, and {{{first}..{last}}} counts to "
            "more: give the folder, whose manifest lists them"
        )
    padded = any(
        end.lstrip("-").startswith("0") and len(end.lstrip("-")) > 1 for end in (first, last)
    )
    width = max(len(first), len(last)) if padded else 0
    direction = 1 if stop >= start else -1
    return [f"{number:0{width}d}" for number in range(start, stop + direction, direction * step)]


def _split_at_commas(inside: str) -> list[str]:
    """Split at the commas that lie in no inner group."""
    parts = [""]
    depth = 0
    for character in inside:
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
