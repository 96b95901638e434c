"""Who may write to a folder of a store, where no kernel frees a dead writer's lock?

Whoever holds the lease: an object that names him, made by a conditional write where the store has
such, and written anew every few seconds for as long as he lives. Another who finds it waits and
sees whether it changes: if it does, he is refused, and if it does not for long enough, its owner is
dead and the lease is his. No clocks are compared. A writer whose lease was taken stops at his next
step. A dead writer of this machine, whose local lock is free, is known to be dead at once.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardloader.errors import UsageError, WorldError
from shardloader.reading.storing import put, put_new, remove

if TYPE_CHECKING:
    from shardloader.reading.remote import RemoteFile, Store

_log = logging.getLogger("shardloader")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often a lease is renewed, and after how long without that its owner is dead; seconds."""

    renew_s: float = 10.0
    dead_s: float = 60.0
    look_s: float = 2.0


def machine_of(folder: Path) -> str:
    """Name this machine, since it was started, and a file system of it."""
    status = folder.stat()
    boot = _BOOT_ID.read_text("ascii").strip() if _BOOT_ID.exists() else ""
    return f"{os.uname().nodename} {boot} {status.st_dev}:{status.st_ino}"


class Lease:
    """The right to write to a store's folder; not acquired by being made.

    `machine` is `machine_of` the folder in which whoever acquires holds a local lock meanwhile.
    """

    def __init__(self, store: Store, name: str, rhythm: Rhythm | None = None) -> None:
        self._store = store
        self._file = store.at(name)
        self._rhythm = rhythm or Rhythm()
        self._owner = secrets.token_hex(8)
        self._is_lost = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, machine: str) -> None:
        """Take the lease; raises UsageError if another writer has it."""
        if not put_new(self._file, self._words(machine, 0)):
            self._take_from_the_dead(machine)
        found = self._file.whole_if_there()
        if _said(found, "writer") != self._owner:  # a store without conditional writes
            raise self._refusal(found)
        self._thread = threading.Thread(target=self._renew, args=(machine,), daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise WorldError if another writer took it meanwhile."""
        if self._is_lost:
            raise WorldError(
                f"{self._store.name}: this writer was taken for dead, since the store did not hear "
                "of it for too long, and another one writes there now"
            )

    def release(self) -> None:
        """Give it back; does nothing if it is not held."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        try:
            if _said(self._file.whole_if_there(), "writer") == self._owner:
                remove(self._file)
        except WorldError as error:  # what was written stays as it is
            _log.warning("%s: could not be removed: %s", self._file.name, error)

    def _take_from_the_dead(self, machine: str) -> None:
        found = self._file.whole_if_there()
        if found is not None and _said(found, "machine") != machine:
            _log.info("%s: waiting to see whether its writer lives", self._file.name)
            end = time.monotonic() + self._rhythm.dead_s
            while time.monotonic() < end:
                time.sleep(self._rhythm.look_s)
                now = self._file.whole_if_there()
                if now != found:
                    raise self._refusal(now)
            _log.warning("%s: its writer is dead, and this one goes on", self._file.name)
        put(self._file, self._words(machine, 0))

    def _refusal(self, found: bytes | None) -> UsageError:
        node = _said(found, "machine").partition(" ")[0]
        where = f", on {node!r}" if node else ""
        return UsageError(
            f"another writer is writing to {self._store.name!r}{where}: wait for it, or give "
            "another folder"
        )

    def _renew(self, machine: str) -> None:
        file: RemoteFile = copy.copy(self._store).at(self._file.url.rpartition("/")[2])
        beat = 0
        while not self._ended.wait(self._rhythm.renew_s):
            try:
                if _said(file.whole_if_there(), "writer") != self._owner:
                    self._is_lost = True
                    return
                beat += 1
                put(file, self._words(machine, beat))
            except WorldError as error:
                _log.warning("%s: the lease could not be renewed: %s", file.name, error)

    def _words(self, machine: str, beat: int) -> bytes:
        said = {"writer": self._owner, "machine": machine, "beat": beat}
        return json.dumps(said).encode("ascii")


def _said(lease: bytes | None, what: str) -> str:
    try:
        return str(json.loads(lease or b"")[what])
    except (ValueError, TypeError, KeyError):
        return ""
