"""How are local files mapped, locked and published?

What the file system must promise, in one module: a reader never sees half a file, a lock dies with
its owner, and nothing is copied that can be mapped. It knows paths and bytes, not what they mean.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import resource
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from shardloader.errors import CacheError, StoreError, UsageError, WorldError

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("shardloader")

# What one call of the system is given to write: for more, Linux looks for pages of 2 MiB, which may
# have to be made first, and then takes up to five times as long for a byte.
WRITE_BYTES = 1 << 20
_NO_LOCKS_HERE = frozenset((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
_RAN_OUT = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


def publish(path: str | os.PathLike[str], data: bytes | memoryview) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut.

    Makes missing folders. Raises WorldError, and leaves an older file as it was, when the disk
    does not take it.
    """
    path = Path(path)
    temporary = path.with_name(_temporary_name())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_and_sync(temporary, data)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise WorldError(f"{path}: the file can't be written: {error.strerror or error}") from error


def _temporary_name() -> str:
    # Random, not the process id: two containers on one shared folder may have the same one.
    return f".shardloader-{secrets.token_hex(8)}.tmp"


def write_and_sync(path: Path, data: bytes | memoryview) -> None:
    """Write a file that is not there yet, and bring it to disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring to disk which names a folder holds."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems can't sync a folder
            raise
    finally:
        os.close(descriptor)


def require_writable(folder: str | os.PathLike[str]) -> None:
    """Make the folder, and raise UsageError, which names `index_dir`, if it takes no files."""
    probe = Path(folder, _temporary_name())
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise UsageError(
            "sample indexes are kept beside the shards, in a folder that can be written to; "
            f"{folder} can't be ({error.strerror or error}): give index_dir=, a folder for the "
            "indexes and the manifest"
        ) from error


@contextlib.contextmanager
def file_lock(path: str | os.PathLike[str]) -> Iterator[int]:
    """Hold an exclusive lock on this node; gives the descriptor that holds it.

    The kernel frees it when its owner dies. A child that is forked meanwhile inherits the
    descriptor, and must close it. The file stays: removing it would let two owners in. Where the
    file system has no locks, the body runs without one.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise WorldError(f"{path}: no lock can be made: {error.strerror or error}") from error
    try:
        _acquire(descriptor, path)
        yield descriptor
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: str | os.PathLike[str]) -> None:
    try:
        is_locked = try_lock(descriptor)
        if is_locked is False:
            logger.info("waiting for another process, which holds %s", path)
            is_locked = try_lock(descriptor, wait=True)
    except OSError as error:
        raise WorldError(f"{path}: can't be locked: {error.strerror or error}") from error
    if is_locked is None:
        logger.warning("%s: the file system has no locks; going on without", path)


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX, *, wait: bool = False) -> bool | None:
    """Take a lock; False if another has it, None where the file system has none."""
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS_HERE:
            return None
        raise
    return True


def is_still(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one of this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def why_unread(error: OSError) -> str:
    """What the system says of a file that can't be read, with the way out where there is one."""
    said = error.strerror or str(error)
    if isinstance(error, PermissionError):
        return f"{said}: let this user read it, and enter the folders above it"
    return said


def map_file(path: str | os.PathLike[str]) -> memoryview:
    """Map a file read-only; an empty one gives no bytes.

    The map goes when the last view of it does: there is nothing to close. Raises WorldError when
    the file can't be opened.
    """
    try:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise WorldError(f"{path}: the file can't be read: {why_unread(error)}") from error


def is_of_the_file(error: WorldError) -> bool:
    """Whether a file is to blame: not a store, the cache, or a process out of memory or files."""
    cause = error.__cause__
    has_run_out = isinstance(cause, OSError) and cause.errno in _RAN_OUT
    return not has_run_out and not isinstance(error, CacheError | StoreError)


def files_to_keep_open() -> int:
    """How many files a reader may keep open: an eighth of what this process may, at most 256.

    A map keeps its file's descriptor.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 256 if soft == resource.RLIM_INFINITY else max(4, min(soft // 8, 256))


def read_file(path: str | os.PathLike[str]) -> bytes | None:
    """Give a small file's bytes; None if there is no such file."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WorldError(f"{path}: the file can't be read: {why_unread(error)}") from error
