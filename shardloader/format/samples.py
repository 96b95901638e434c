"""Which members make a sample?

WebDataset's conventions: the key is a member's path up to the first dot
of its base name, the field is the rest, lower-cased; adjacent members with one key are a sample.
Members without an extension, folders and special members are skipped and do not end a sample.
Names whose first path component is `__...__` without an extension hold a dataset's own notes and
are skipped too. A key is text: nobody uses it as a file's path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from shardloader.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardloader.format.notices import Notices
    from shardloader.format.tar import Member

FieldSlice: TypeAlias = tuple[str, int, int]
"""A field's name, where its data begins in the shard, and its size, both in bytes."""

GroupedSample: TypeAlias = tuple[str, list[FieldSlice]]
"""A key and the fields of its sample, in the shard's order."""


def split_name(name: str) -> tuple[str, str] | None:
    """Give a member's key and field; None when it is no field.

    >>> split_name("train.v1/a/000.Seg.PNG")
    ('train.v1/a/000', 'seg.png')
    >>> split_name("train.v1/README"), split_name(".hidden"), split_name("__meta__/a.json")
    (None, None, None)
    """
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot <= base or dot == len(name) - 1 or is_reserved(name):
        return None
    return name[:dot], name[dot + 1 :].lower()


def is_reserved(name: str) -> bool:
    """Whether the first path component is `__...__`, which holds no samples.

    >>> is_reserved("__meta__/x.json"), is_reserved("__manifest__"), is_reserved("__index__.json")
    (True, True, False)
    """
    if not name.startswith("__"):
        return False
    first = name.partition("/")[0]
    return len(first) >= 4 and first.endswith("__")


def group(members: Iterable[Member], *, shard: str, notices: Notices) -> Iterator[GroupedSample]:
    """Yield the samples that the members make, in order.

    What the members' iterator raises passes through, and then the sample it interrupted is held
    back: nothing partial comes out. Raises ShardError "duplicate_field" for a field that a sample
    has twice (also when two names differ in case only).
    """
    grouping = _Grouping(shard, notices)
    for member in members:
        finished = grouping.take(member)
        if finished is not None:
            yield finished
    finished = grouping.finish()
    if finished is not None:
        yield finished
    grouping.report_emptiness()


class _Grouping:
    def __init__(self, shard: str, notices: Notices) -> None:
        self.shard = shard
        self.notices = notices
        self.key: str | None = None
        self.fields: list[FieldSlice] = []
        self.names: set[str] = set()
        self.keys_seen: set[str] = set()
        self.known_fields: set[str] = set()
        self.any_file = False

    def take(self, member: Member) -> GroupedSample | None:
        """Add a member; give the sample that it ended, if it ended one."""
        if member.kind != "file":
            if member.kind == "special":
                self.notices.add("special_member", member.header_offset, repr(member.name))
            return None
        self.any_file = True
        parts = split_name(member.name)
        if parts is None:
            if not is_reserved(member.name):
                self.notices.add(
                    "member_without_extension", member.header_offset, repr(member.name)
                )
            return None
        key, field = parts
        finished = None
        if key != self.key:
            finished = self.finish()
            self._begin(key, member)
        self._add(field, member)
        return finished

    def finish(self) -> GroupedSample | None:
        if self.key is None:
            return None
        finished = (self.key, self.fields)
        self.key = None
        return finished

    def report_emptiness(self) -> None:
        if not self.keys_seen:
            kind = "no_samples_in_nonempty_shard" if self.any_file else "empty_shard"
            self.notices.add(kind, 0)

    def _begin(self, key: str, member: Member) -> None:
        if key in self.keys_seen:
            for kind in ("key_reappears", "non_adjacent_sample", "duplicate_key"):
                self.notices.add(kind, member.header_offset, f"key {key!r} was seen before")
        if _is_unsafe(key):
            self.notices.add("unsafe_path", member.header_offset, repr(key))
        self.keys_seen.add(key)
        self.key = key
        self.fields = []
        self.names = set()

    def _add(self, field: str, member: Member) -> None:
        if field in self.names:
            raise ShardError(
                f"{self.shard}: a sample has each field once; the key {self.key!r} has the field "
                f"{field!r} a second time, in the member {member.name!r} at byte "
                f"{member.header_offset} (fields are lower-cased): give one of them another name",
                kind="duplicate_field",
                offset=member.header_offset,
            )
        self.names.add(field)
        self.fields.append((field, member.data_offset, member.size))
        if field not in self.known_fields:
            self.known_fields.add(field)
            if seems_to_hold_a_key(field):
                self.notices.add(
                    "suspicious_dotted_key",
                    member.header_offset,
                    f"key {self.key!r}, field {field!r}",
                )


def _is_unsafe(key: str) -> bool:
    return key.startswith(("/", "../")) or "/../" in key or "\\" in key


def seems_to_hold_a_key(field: str) -> bool:
    """Whether what precedes the last dot looks like a key's rest, as in `1.5.jpg`."""
    stem, dot, _ = field.rpartition(".")
    return bool(dot) and (stem[:1].isdigit() or " " in stem)
