"""What is left of a damaged shard, and how is the damage remembered?

By default a damaged shard is an error. Where it is to be skipped, what is whole before the damage
is indexed, and index and manifest keep where it was cut and why: all ranks then see the same
samples, and a later run that is not to skip still refuses the shard. The damage is in no digest:
the samples say by themselves what was kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from shardloader.errors import ShardError
from shardloader.format.notices import ERROR_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardloader.format.notices import Notice

Item = TypeVar("Item")

UNREADABLE: Final = "unreadable"

DAMAGE_KINDS: Final = {
    **ERROR_KINDS,
    UNREADABLE: "the file was not there, or could not be opened",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Why a shard was cut when it was indexed, and the byte at which that was noticed.

    kind: a word of DAMAGE_KINDS. Raises ValueError for what is none.
    """

    kind: str
    offset: int

    def __post_init__(self) -> None:
        if type(self.kind) is not str or self.kind not in DAMAGE_KINDS:
            raise ValueError(f"a kind of damage is one of {', '.join(DAMAGE_KINDS)}")
        if type(self.offset) is not int or not 0 <= self.offset < 2**63:
            raise ValueError("damage is noticed at a byte of the shard")

    def __str__(self) -> str:
        return f"{DAMAGE_KINDS[self.kind]} ({self.kind}; offset {self.offset})"

    def to_list(self) -> list[Any]:
        """`[kind, offset]`, as files hold it."""
        return [self.kind, self.offset]

    @classmethod
    def from_list(cls, values: Any) -> Self:
        """The damage of `[kind, offset]`; raises ValueError for anything else."""
        if not isinstance(values, list) or len(values) != 2:
            raise ValueError("damage is a kind and an offset")
        return cls(kind=values[0], offset=values[1])

    @classmethod
    def of(cls, error: ShardError | None) -> Self:
        """The damage that reading a shard ended in; raises an error that is of another kind."""
        if error is None:
            raise AssertionError
        if error.kind not in ERROR_KINDS:
            raise error
        return cls(kind=error.kind, offset=error.offset or 0)


def has_no_end(notices: Iterable[Notice]) -> bool:
    """Whether an archive's end marker is missing."""
    return any(notice.kind == "missing_end_of_archive" for notice in notices)


class UpToDamage(Generic[Item]):
    """Items up to the first that raises ShardError, and then `error`, None if none did."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = items
        self.error: ShardError | None = None

    def __iter__(self) -> Iterator[Item]:
        try:
            yield from self._items
        except ShardError as error:
            self.error = error
