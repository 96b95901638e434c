"""What can be wrong with a shard, in single words?

Two tables and the collector that scanning fills. An *error* ends a scan; a *notice* does not. Some
notices are warnings, to be logged once a shard; the others only describe it.
"""

from __future__ import annotations

from dataclasses import dataclass

ERROR_KINDS: dict[str, str] = {
    "not_a_tar": "the file does not begin with a tar header",
    "empty_file": "the file has 0 bytes, which is no tar archive (an empty one has 1024)",
    "bad_header": "a header in the archive is damaged",
    "truncated": "the file ends before what a header announces",
    "unsupported_member": "a member is of a kind that this release does not read",
    "duplicate_field": "one sample has a field twice",
    "bad_compression": "the compressed stream is damaged, or something follows its end",
    "unsupported_compression": "the compressed stream is of a kind that this release does not read",
    "expands_too_far": "the compressed stream stands for more bytes than are allowed",
    "checksum_mismatch": "the bytes are not those that their checksum was made of",
}

WARNING_KINDS: dict[str, str] = {
    "missing_end_of_archive": "no end-of-archive marker: the shard may have been cut short",
    "data_after_end": "bytes follow the end-of-archive marker: what lies there is not read",
    "empty_shard": "no samples: the archive is empty",
    "no_samples_in_nonempty_shard": "no samples, though there are files: none has an extension",
    "key_reappears": "a key comes back after another one: its sample is read in parts",
}

LINT_KINDS: dict[str, str] = {
    "non_adjacent_sample": "the members of one key do not lie next to each other",
    "duplicate_key": "two samples have the same key",
    "member_without_extension": "a file is no field, having no extension or no key before it",
    "special_member": "a link, device or other special member was skipped",
    "unsafe_path": "a key is absolute or climbs out of its folder; it is only ever used as text",
    "suspicious_dotted_key": "a key seems to hold a dot: the key ends at the first dot",
}

NOTICE_KINDS: dict[str, str] = {**WARNING_KINDS, **LINT_KINDS}


@dataclass(frozen=True, slots=True)
class Notice:
    """One kind of remark about a shard: where it was first met, and how often.

    `kind` is a word of `NOTICE_KINDS`, `offset` the byte of the first occurrence, `detail` what
    was seen there.
    """

    kind: str
    offset: int
    detail: str
    count: int = 1

    def __str__(self) -> str:
        times = f", {self.count} times" if self.count > 1 else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{NOTICE_KINDS[self.kind]} ({self.kind}{times}; offset {self.offset}{detail})"

    @property
    def is_warning(self) -> bool:
        """Whether to log it, not only to list it."""
        return self.kind in WARNING_KINDS


class Notices:
    """Collect notices: one a kind, so that a million occurrences take no memory."""

    def __init__(self) -> None:
        self._seen: dict[str, Notice] = {}

    def add(self, kind: str, offset: int, detail: str = "") -> None:
        """Note an occurrence; only the first one's place and detail are kept."""
        first = self._seen.get(kind)
        if first is None:
            self._seen[kind] = Notice(kind, offset, detail)
        else:
            self._seen[kind] = Notice(kind, first.offset, first.detail, first.count + 1)

    def freeze(self) -> tuple[Notice, ...]:
        """Give what was noted, in the order of first occurrence."""
        return tuple(self._seen.values())
