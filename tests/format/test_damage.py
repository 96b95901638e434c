"""What is kept of a damaged shard, and that the damage is remembered as it was."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from shardloader.errors import IndexFileError, ManifestError
from shardloader.format.damage import DAMAGE_KINDS, Damage
from shardloader.format.index import SampleIndex
from shardloader.format.manifest import Manifest
from tests.shards import sample_members, tar_bytes

WHOLE = tar_bytes(sample_members(4))


def test_of_a_sound_shard_all_is_kept_and_nothing_said():
    index, notices = SampleIndex.build_what_is_whole(WHOLE, shard="x.tar")
    assert index.damage is None
    assert notices == ()
    assert index.to_bytes() == SampleIndex.build(WHOLE, shard="x.tar")[0].to_bytes()


@pytest.mark.parametrize("cut", range(100, len(WHOLE), 300))
def test_of_a_cut_shard_no_member_reaches_past_the_cut(cut):
    index, notices = SampleIndex.build_what_is_whole(WHOLE[:cut], shard="x.tar")
    whole = cut // 2048
    if cut % 2048 < 512 and index.damage:  # who knows whether the last one had more members
        whole = max(0, whole - 1)
    if cut % 2048 >= 1537:  # its last byte of data is there, and only padding is cut
        whole += 1
    if cut < 2048 and cut >= 512 + 20 and index.damage is None:  # one alone, of which nobody knows
        whole = 1
    assert index.num_samples == min(4, whole)
    assert (index.member_offsets + index.member_sizes <= cut).all()
    is_told = index.damage is not None or "missing_end_of_archive" in {n.kind for n in notices}
    assert is_told or cut > 4 * 2048
    if index.damage is not None:
        assert index.damage.kind in {"truncated", "not_a_tar"}


def test_the_damage_is_in_the_index_file_and_not_in_its_digest():
    index, _ = SampleIndex.build_what_is_whole(WHOLE[:3300], shard="x.tar")
    assert index.damage == Damage(kind="truncated", offset=3072)
    read = SampleIndex.from_buffer(index.to_bytes(), name="x.index")
    assert read.damage == index.damage
    assert read.digest == index.digest == replace(index, damage=None).digest


@pytest.mark.parametrize(
    "damage", [["worse", 1], ["truncated", -1], ["truncated", True], ["truncated"], "truncated", 3]
)
def test_damage_that_makes_no_sense_is_refused_in_either_file(damage):
    with pytest.raises(ValueError, match="damage"):
        Damage.from_list(damage)
    index, _ = SampleIndex.build_what_is_whole(WHOLE[:3300], shard="x.tar")
    told, wrong = (
        json.dumps(each, separators=(",", ":")) for each in (["truncated", 3072], damage)
    )
    data = index.to_bytes()
    place = data.index(told.replace('"', '\\"').encode())
    patched = bytearray(data)
    filler = wrong.replace('"', '\\"').encode()
    room = len(told.replace('"', '\\"'))
    if len(filler) <= room:
        patched[place : place + room] = filler.ljust(room)
        with pytest.raises(IndexFileError, match="metadata can't be read"):
            SampleIndex.from_buffer(patched, name="x.index")


def manifest_of(damage):
    return Manifest(
        names=("a.tar", "b.tar"),
        sizes=np.array([3300, 10240]),
        counts=np.array([1, 4]),
        index_digests=("0" * 32, "1" * 32),
        damage=damage,
    )


def test_a_manifest_keeps_damage_beside_its_identity():
    sound = manifest_of(())
    damaged = manifest_of(((0, Damage(kind="truncated", offset=3072)),))
    assert damaged.digest == sound.digest
    read = Manifest.from_json_bytes(damaged.to_json_bytes(), name="manifest.json")
    assert read.damage == damaged.damage
    assert b"damage" not in sound.to_json_bytes()


@pytest.mark.parametrize(
    "listed",
    [
        [[2, "truncated", 0]],
        [[-1, "truncated", 0]],
        [[1, "truncated", 0], [0, "truncated", 0]],
        [[0, "truncated", 0], [0, "truncated", 0]],
        [[0.0, "truncated", 0]],
        [[0, "worse", 0]],
        [[0, "truncated"]],
        [[]],
        [0],
        "truncated",
        {"0": 1},
        None,
    ],
)
def test_a_manifest_with_damage_that_makes_no_sense_is_refused(listed):
    document = json.loads(manifest_of(()).to_json_bytes())
    document["shards"]["damage"] = listed
    with pytest.raises(ManifestError, match=r"manifest\.json: .*damage"):
        Manifest.from_json_bytes(json.dumps(document).encode(), name="manifest.json")


def test_each_kind_of_damage_has_words():
    for kind in DAMAGE_KINDS:
        assert DAMAGE_KINDS[kind] in str(Damage(kind=kind, offset=0))
