"""A local file as an origin: its bytes, and what tells its versions apart."""

from __future__ import annotations

import os

import pytest

from shardloader.errors import WorldError
from shardloader.reading.origin import PIECE_BYTES, LocalFile


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "a.tar.gz"
    made.write_bytes(bytes(range(256)) * 3000)
    return made


def test_the_pieces_are_the_file(path):
    pieces = list(LocalFile(str(path)).pieces())
    assert b"".join(pieces) == path.read_bytes()
    assert max(map(len, pieces)) == PIECE_BYTES


def test_a_link_and_another_way_to_say_the_path_mean_the_same_file(path, tmp_path):
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "sub").mkdir()
    one = LocalFile(str(path))
    for other in (tmp_path / "link", tmp_path / "sub" / ".." / "a.tar.gz"):
        assert LocalFile(str(other)).identity == one.identity
        assert LocalFile(str(other)).version() == one.version()


def test_a_file_that_is_written_into_or_replaced_has_another_version(path, tmp_path):
    origin = LocalFile(str(path))
    seen = [origin.version(), origin.version()]
    assert seen[0] == seen[1]
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    seen.append(origin.version())
    (tmp_path / "new").write_bytes(path.read_bytes())
    os.utime(tmp_path / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "new").rename(path)
    seen.append(origin.version())
    assert len(set(seen)) == 3


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path):
    origin = LocalFile(str(tmp_path / "none.tar.gz"))
    with pytest.raises(WorldError, match=r"none\.tar\.gz: the file can't be read"):
        origin.version()
    with pytest.raises(WorldError, match=r"none\.tar\.gz: the file can't be read"):
        next(origin.pieces())
