"""What on_error stands for, what is bad, and how much of it is too much."""

from __future__ import annotations

import errno
import pickle

import numpy as np
import pytest

import shardloader as sl
from shardloader.dataset.skipping import (
    Fault,
    RefusedSampleError,
    Skip,
    Watch,
    check_damage,
    checked_on_error,
    loading_kind,
    told,
    transform_kind,
)
from shardloader.format.damage import Damage


def test_skip_is_skip_with_its_defaults():
    assert checked_on_error("raise") is None
    assert checked_on_error("skip") == Skip() == Skip(max_share=0.01, min_samples=1000)
    assert checked_on_error(Skip(max_share=1)) == Skip(max_share=1.0)
    assert pickle.loads(pickle.dumps(Skip(max_share=0.5))) == Skip(max_share=0.5)


@pytest.mark.parametrize(
    "options",
    [
        {"max_share": 0},
        {"max_share": 1.1},
        {"max_share": -0.1},
        {"max_share": float("nan")},
        {"max_share": True},
        {"max_share": "0.1"},
        {"min_samples": 0},
        {"min_samples": 1.5},
    ],
)
def test_a_limit_that_is_none_is_refused(options):
    with pytest.raises(sl.UsageError, match="Skip"):
        Skip(**options)


@pytest.mark.parametrize(
    ("bad", "of", "is_too_much"), [(1, 99, False), (1, 100, False), (2, 100, True), (2, 200, False)]
)
def test_more_than_the_share_after_the_least_number_is_too_much(bad, of, is_too_much):
    assert Skip(max_share=0.01, min_samples=100).is_exceeded(bad=bad, of=of) is is_too_much


def world_error(number):
    error = sl.WorldError("x.tar: the file can't be read")
    error.__cause__ = OSError(number, "why")
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (sl.DecodeError("x"), "decode"),
        (sl.SampleError("x"), "field"),
        (sl.ShardError("x"), "shard"),
        (sl.ManifestError("x"), "shard"),
        (sl.IndexFileError("x"), "shard"),
        (world_error(errno.ENOENT), "shard"),
        (world_error(errno.EIO), "shard"),
        (world_error(errno.EMFILE), None),
        (world_error(errno.ENOMEM), None),
        (sl.CacheError("x"), None),
        (sl.UsageError("x"), None),
        (sl.MissingExtraError("x"), None),
    ],
)
def test_what_the_data_is_to_blame_for_is_bad_and_nothing_else(error, kind):
    assert loading_kind(error) == kind


def test_a_transform_may_fail_in_any_way_but_by_wrong_use_or_for_want_of_memory():
    assert transform_kind(KeyError("label")) == "transform"
    assert transform_kind(sl.DecodeError("of its own")) == "transform"
    assert transform_kind(RefusedSampleError("no")) == "refused"
    assert transform_kind(sl.UsageError("reseed")) is None
    assert transform_kind(MemoryError()) is None


def test_an_error_is_told_in_one_line_with_its_type_and_its_place():
    error = KeyError("label")
    error.add_note("in transform= of the sample with the key 'x'")
    assert told(error) == "KeyError: 'label' in transform= of the sample with the key 'x'"
    assert len(told(sl.DecodeError("x" * 1000))) == 500


def fault(number, kind="decode"):
    return Fault(
        at=0,
        kind=kind,
        shard=0,
        index=number,
        number=0,
        key=None,
        field=None,
        offset=None,
        message=f"sample {number}",
    )


def test_the_watch_names_the_first_few_of_too_many():
    watch = Watch(Skip(max_share=0.1, min_samples=20), ["a.tar"])
    watch.take(10, [fault(number) for number in range(6)])
    watch.take(9, [fault(9, "refused")])
    with pytest.raises(sl.DataError) as raised:
        watch.take(1, [fault(7, "transform")])
    message = str(raised.value)
    assert "7 of 20 are: 6 decode, 1 transform" in message
    assert "sample 0 | sample 1 | sample 2 | sample 3 | sample 4. " in message


def manifest_of(counts, damaged):
    return sl.Manifest(
        names=tuple(f"{number}.tar" for number in range(len(counts))),
        sizes=np.full(len(counts), 10240),
        counts=np.array(counts),
        index_digests=("0" * 32,) * len(counts),
        damage=tuple((number, Damage(kind="truncated", offset=512)) for number in damaged),
    )


def test_damaged_shards_are_taken_to_have_had_what_whole_ones_have():
    skip = Skip(max_share=0.1)
    check_damage(skip, manifest_of([500, 500, 450], [2]))  # 50 of 1500
    check_damage(skip, manifest_of([400, 400, 0], []))
    check_damage(skip, manifest_of([5, 0], [1]))  # too few to judge
    check_damage(skip, manifest_of([0, 3], [0, 1]))  # nobody knows
    with pytest.raises(sl.DataError, match="about 400 of 1500 are lost in 1 damaged shards: 1 tru"):
        check_damage(skip, manifest_of([500, 500, 100], [2]))
