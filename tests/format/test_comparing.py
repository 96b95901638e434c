"""Where two indexes first differ, and who is to blame: the shard, its index or the manifest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardloader.format.comparing import Listed, Seen, compare, first_difference
from shardloader.format.findings import FAULT
from shardloader.format.index import SampleIndex
from tests.shards import sample_members, tar_bytes


def index_of(members: list[tuple[str, bytes]]) -> SampleIndex:
    return SampleIndex.build(tar_bytes(members), shard="s")[0]


MINE = index_of(sample_members(5))
OTHER = index_of(sample_members(5, first=7))
LONGER = index_of(sample_members(6))


def listed(index: SampleIndex, **change: Any) -> Listed:
    values: dict[str, Any] = {
        "shard_bytes": index.shard_bytes,
        "num_samples": index.num_samples,
        "index_digest": index.digest,
        "content_digest": None,
    }
    return Listed(**{**values, **change})


def seen(found: SampleIndex | None, stored: SampleIndex | None, **change: Any) -> Seen:
    values: dict[str, Any] = {"name": "s", "shard_bytes": MINE.shard_bytes, "content_digest": None}
    return Seen(found=found, stored=stored, **{**values, **change})


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ((seen(MINE, MINE), listed(MINE)), []),
        ((seen(MINE, MINE), None), []),
        ((seen(MINE, None), None), []),
        ((seen(MINE, None), listed(MINE)), []),
        ((seen(None, MINE), listed(MINE)), []),
        ((seen(OTHER, MINE), listed(MINE)), ["shard_changed"]),
        ((seen(MINE, OTHER), listed(MINE)), ["index_differs"]),
        ((seen(MINE, OTHER), None), ["index_differs"]),
        ((seen(MINE, MINE), listed(OTHER)), ["unlisted_index"]),
        ((seen(MINE, None), listed(OTHER)), ["unlisted_index"]),
        ((seen(MINE, OTHER), listed(LONGER, shard_bytes=MINE.shard_bytes)),
         ["index_differs", "count_differs", "unlisted_index"]),
        ((seen(MINE, MINE), listed(MINE, num_samples=4)), ["count_differs"]),
        ((seen(MINE, MINE), listed(MINE, shard_bytes=1)), ["size_differs"]),
        ((seen(OTHER, MINE), listed(MINE, shard_bytes=1)), ["size_differs"]),
        ((seen(None, None), listed(MINE, shard_bytes=1)), ["size_differs"]),
        ((seen(MINE, MINE, content_digest="a"), listed(MINE, content_digest="a")), []),
        (
            (seen(MINE, MINE, content_digest="a"), listed(MINE, content_digest="b")),
            ["content_differs"],
        ),
        ((seen(MINE, MINE, content_digest=None), listed(MINE, content_digest="b")), []),
    ],
)  # fmt: skip
def test_the_one_that_two_others_contradict_is_to_blame(what, expected):
    findings = list(compare(*what))
    assert [finding.kind for finding in findings] == expected
    assert all(finding.level == FAULT and finding.shard == "s" for finding in findings)
    assert all(finding.told for finding in findings)


def test_the_first_sample_that_differs_is_told_by_key_and_place():
    members = sample_members(5)
    members[4] = (members[4][0], b"x" * 21)
    difference = first_difference(index_of(members), MINE)
    assert difference is not None
    assert (difference.key, difference.offset) == ("000002", 4608)
    assert "at sample 2 the index has '000002' (txt 21 bytes at 4608" in difference.told
    assert "and the shard '000002' (txt 20 bytes at 4608" in difference.told


@pytest.mark.parametrize(("stored", "found"), [(MINE, LONGER), (LONGER, MINE)])
def test_an_index_that_ends_early_differs_where_it_ends(stored, found):
    difference = first_difference(stored, found)
    assert difference is not None
    assert (difference.key, difference.offset) == ("000005", 10752)
    assert "no sample (it ends after 5)" in difference.told


def test_fields_are_compared_by_name_and_not_by_number():
    renamed = [(name.replace("txt", "aaa"), data) for name, data in sample_members(5)]
    difference = first_difference(index_of(renamed), MINE)
    assert difference is not None
    assert "(aaa 20 bytes" in difference.told
    assert first_difference(replace(MINE, fields=("cls", "txt", "zzz")), MINE) is not None
    assert first_difference(replace(MINE, shard_bytes=1 << 20), MINE) is not None


def test_empty_shards_are_equal_and_differ_from_others():
    empty = index_of([])
    assert first_difference(empty, empty) is None
    assert first_difference(empty, MINE) is not None
    assert first_difference(MINE, empty) is not None


MEMBERS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sets(st.sampled_from(["x", "y", "z"]), min_size=1)),
    max_size=5,
)


def indexed(samples: list[tuple[str, set[str]]]) -> SampleIndex:
    members = [
        (f"{number}{key}.{field}", bytes(len(field) + number))
        for number, (key, fields) in enumerate(samples)
        for field in sorted(fields)
    ]
    return index_of(members)


@given(MEMBERS, MEMBERS)
def test_indexes_differ_somewhere_exactly_if_their_digests_do(left, right):
    stored, found = indexed(left), indexed(right)
    assert (first_difference(stored, found) is None) == (stored.digest == found.digest)
    assert first_difference(found, found) is None


@given(MEMBERS, st.data())
def test_a_number_changed_anywhere_is_found_in_the_sample_it_is_of(samples, data):
    found = indexed(samples)
    assume(found.num_members)
    column = data.draw(st.sampled_from(["member_offsets", "member_sizes"]))
    at = data.draw(st.integers(0, found.num_members - 1))
    changed = getattr(found, column).copy()
    changed[at] += 1
    difference = first_difference(replace(found, **{column: changed}), found)
    assert difference is not None
    sample = int(np.searchsorted(found.sample_starts, at, side="right")) - 1
    assert difference.key == found.key(sample)
