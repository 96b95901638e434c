"""What was appended to a dataset, by which writes?

A write that is run again when it is done must not append the same once more. What each appended is
noted beside the manifest, by the fingerprint of its input and options.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

APPENDED_NAME: Final = ".shardloader-appended"


def appended_before(said: bytes, fingerprint: str) -> tuple[str, ...]:
    """Give the shards that a write appended; none of a write that is not noted.

    >>> said = with_appended(None, "f", ["shard-000003.tar"])
    >>> appended_before(said, "f"), appended_before(said, "g"), appended_before(b"?", "f")
    (('shard-000003.tar',), (), ())
    """
    return tuple(_noted(said).get(fingerprint, ()))


def with_appended(said: bytes | None, fingerprint: str, shards: Sequence[str]) -> bytes:
    """Give the note with one more write in it."""
    noted = {**_noted(said or b""), fingerprint: list(shards)}
    return (json.dumps(noted, indent=1) + "\n").encode("ascii")


def _noted(said: bytes) -> dict[str, list[str]]:
    try:
        found = json.loads(said)
    except ValueError:  # a note that can't be read says nothing
        return {}
    return found if isinstance(found, dict) else {}
