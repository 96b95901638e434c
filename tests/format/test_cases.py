"""What users reported about odd tars: every case's expectations, by index and by scan."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from shardloader.errors import ShardError
from shardloader.format.index import SampleIndex
from shardloader.format.samples import group
from shardloader.format.tar import NOTICE_KINDS, WARNING_KINDS, Notices, scan
from shardloader.format.unpacking import tar_pieces
from shardloader.reading.shard import Shard
from tests.shards import tarfile_members, webdataset_samples

CASES = Path(__file__).parent.parent / "cases"
COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"P*M\x18")


def cases(*, compressed: bool) -> list[Any]:
    found = []
    for path in sorted(CASES.glob("*.json")):
        case = json.loads(path.read_text())
        first = (CASES / case["files"][0]).read_bytes()
        if first.startswith(COMPRESSED) == compressed:
            found.append(pytest.param(case, id=case["name"]))
    return found


def is_sound(case: Any) -> bool:
    """Whether tarfile reads it all; it ends a damaged archive in silence."""
    return case.values[0]["error"] is None and not case.id.startswith("cut_")


def seen(data: Any) -> dict[str, Any]:
    return {"size": len(data), "sha256": sha256(data).hexdigest()}


def unpacked(read: Any) -> Any:
    """`read` of the tar that is in a shard, which comes in small pieces."""

    def read_unpacked(shard: bytes, name: str) -> dict[str, Any]:
        pieces = [shard[start : start + 1000] for start in range(0, len(shard), 1000)]
        try:
            tar = b"".join(tar_pieces(pieces, shard=name))
        except ShardError as error:
            return {"samples": [], "error": error, "notices": set()}
        outcome: dict[str, Any] = read(tar, name)
        return outcome

    return read_unpacked


def by_scan(shard: bytes, name: str) -> dict[str, Any]:
    samples, notices, error = [], Notices(), None
    try:
        for key, fields in group(
            scan(shard, shard=name, notices=notices), shard=name, notices=notices
        ):
            places = {field: seen(shard[start : start + size]) for field, start, size in fields}
            samples.append({"__key__": key, "fields": places})
    except ShardError as caught:
        error = caught
    return {"samples": samples, "error": error, "notices": {n.kind for n in notices.freeze()}}


def by_index(shard: bytes, name: str) -> dict[str, Any]:
    built, notices = SampleIndex.build(shard, shard=name)
    index = SampleIndex.from_buffer(built.to_bytes(), name="index")
    with Shard(memoryview(shard), index, name=name) as opened:
        samples = [
            {
                "__key__": opened.key(number),
                "fields": {field: seen(data) for field, data in opened.fields(number).items()},
            }
            for number in range(opened.num_samples)
        ]
    return {"samples": samples, "error": None, "notices": {notice.kind for notice in notices}}


def read_all(case: dict[str, Any], read: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {"samples": [], "error": None, "notices": set()}
    for name in case["files"]:
        one = read((CASES / name).read_bytes(), name)
        whole["samples"] += one["samples"]
        whole["notices"] |= one["notices"]
        whole["error"] = one["error"]
        if one["error"]:
            break
    return whole


def is_right(
    outcome: dict[str, Any],
    right: dict[str, Any],
    *,
    last_optional: bool = False,
    prefix_ok: bool = False,
) -> bool:
    expected = [right["samples"]]
    if last_optional:
        expected.append(right["samples"][:-1])
    if prefix_ok and right["error"]:
        expected += [right["samples"][:length] for length in range(len(right["samples"]))]
    kind = right["error"] and right["error"]["kind"]
    found = outcome["error"] and outcome["error"].kind
    warned = {notice for notice in outcome["notices"] if notice in WARNING_KINDS}
    return outcome["samples"] in expected and found == kind and warned >= set(right["warnings"])


@pytest.mark.parametrize("case", cases(compressed=False))
def test_a_shard_gives_the_samples_or_the_error_that_are_due(case):
    outcome = read_all(case, by_scan)
    assert any(
        is_right(outcome, right, last_optional=case["last_group_optional"])
        for right in (case, *case["accept_also"])
    ), outcome
    assert outcome["error"] is None or case["files"][0] in str(outcome["error"])


@pytest.mark.parametrize("case", cases(compressed=False))
def test_notices_are_those_that_are_due(case):
    outcome = read_all(case, by_scan)
    assert outcome["notices"] <= set(NOTICE_KINDS)
    if outcome["error"] is None:
        assert outcome["notices"] >= set(case["lint"])
        assert outcome["notices"] <= set(case["lint"]) | set(case["warnings"])


@pytest.mark.parametrize("case", cases(compressed=False))
def test_index_and_scan_agree(case):
    scanned = read_all(case, by_scan)
    if scanned["error"] is None:
        assert read_all(case, by_index) == scanned
        return
    with pytest.raises(ShardError) as caught:
        read_all(case, by_index)
    assert str(caught.value) == str(scanned["error"])
    assert caught.value.kind == scanned["error"].kind


@pytest.mark.parametrize("case", [case for case in cases(compressed=False) if is_sound(case)])
def test_sound_archives_read_as_the_standard_library_reads_them(case):
    expected = [
        {"__key__": key, "fields": {field: seen(data) for field, data in fields.items()}}
        for name in case["files"]
        for key, fields in webdataset_samples(tarfile_members((CASES / name).read_bytes()))
    ]
    assert read_all(case, by_scan)["samples"] == expected


@pytest.mark.parametrize("case", cases(compressed=True))
@pytest.mark.parametrize("read", [by_scan, by_index])
def test_a_compressed_shard_gives_the_samples_or_the_error_that_are_due(case, read):
    outcome = read_all(case, unpacked(read))
    assert any(
        is_right(outcome, right, prefix_ok=case["prefix_ok"])
        for right in (case, *case["accept_also"])
    ), outcome
    error = outcome["error"]
    if error is not None:
        assert case["files"][0] in str(error)
        assert f"byte {error.offset}" in str(error)
    assert outcome["notices"] == set()


def test_no_compressed_case_is_left_out():
    names = {case.id for case in (*cases(compressed=True), *cases(compressed=False))}
    assert len([name for name in names if name.startswith(("gz_", "zst_"))]) == 18
    assert "tar_content_gz_name" in names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("html_error_page", ["HTML", "<!DOCTYPE"]),
        ("xml_error_short", ["XML", "<?xml"]),
        ("git_lfs_pointer", ["git lfs pull"]),
        ("bad_checksum_mid", ["byte 7168"]),
        ("huge_size_then_eof", ["001.bin", "9663676416"]),
        ("cut_in_data", ["002.json", "byte 9216"]),
    ],
)
def test_a_message_says_what_was_met_and_where(name, words):
    error = by_scan((CASES / f"{name}.tar").read_bytes(), f"{name}.tar")["error"]
    assert all(word in str(error) for word in [*words, f"{name}.tar"])
