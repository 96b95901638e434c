"""What can be wrong with a dataset, how bad is it, and what mends it?

A finding is one row of what `verify` says: one kind in one shard, however often it occurs. The
table below gives each kind its level, and the words for what mends it. The kinds of
`shardloader.format.notices` are part of it: a shard's own errors and oddities.

A *fault* means that samples are lost, cut, or not those that were indexed. A *warning* means that
they may be; a *remark* describes a shard that reads as it should.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardloader.format.notices import NOTICE_KINDS, Notice

FAULT: Final = "fault"
WARNING: Final = "warning"
REMARK: Final = "remark"
LEVELS: Final = (FAULT, WARNING, REMARK)

MAX_CHARACTERS: Final = 1000  # of a text in a finding

_FETCH = "fetch the shard anew"
_WRITE = "shardloader write (unpack the shard and pack it anew)"
_FETCH_OR_WRITE = f"{_FETCH}, or {_WRITE}"
# Unpacking a damaged shard would give its cut file as if it were whole.
_FETCH_OR_WHOLE = f"{_FETCH}, or shardloader write --on-error skip, for what is whole before that"
_INDEX = "shardloader index"
_FORCE = "shardloader index --force"
_FETCH_OR_FORCE = f"{_FETCH}; if it is meant to have changed, {_FORCE}"

# kind: level, what mends it
KINDS: Final[dict[str, tuple[str, str]]] = {
    # of a shard's bytes
    "not_a_tar": (FAULT, _FETCH),
    "bad_compression": (FAULT, _FETCH),
    "unsupported_compression": (FAULT, "decompress the shard, or compress it anew by gzip or zstd"),
    "expands_too_far": (FAULT, "if it is meant so, verify with a larger --max-expansion"),
    "empty_file": (FAULT, _FETCH),
    "bad_header": (FAULT, _FETCH_OR_WHOLE),
    "truncated": (FAULT, _FETCH_OR_WHOLE),
    "unsupported_member": (FAULT, _WRITE),
    "duplicate_field": (FAULT, f"{_WRITE}, with another name for one of the fields"),
    "checksum_mismatch": (FAULT, _FETCH),
    "shard_error": (FAULT, _FETCH_OR_WHOLE),
    "missing_end_of_archive": (WARNING, f"compare it with its source: {_FETCH_OR_WRITE}"),
    "data_after_end": (WARNING, _WRITE),
    "empty_shard": (WARNING, f"remove the shard, then {_INDEX}"),
    "no_samples_in_nonempty_shard": (WARNING, f"{_WRITE}, with extensions"),
    "key_reappears": (FAULT, _WRITE),
    "non_adjacent_sample": (FAULT, _WRITE),
    "duplicate_key": (FAULT, _WRITE),
    "member_without_extension": (REMARK, "nothing, if it is no sample's; else give it one"),
    "special_member": (REMARK, f"nothing, if it is no sample's; else {_WRITE}"),
    "unsafe_path": (REMARK, "nothing here; do not unpack the shard unseen"),
    "suspicious_dotted_key": (REMARK, f"nothing, if that is meant; else {_WRITE}, with _ for ."),
    # of a shard beside its index and the manifest
    "missing_shard": (FAULT, f"{_FETCH}; if it is meant to be gone, {_INDEX}"),
    "unreadable_shard": (FAULT, "look at the disk and the file's permissions"),
    "unlisted_shard": (FAULT, _INDEX),
    "size_differs": (FAULT, _FETCH_OR_FORCE),
    "shard_changed": (FAULT, _FETCH_OR_FORCE),
    "content_differs": (FAULT, f"{_FETCH}; if it is meant to have changed, {_FORCE} --digest"),
    "count_differs": (FAULT, _FORCE),
    "missing_index": (FAULT, _INDEX),
    "bad_index": (FAULT, _FORCE),
    "index_differs": (FAULT, _FORCE),
    "unlisted_index": (FAULT, _FETCH_OR_FORCE),
    "undecodable": (FAULT, f"{_FETCH}; if it was written so, {_WRITE}, or give it a decoder"),
    "worker_killed": (FAULT, "look at the disk and at memory, then verify this shard alone"),
    # of the dataset
    "bad_manifest": (FAULT, _INDEX),
    "unfinished_writer": (FAULT, "the same shardloader write again, or another with --overwrite"),
    "no_manifest": (REMARK, _INDEX),
    "no_indexes": (REMARK, _INDEX),
    "no_content_digests": (REMARK, f"{_INDEX} --digest"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One kind of trouble in one shard, or (`shard` None) in the dataset.

    `place` is the key, member or field where it was first met, and `offset` the byte; `told` says
    what was expected and what was found; `times` counts the occurrences. Long texts (a key may
    have a megabyte) are shortened in their middle.
    """

    kind: str
    told: str
    shard: str | None = None
    place: str | None = None
    offset: int | None = None
    times: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "told", _shortened(self.told))
        if self.place is not None:
            object.__setattr__(self, "place", _shortened(self.place))

    @property
    def level(self) -> str:
        """One of LEVELS."""
        return KINDS[self.kind][0]

    @property
    def mend(self) -> str:
        """What mends it."""
        return KINDS[self.kind][1]


def _shortened(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]} [...] {text[-half:]}"


def of_notice(notice: Notice, shard: str) -> Finding:
    """Give the finding that a notice is."""
    return Finding(
        kind=notice.kind,
        shard=shard,
        place=notice.detail or None,
        offset=notice.offset,
        told=NOTICE_KINDS[notice.kind],
        times=notice.count,
    )
