"""What comes of a remote shard is what the manifest lists, or an error."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from shardloader.errors import ManifestError, ShardError
from shardloader.reading.content import content_digest
from shardloader.reading.diary import Diary
from shardloader.reading.remote import FileStatus
from shardloader.reading.remote_shard import RemoteShard
from tests.shards import sample_members, tar_bytes

TAR = tar_bytes(sample_members(3))


@dataclass
class FakeFile:
    """A file whose store says what it is told to. said: its size, None for a store that is mute."""

    content: bytes
    said: int | None = None
    name: str = "fake://c/0.tar"
    identity: str = "fake://c/0.tar"
    diary: Diary = field(default_factory=Diary)

    def status(self):
        return FileStatus(size=self.said, version="1")

    def read(self, start, stop):
        return self.content[start:stop]

    def pieces(self, *, size, start, stop, all_asked):
        assert (start, stop, all_asked) == (0, size, None)
        yield from (self.content[at : at + 1000] for at in range(0, len(self.content), 1000))


def shard(file, digest=None):
    return RemoteShard(file=file, file_bytes=len(TAR), content_digest=digest)


def test_a_file_of_the_size_and_the_digest_listed_is_given():
    origin = shard(FakeFile(TAR, len(TAR)), content_digest(memoryview(TAR)))
    assert origin.version() == "1"
    assert b"".join(origin.pieces()) == TAR


@pytest.mark.parametrize("content", [TAR[:2000], TAR + bytes(512), b""])
def test_another_length_is_noticed_where_the_store_tells_no_size(content):
    origin = shard(FakeFile(content))
    assert origin.version() == "1"
    with pytest.raises(ManifestError, match=f"gave {len(content)} bytes.*lists {len(TAR)}"):
        list(origin.pieces())


def test_another_digest_is_noticed_at_the_end():
    changed = TAR[:520] + b"!" + TAR[521:]
    with pytest.raises(ManifestError, match="digest"):
        list(shard(FakeFile(changed), content_digest(memoryview(TAR))).pieces())


def test_another_size_is_told_before_anything_is_fetched():
    with pytest.raises(ManifestError, match="has 2000 bytes"):
        shard(FakeFile(TAR[:2000], 2000)).version()
    with pytest.raises(ManifestError, match="has 600 bytes"):
        shard(FakeFile(b"\x1f\x8b" + bytes(598), 600)).version()
    with pytest.raises(ShardError, match="HTML"):
        shard(FakeFile(b"<html>" + b" " * 600, 606)).version()
