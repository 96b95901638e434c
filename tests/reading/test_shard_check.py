"""One shard beside its index and its manifest: whatever byte is changed, that is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardloader.reading.indexing import index_dataset
from shardloader.reading.shard_check import check_shard
from shardloader.reading.source import resolve
from shardloader.reading.verifying import shards_to_check, verify_dataset
from tests.shards import write_shard

FLIPS = (0x01, 0x20, 0xFF)


@pytest.fixture
def corpus(tmp_path):
    write_shard(tmp_path / "a.tar", 3)
    index_dataset(tmp_path, digest=True)
    return tmp_path


def each_flipped(path):
    """Change each byte of a file in turn, in its place, and put it back."""
    whole = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for at, byte in enumerate(whole):
            file.seek(at)
            file.write(bytes([byte ^ FLIPS[at % len(FLIPS)]]))
            yield at
            file.seek(at)
            file.write(bytes([byte]))


def test_a_changed_byte_of_a_shard_is_found_wherever_it_lies(corpus):
    (shard,) = shards_to_check(resolve(corpus))
    for at in each_flipped(corpus / "a.tar"):
        kinds = [finding.kind for finding in check_shard(shard).findings]
        assert "content_differs" in kinds, at
    assert check_shard(shard).findings == ()


def test_without_digests_a_changed_byte_of_a_header_is_found(corpus):
    (shard,) = shards_to_check(resolve(corpus))
    assert shard.listed is not None
    without = replace(shard, listed=replace(shard.listed, content_digest=None))
    # All of each header but what ends the digits of its checksum, which is checked by nothing.
    within = {*range(512)} - {154, 155}
    header = {start + at for start in range(0, 6 * 1024, 1024) for at in within}
    for at in each_flipped(corpus / "a.tar"):
        findings = check_shard(without).findings
        if at in header:
            assert any(finding.level == "fault" for finding in findings), at


def test_a_changed_byte_of_an_index_is_found_wherever_it_lies(corpus):
    (shard,) = shards_to_check(resolve(corpus))
    for at in each_flipped(corpus / "a.tar.index"):
        kinds = {finding.kind for finding in check_shard(shard).findings}
        assert kinds, at
        assert kinds <= {"bad_index", "index_differs"}
    assert check_shard(shard).findings == ()


def test_a_changed_byte_of_a_manifest_is_found_wherever_it_lies(corpus, monkeypatch):
    monkeypatch.setattr("multiprocessing.process._current_process._config", {"daemon": True})
    size = (corpus / "manifest.json").stat().st_size
    for at in each_flipped(corpus / "manifest.json"):
        if at < size - 1:  # the last byte is a line's end
            kinds = {finding.kind for finding in verify_dataset(corpus).findings}
            # The last: where the name of that column is not what it was.
            assert kinds & {"bad_manifest", "content_differs", "no_content_digests"}, at
    assert verify_dataset(corpus).findings == ()


def test_an_index_cut_anywhere_is_found(corpus):
    (shard,) = shards_to_check(resolve(corpus))
    path = corpus / "a.tar.index"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert [finding.kind for finding in check_shard(shard).findings] == ["bad_index"], length


def test_a_shard_cut_anywhere_is_found(corpus):
    (shard,) = shards_to_check(resolve(corpus))
    path = corpus / "a.tar"
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        kinds = [finding.kind for finding in check_shard(shard).findings]
        assert "size_differs" in kinds, length
