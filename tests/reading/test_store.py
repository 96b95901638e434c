"""Files are there whole or not at all, and a lock dies with its owner."""

from __future__ import annotations

import errno
import logging
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shardloader.errors import UsageError, WorldError
from shardloader.reading import store
from shardloader.reading.store import file_lock, map_file, publish, read_file, require_writable


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_published_file_is_there_with_its_folders_and_leaves_no_other(tmp_path):
    publish(tmp_path / "a" / "b" / "file", b"bytes")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"bytes"
    assert names_in(tmp_path / "a" / "b") == ["file"]


@pytest.mark.parametrize("failing", ["fsync", "write", "replace"])
def test_what_fails_in_the_middle_leaves_the_old_file_and_nothing_else(
    tmp_path, monkeypatch, failing
):
    def fail(*args):
        raise OSError(28, "No space left on device")

    publish(tmp_path / "file", b"old")
    if failing == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        target, name = (store, "write_and_sync") if failing == "write" else (Path, "replace")
        monkeypatch.setattr(target, name, fail)
    with pytest.raises(WorldError, match=r"file: .*No space left"):
        publish(tmp_path / "file", b"new")
    assert names_in(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_an_interrupt_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path / "file", b"new")
    assert names_in(tmp_path) == []


def test_a_name_of_full_length_can_be_published(tmp_path):
    publish(tmp_path / ("n" * 255), b"x")
    assert read_file(tmp_path / ("n" * 255)) == b"x"


def test_a_published_file_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        publish(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_map_is_read_only_and_outlives_its_file(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    view = map_file(tmp_path / "file")
    (tmp_path / "file").unlink()
    assert view.readonly
    assert bytes(view[3:5]) == b"34"


def test_an_empty_file_maps_to_no_bytes(tmp_path):
    (tmp_path / "file").touch()
    assert bytes(map_file(tmp_path / "file")) == b""


@pytest.mark.parametrize("name", ["missing", ""])
def test_what_cannot_be_mapped_is_named(tmp_path, name):
    with pytest.raises(WorldError, match=str(tmp_path / name)):
        map_file(tmp_path / name)


def test_a_missing_file_reads_as_none_and_a_folder_is_an_error(tmp_path):
    assert read_file(tmp_path / "missing") is None
    with pytest.raises(WorldError, match="can't be read"):
        read_file(tmp_path)


def test_a_folder_that_takes_no_files_is_an_error_that_names_index_dir(tmp_path):
    require_writable(tmp_path / "new")
    assert names_in(tmp_path / "new") == []
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="index_dir"):
        require_writable(tmp_path / "file")


HOLDER = """
import sys, time
from shardloader.reading.store import file_lock
with file_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(path: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_lock_is_taken_over_when_its_owner_is_killed(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="shardloader")
    process = holder(tmp_path / "lock")
    waiting = "waiting for another process"

    class KillWhenWaiting(logging.Handler):
        def emit(self, record):
            if waiting in record.getMessage():
                os.kill(process.pid, signal.SIGKILL)

    handler = KillWhenWaiting()
    logging.getLogger("shardloader").addHandler(handler)
    try:
        with file_lock(tmp_path / "lock"):
            assert waiting in caplog.text
    finally:
        logging.getLogger("shardloader").removeHandler(handler)
        process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_a_lock_that_is_free_is_taken_without_a_word(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="shardloader")
    for _ in range(2):
        with file_lock(tmp_path / "lock"):
            pass
    assert caplog.text == ""


def test_a_lock_in_no_folder_is_an_error_that_names_it(tmp_path):
    with pytest.raises(WorldError, match="missing"), file_lock(tmp_path / "missing" / "lock"):
        pass


def test_a_file_system_without_locks_is_said_and_lived_with(tmp_path, caplog, monkeypatch):
    def no_locks(*args):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with file_lock(tmp_path / "lock"):
        assert "no locks" in caplog.text


@pytest.mark.parametrize(("number", "fine"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_only_a_folder_that_has_no_sync_is_passed_over(tmp_path, monkeypatch, number, fine):
    real = os.fsync

    def no_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", no_folders)
    if fine:
        publish(tmp_path / "file", b"x")
    else:
        with pytest.raises(WorldError, match="Input/output"):
            publish(tmp_path / "file", b"x")
    assert names_in(tmp_path) == ["file"]


def test_a_lock_that_fails_otherwise_is_an_error(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(WorldError, match="can't be locked"), file_lock(tmp_path / "lock"):
        pass
