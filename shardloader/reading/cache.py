"""How does a node get a shard's tar as one local file, once for all its processes?

A cache turns an origin's bytes into a whole tar that is mapped. Whoever asks first writes it, under
a lock that dies with its owner; the others wait, and then map the same file. It is published when
every checksum has held and the origin is still the same, so that half a file, an error page or a
mixture of two versions is never seen.

The size holds, whoever else uses the folder: how room is made for what is written is the affair of
`filling`.
"""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardloader.errors import UsageError, WorldError
from shardloader.format.unpacking import MAX_EXPANSION, MAX_WINDOW_BYTES, Limits
from shardloader.reading.cache_folder import CacheFolder
from shardloader.reading.diary import Diary, Stage
from shardloader.reading.filling import (
    PATIENCE_S,
    Errand,
    Filling,
    OthersFetchError,
    Use,
    locked,
)
from shardloader.reading.needs_files import least_depths, told_needs
from shardloader.reading.sizes import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardloader.reading.cache_folder import HeldLock
    from shardloader.reading.origin import Origin

logger = logging.getLogger("shardloader")

DEFAULT: Final = "default"
DEFAULT_MAX_BYTES: Final = "50GB"
SHARE_AHEAD: Final = 4  # of the cache, what may be fetched ahead if nothing else is said
DEFAULT_RANGE_BYTES: Final = "64MB"
_VERSIONS_TRIED: Final = 4
_LARGEST_WINDOW: Final = 1 << 31  # that zstd's library decodes


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """What a cache holds: whole tars, those of them that are open somewhere, unfinished ones.

    readers: how many readers, of all runs, fetch ahead into it; needed: whole tars that one of them
    will open.
    """

    tars: int = 0
    tar_bytes: int = 0
    used: int = 0
    used_bytes: int = 0
    parts: int = 0
    part_bytes: int = 0
    readers: int = 0
    needed: int = 0
    needed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Cache:
    """Where this node keeps remote shards and the tars of compressed ones, and how many bytes.

    folder: made when first needed; several jobs may share it. max_bytes: the most that it holds,
    a number or a text such as "200GB". max_expansion: how many times its own size a compressed
    shard may stand for, beyond the first 256 MiB. max_window: the largest window of a zstd frame
    (`zstd --long=31` needs "2GiB"). prefetch_bytes: how much all readers of the node together fetch
    before they need it, by default a quarter of max_bytes, 0 for nothing; a reader may always be
    one shard ahead. copy_local: whether plain local shards are copied into it as well, for file
    systems on which mapped reading is slow, such as NFS and Lustre. range_bytes: how many bytes
    each process that reads may fetch by ranges of remote shards which are still on their way, so
    that the first batches need not wait for whole ones; those bytes come twice. 0: none.

    Raises UsageError for what makes no sense. It holds nothing open, and travels to workers.
    """

    folder: str | os.PathLike[str]
    max_bytes: int | str = field(default=DEFAULT_MAX_BYTES, kw_only=True)
    max_expansion: int = field(default=MAX_EXPANSION, kw_only=True)
    max_window: int | str = field(default=MAX_WINDOW_BYTES, kw_only=True)
    prefetch_bytes: int | str | None = field(default=None, kw_only=True)
    copy_local: bool = field(default=False, kw_only=True)
    range_bytes: int | str = field(default=DEFAULT_RANGE_BYTES, kw_only=True)

    def __post_init__(self) -> None:
        given: Any = self.folder
        if not isinstance(given, str | os.PathLike) or not os.fspath(given):
            raise UsageError(f"Cache(folder) takes a folder, and was given {given!r}")
        try:
            folder = Path(os.fspath(given)).expanduser().absolute()
        except RuntimeError as error:
            raise UsageError(f"Cache({given!r}): there is no such home folder ({error})") from None
        object.__setattr__(self, "folder", str(folder))
        object.__setattr__(self, "max_bytes", parse_bytes(self.max_bytes))
        object.__setattr__(self, "max_window", parse_bytes(self.max_window))
        ahead: Any = self.prefetch_bytes
        if ahead is not None and (isinstance(ahead, bool) or ahead != 0):
            object.__setattr__(self, "prefetch_bytes", parse_bytes(ahead))
        if not isinstance(self.copy_local, bool):
            raise UsageError(f"copy_local= is True or False, not {self.copy_local!r}")
        if self.range_bytes != 0 or isinstance(self.range_bytes, bool):
            object.__setattr__(self, "range_bytes", parse_bytes(self.range_bytes))
        if int(self.max_window) > _LARGEST_WINDOW:
            raise UsageError(f"max_window= is at most 2GiB, as zstd has it, not {self.max_window}")
        expansion: Any = self.max_expansion
        if isinstance(expansion, bool) or not isinstance(expansion, int) or expansion < 1:
            raise UsageError(f"max_expansion= is a whole number of at least 1, not {expansion!r}")

    @property
    def limits(self) -> Limits:
        """What a compressed shard may ask for."""
        return Limits(max_expansion=self.max_expansion, max_window_bytes=int(self.max_window))

    @property
    def bytes_ahead(self) -> int:
        """How much all readers of the node together fetch ahead."""
        share = int(self.max_bytes) // SHARE_AHEAD
        return share if self.prefetch_bytes is None else int(self.prefetch_bytes)

    def ahead(self, errand: Errand) -> Cache:
        """The same cache for a fetch ahead of its need.

        It raises NotNowError where there is no room for it, and where others are fetching it.
        """
        given = {each.name: getattr(self, each.name) for each in fields(Cache)}
        return _CacheAhead(**given, errand=errand)

    def tar(
        self,
        origin: Origin,
        *,
        make_way: Callable[[], None] | None = None,
        patience_s: float = PATIENCE_S,
        diary: Diary | None = None,
    ) -> memoryview:
        """Map the tar of a shard, which is fetched and unpacked if it is not there yet.

        The file stays in use, and is not removed, until the last view of the map is gone. make_way
        is called where all room is in use, to let go of maps that can be had again. diary: where
        the caller writes what it does.

        Raises ShardError for a shard that is damaged or none, WorldError where the store fails or
        the origin keeps changing, CacheError where the cache's disk fails, or it is too small for
        what is in use at once.
        """
        use = Use(make_way, patience_s, diary or Diary())
        found, is_new = self._kept(origin, use, unpack=True)
        use.diary.counts.add(cache_hits=int(not is_new), cache_misses=int(is_new))
        return found

    def file(
        self,
        origin: Origin,
        *,
        make_way: Callable[[], None] | None = None,
        diary: Diary | None = None,
    ) -> memoryview:
        """Map a file that is no tar, as `tar` does: its bytes are kept as they come."""
        return self._kept(origin, Use(make_way, PATIENCE_S, diary or Diary()), unpack=False)[0]

    def tar_again(self, origin: Origin, version: str, *, diary: Diary) -> memoryview | None:
        """Map the tar of a version that is known, as `tar` does; None if it is not here any more.

        The origin is asked nothing.
        """
        found = CacheFolder(Path(self.folder)).open_cached(name_of(origin.identity, version))
        diary.counts.add(cache_hits=int(found is not None))
        return found

    def has(self, origin: Origin, version: str) -> bool:
        """Whether the file of a version of an origin is here; it may be gone the next moment."""
        return CacheFolder(Path(self.folder)).has(name_of(origin.identity, version))

    def _kept(
        self,
        origin: Origin,
        use: Use,
        *,
        unpack: bool,
    ) -> tuple[memoryview, bool]:
        """The map, and whether this process has written the file."""
        folder = CacheFolder(Path(self.folder))
        for _ in range(_VERSIONS_TRIED):
            version = origin.version()
            name = name_of(origin.identity, version)
            found = folder.open_cached(name)
            if found is not None:
                return found, False
            folder.make()
            with self._right_to_write(folder, f"{name}.lock", use.diary) as held:
                found = folder.open_cached(name)
                if found is not None:
                    return found, False
                filling = Filling(
                    self,
                    folder,
                    origin,
                    version,
                    name,
                    held,
                    unpack=unpack,
                    errand=self._errand,
                )
                found = filling.run(use)
            if found is not None:
                return found, True
            logger.info("%s: it changed while it was read; reading it again", origin.name)
        raise WorldError(
            f"{origin.name}: the shard changed each of {_VERSIONS_TRIED} times while it was read: "
            "wait until it is whole, or read a copy"
        )

    @property
    def _errand(self) -> Errand | None:
        return None

    @contextmanager
    def _right_to_write(self, folder: CacheFolder, lock: str, diary: Diary) -> Iterator[HeldLock]:
        if self._errand is None:
            with locked(folder, lock, diary, Stage.LOCK) as held:
                yield held
            return
        with folder.lock_if_free(lock) as taken:
            if taken is None:
                raise OthersFetchError
            yield taken

    def use(self) -> CacheUse:
        """What the folder holds now. Changes nothing but for parts whose writer is gone."""
        folder = CacheFolder(Path(self.folder))
        if not folder.path.is_dir():
            return CacheUse()
        with folder.lock("space.lock"):
            entries = folder.entries()
        parts = [entry for entry in entries if entry.is_part]
        tars = [entry for entry in entries if not entry.is_part]
        used = [entry for entry in tars if folder.is_used(entry.name)]
        told = told_needs(folder.path)
        needs = least_depths(told)
        needed = [entry for entry in tars if entry.key in needs]
        return CacheUse(
            tars=len(tars),
            tar_bytes=sum(entry.size for entry in tars),
            used=len(used),
            used_bytes=sum(entry.size for entry in used),
            parts=len(parts),
            part_bytes=sum(entry.size for entry in parts),
            readers=len(told),
            needed=len(needed),
            needed_bytes=sum(entry.size for entry in needed),
        )

    def clear(self) -> tuple[int, int]:
        """Remove every tar that is not in use; give how many, and their bytes."""
        folder = CacheFolder(Path(self.folder))
        if not folder.path.is_dir():
            return 0, 0
        with folder.lock("space.lock"):
            removed = [
                entry.size
                for entry in folder.entries()
                if not entry.is_part and folder.remove(entry.name)
            ]
            folder.remove_unused_locks()
        return len(removed), sum(removed)


def cache_for(given: Cache | str | None) -> Cache | None:
    """What `cache=` means: a cache, "default" for this user's, None for none.

    Raises UsageError for anything else.
    """
    if given is None or isinstance(given, Cache):
        return given
    if given == DEFAULT:
        return default_cache()
    raise UsageError(
        "cache= is a Cache(folder, max_bytes=), 'default' (~/.cache/shardloader), or None: nothing "
        f"is kept, and remote shards are read by ranges alone; it was {given!r}"
    )


def default_cache() -> Cache:
    """The cache of those who gave none: this user's, in the home folder.

    A user without one, as in some containers, has it among the temporary files.
    """
    try:
        return Cache("~/.cache/shardloader")
    except UsageError:
        return Cache(Path(tempfile.gettempdir(), f"shardloader-{os.getuid()}"))


def name_of(identity: str, version: str) -> str:
    """How a cached file is called: half of it hashes the whole identity, half the version."""
    return key_of_identity(identity).hex() + _hashed(version).hex()


def key_of_identity(identity: str) -> bytes:
    """What the names of all versions of one origin begin with, 16 bytes."""
    return _hashed(identity)


def _hashed(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogateescape")).digest()[:16]


@dataclass(frozen=True, slots=True)
class _CacheAhead(Cache):
    """A cache as a fetch ahead of its need sees it."""

    errand: Errand | None = field(default=None, kw_only=True, compare=False)

    @property
    def _errand(self) -> Errand | None:
        return self.errand
