"""How is a file of a remote store read, whatever the network and credentials do?

One seam over fsspec: a file's size and version, a small file whole, a large one in pieces. What
may pass is tried again, with longer and longer waits, at the offset that was reached; what won't
pass is an error at once. A piece that is not as long as was asked for is not taken: what an error
page in its place begins with would end up in the middle of a shard.

A client (a file system of fsspec) has threads and sockets, and belongs to one process: it is made
when first needed there, never taken from fsspec's cache, and once anew where the store refuses
its credentials, which may have expired. Whatever a backend raises may hold a URL with its secrets:
only words without them leave this module, and no cause is chained to them.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote

from shardloader.errors import (
    DataError,
    MissingExtraError,
    ShardLoaderError,
    StoreError,
    UsageError,
)
from shardloader.format.urls import HIDDEN, without_secrets
from shardloader.reading.calls_ahead import begun
from shardloader.reading.clients import EXTRAS, HTTP, new_client
from shardloader.reading.counts import CountRow
from shardloader.reading.diary import Diary, Stage
from shardloader.reading.faults import (
    Failure,
    PastEndError,
    Trouble,
    Wanted,
    error_of,
    retry_after_of,
    trouble_of,
    underlying,
)
from shardloader.reading.frames import without_frames
from shardloader.reading.patience import OPTION, Attempts, Patience, always, one_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

_T = TypeVar("_T")


logger = logging.getLogger("shardloader")

PIECE_BYTES: Final = 16 << 20  # asked for at once; memory holds three pieces of a file
PIECES_AHEAD: Final = 2  # on their way while one is used
SHORT_BODIES: Final = 3  # in a row, of one piece, until that is an error
_PARTS: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?:(?P<user>[^/?#]*)@)?")
_TAGS: Final = ("ETag", "etag", "e_tag", "md5Hash", "Content-MD5", "Digest", "blob_id", "checksum")
_TIMES: Final = ("LastModified", "last_modified", "Last-Modified", "mtime", "updated", "modified")
# Of the options these say who reads, and not what: they may change from run to run.
_CREDENTIALS: Final = re.compile(
    r"key|secret|token|password|user|sas|auth|cred|conn|header|cookie|profile|cert|ssl|signature",
    re.IGNORECASE,
)
_SERVER: Final = re.compile(r"endpoint|account_?(name|host)", re.IGNORECASE)
# The right to make a client, by process: one that was forked has a lock that nobody holds.
_MAKING: Final[dict[int, threading.Lock]] = {}
_MOST_WORDS: Final = 500  # letters of what a backend says, which may be a page
_LEAST_SECRET: Final = 4  # letters; shorter values of options are no secrets, and parts of words


class ShortBodyError(StoreError):
    """A store that gives less than was asked for, again and again.

    first: what it gave, where that was asked for from the file's beginning on.
    """

    def __init__(self, message: str, *, first: bytes = b"") -> None:
        super().__init__(message)
        self.first = first


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    """What a store says of a file. size: None if it does not say; version: of the content."""

    size: int | None
    version: str


class _Held:
    """The client that a store and its twins use, and of which process it is."""

    __slots__ = ("client",)

    def __init__(self) -> None:
        self.client: tuple[int, Any] | None = None


class Store:
    """A folder on a remote store, and the options that fsspec's file system is made with.

    An option "patience" is a mapping of what Patience has. counts: of what is asked of it.
    It travels to other processes without its client and its counts, with whether it has answered.
    Its repr shows no secret.
    """

    __slots__ = ("_held", "_is_known", "_is_needed", "_options", "_url", "counts", "patience")

    def __init__(
        self, url: str, options: Mapping[str, Any] | None = None, patience: Patience | None = None
    ) -> None:
        scheme, mark, rest = url.partition("://")
        self._url = f"{scheme.lower()}{mark}{rest}"  # fsspec knows them by small letters alone
        self._options = dict(options or {})
        given = self._options.pop(OPTION, None)
        self.patience = Patience.of(given) if patience is None else patience
        self.counts = CountRow()
        self._held = _Held()
        self._is_needed = always
        self._is_known = False

    def __repr__(self) -> str:
        return f"Store({self.name!r})"

    def __reduce__(self) -> tuple[object, ...]:
        known = None, {"_is_known": self._is_known}
        return (Store, (self._url, self._options, self.patience), known)

    def counted_in(self, counts: CountRow) -> Store:
        """The same folder, by the same client; what is asked of it counts elsewhere."""
        return self._twin(counts, self._is_needed)

    def ahead(self, is_needed: Callable[[], bool]) -> Store:
        """The same folder, for what is fetched before somebody waits for it, which is_needed says.

        Its requests let go first what is needed: see `patience`.
        """
        return self._twin(self.counts, is_needed)

    def _twin(self, counts: CountRow, is_needed: Callable[[], bool]) -> Store:
        twin = Store(self._url, self._options, self.patience)
        twin._held, twin._is_needed, twin.counts = self._held, is_needed, counts
        twin._is_known = self._is_known
        return twin

    @property
    def _client(self) -> tuple[int, Any] | None:
        return self._held.client

    @_client.setter
    def _client(self, client: tuple[int, Any] | None) -> None:
        self._held.client = client

    @property
    def name(self) -> str:
        """What messages call the folder."""
        return without_secrets(self._url)

    @property
    def whereabouts(self) -> str:
        """The URL without the user, and which server it is of: for comparing, not for showing."""
        return self.whereabouts_of(self._url)

    def whereabouts_of(self, url: str) -> str:
        """The same of a file in the store."""
        servers = sorted(
            f"{name}={value}" for name, value in _leaves(self._options) if _SERVER.search(name)
        )
        return " ".join((*servers, _PARTS.sub(r"\g<scheme>://", url, count=1)))

    @property
    def folder_url(self) -> str:
        """The folder's URL, with whatever secrets are in it."""
        return self._url

    @property
    def scheme(self) -> str:
        """What is before `://`, in small letters."""
        return self._url.partition("://")[0].lower()

    def at(self, name: str, diary: Diary | None = None) -> RemoteFile:
        """The file of that name below the folder; diary: where its reader writes what it does."""
        return RemoteFile(store=self, url=self._url_of(name), diary=diary or Diary())

    def _url_of(self, name: str) -> str:
        """A URL of HTTP keeps its query at the end, and a name in it is quoted."""
        if self.scheme not in HTTP:
            return f"{self._url.rstrip('/')}/{name}"
        folder, mark, query = self._url.partition("?")
        quoted = quote(name.encode("utf-8", "surrogateescape"), safe="/")
        return f"{folder.rstrip('/')}/{quoted}{mark}{query}"

    def identity_of(self, url: str) -> str:
        """What tells a file from all others: its URL without the user, and where the store is.

        Belongs into a hash only: a query is in it, which may hold a secret.
        """
        places = sorted(
            f"{name}={value}"
            for name, value in _leaves(self._options)
            if not _CREDENTIALS.search(name)
        )
        return " ".join((_PARTS.sub(r"\g<scheme>://", url, count=1), *places))

    def ask(
        self,
        request: Callable[[Any], _T],
        *,
        shown: str,
        wanted: Wanted = "give the file",
        diary: Diary | None = None,
    ) -> _T:
        """Give what `request` gives of a client, tried as often as there is patience for.

        Raises WorldError for a file that is missing, StoreError where the store does not answer
        or refuses, MissingExtraError and UsageError where no client can be made.
        """
        attempts, is_new = Attempts(self.patience), False
        diary = diary or Diary()
        while True:
            answer, failure = self._tried(request)
            is_passing = failure is not None and failure.trouble is Trouble.PASSING
            self._is_known |= not is_passing
            if failure is None:
                return answer  # type: ignore[return-value]
            if failure.trouble is Trouble.DENIED and not is_new:
                logger.info("%s: %s; trying with a new client", shown, failure.words)
                is_new, self._client = True, None
                self.counts.add(retries=1)
                continue
            wait = attempts.wait_s(failure.asked_s) if is_passing else None
            if wait is None:
                raise error_of(shown, failure, attempts.made, wanted)
            logger.info("%s: %s; trying again in %.3g s", shown, failure.words, wait)
            self._tell_of_silence(shown, failure)
            self.counts.add(retries=1)
            with diary.page.within(Stage.RETRYING):
                time.sleep(wait)

    def _tell_of_silence(self, shown: str, failure: Failure) -> None:
        """Say at once, but only once, that a store which has given nothing yet does not.

        One that has answered is known to be there, and busy stores fail now and then.
        """
        if self._is_known:
            return
        self._is_known = True
        logger.warning(
            "%s: the store has given nothing yet (%s): it is asked %d times, with waits of up "
            "to %.3g s in all; meanwhile look whether URL and endpoint are right",
            shown,
            failure.words,
            self.patience.attempts,
            self.patience.longest_wait_s,
        )

    def _tried(self, request: Callable[[Any], _T]) -> tuple[_T | None, Failure | None]:
        try:
            client = self._client_here()
            with one_request(self._host, self.patience, self._is_needed):
                self.counts.add(store_requests=1)
                answer = request(client)
        except (ShardLoaderError, MemoryError):
            raise
        # A backend may raise anything, and what it raises may show secrets.
        except Exception as error:  # noqa: BLE001
            words = self._words_of(underlying(error))
            failure = Failure(trouble_of(error), words, retry_after_of(error))
            without_frames(error)  # else what the reader opens next may stay open
            return None, failure
        if isinstance(answer, bytes):
            self.counts.add(store_received_bytes=len(answer))
        return answer, None

    @property
    def _host(self) -> str:
        """Whom requests go to: the endpoint, else what a URL names first."""
        options = self._options
        place = str(options.get("endpoint_url") or options.get("endpoint") or self._url)
        return f"{self.scheme} {_PARTS.sub('', place, count=1).partition('/')[0]}"

    def _client_here(self) -> Any:
        """This process's client: one for all threads, since to make one takes a while."""
        process = os.getpid()
        lock = _MAKING.get(process) or _MAKING.setdefault(process, threading.Lock())
        with lock:
            found = self._client
            if found is None or found[0] != process:
                found = self._client = (process, self._new_client())
        return found[1]

    def _new_client(self) -> Any:
        kind: type[UsageError] = UsageError
        try:
            return new_client(self._url, self.scheme, self._options, self.patience)
        except ImportError as error:
            extra = EXTRAS.get(self.scheme)
            hint = f" (pip install 'shardloader[{extra}]')" if extra else ""
            words, kind = f"{self._words_of(error)}{hint}", MissingExtraError
        # An unknown scheme, an option that is none, or a file of credentials that is not there.
        except (TypeError, ValueError, FileNotFoundError) as error:
            words = self._words_of(error)
        raise kind(
            f"{self.name}: fsspec opens what a URL names, and can't make a client for "
            f"{self.scheme}:// here: {words}: install its package, or mend storage_options="
        )

    def _words_of(self, error: BaseException) -> str:
        text = without_secrets(f"{type(error).__name__}: {error}".rstrip(": "))
        for secret in self._secrets():
            text = text.replace(secret, HIDDEN)
        return shorten(text, _MOST_WORDS, placeholder=" ...")

    def _secrets(self) -> list[str]:
        """What may be a secret in the URL and the options, the longest first."""
        match = _PARTS.match(self._url)
        user = (match and match["user"]) or ""
        pairs = re.split(r"[&;]", self._url.partition("?")[2])
        found = [*user.split(":", 1), *(pair.partition("=")[2] for pair in pairs)]
        found += [v for _, v in _leaves(self._options) if isinstance(v, str) and "://" not in v]
        found += [unquote(value) for value in found]
        return sorted({v for v in found if len(v) >= _LEAST_SECRET}, key=len, reverse=True)


def _leaves(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the plain values in options, by their whole names."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, str) and name == "connection_string":  # of Azure: names and values
            parts = (part.partition("=") for part in value.split(";"))
            yield from ((f"{prefix}{part}", told) for part, _, told in parts if told)
        elif isinstance(value, str | int | float):
            yield f"{prefix}{name}", value


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file on a remote store.

    url: whole, with whatever secrets are in it; diary: where its reader writes what it does.
    """

    store: Store
    url: str = field(repr=False)
    diary: Diary = field(default_factory=Diary, repr=False, compare=False)

    @property
    def name(self) -> str:
        """What messages call it."""
        return without_secrets(self.url)

    @property
    def whereabouts(self) -> str:
        """The URL without the user, and which server it is of: for comparing, not for showing."""
        return self.store.whereabouts_of(self.url)

    @property
    def identity(self) -> str:
        """What tells it from every other file; for a hash only."""
        return self.store.identity_of(self.url)

    def status(self) -> FileStatus:
        """Ask for size and version: the etag, else the time of change, else the size alone."""
        with self.diary.page.within(Stage.ASKING):
            info = self._ask(lambda client: client.info(self.url))
        size = info.get("size")
        told = (info[key] for key in (*_TAGS, *_TIMES, "created") if info.get(key) is not None)
        return FileStatus(
            size=None if size is None else int(size), version=f"{size} {next(told, '')}"
        )

    def whole(self) -> bytes:
        """Read a small file."""
        return bytes(self._ask(lambda client: client.cat_file(self.url)))

    def whole_if_there(self) -> bytes | None:
        """Read a small file; None if there is no such file."""

        def read(client: Any) -> bytes | None:
            try:
                return bytes(client.cat_file(self.url))
            except FileNotFoundError as error:
                if trouble_of(error) is Trouble.MISSING:
                    without_frames(error)
                    return None
                raise

        return self._ask(read)

    def has_ranges(self, *, size: int) -> bool:
        """Whether the store gives a part of the file, of so many bytes, where a part is asked for.

        Servers of HTTP may not; reading a byte tells, and no more is read. Other stores all do.
        """
        if self.store.scheme not in HTTP:
            return True

        def read(client: Any) -> bool:
            # The size is not asked for: where there are no ranges this one request says it.
            with client.open(self.url, "rb", cache_type="none", size=size) as file:
                try:
                    file.seek(1)
                    file.read(1)
                except ValueError as error:  # how fsspec says it
                    without_frames(error)
                    return False
            return True

        return self._ask(read)

    def parsed_if_there(self, parse: Callable[[bytes], _T]) -> _T | None:
        """What a small file is to `parse`, which raises DataError; None if there is no such file.

        It is read once more then: an error page in its place may be gone.
        """
        for is_last in (False, True):
            data = self.whole_if_there()
            try:
                return None if data is None else parse(data)
            except DataError as error:
                if is_last:
                    raise
                logger.info("%s: reading it once more", error)
        raise AssertionError

    def read(self, start: int, stop: int) -> bytes:
        """Read bytes by one request; fewer where the store gives fewer.

        A store without ranges gives all of a file, and then all from `start` on is given.
        """
        try:
            return self._range(start, stop)
        except PastEndError:
            return b""

    def _range(self, start: int, stop: int) -> bytes:
        body = bytes(self._ask(lambda client: client.cat_file(self.url, start=start, end=stop)))
        return body[start:] if len(body) > stop - start else body

    def pieces(
        self,
        *,
        size: int,
        start: int = 0,
        stop: int | None = None,
        all_asked: Callable[[], None] | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes start..stop-1 of a file of that size, or all, by requests of 16 MiB.

        Once a piece has come as it was asked for, the next two are asked for while it is used. A
        store without ranges gives all in one. Stops early where the store says that the file does.
        all_asked: called when a piece has come and nothing is left to ask for, maybe again.
        Raises ShortBodyError, a StoreError, where it gives less without saying so.
        """
        end = size if stop is None else stop
        spans = [(at, min(at + PIECE_BYTES, end)) for at in range(start, end, PIECE_BYTES)]
        coming: deque[Future[bytes]] = deque()
        for number, (at, to) in enumerate(spans):
            try:
                piece = coming.popleft().result() if coming else self._piece(at, to, size)
            except PastEndError:
                return
            if len(piece) == to - at:
                for span in spans[number + 1 + len(coming) : number + 1 + PIECES_AHEAD]:
                    coming.append(begun(partial(self._piece, *span, size)))
            if all_asked is not None and number + 1 + len(coming) == len(spans):
                all_asked()
            yield piece
            if at + len(piece) >= end:
                return

    def _piece(self, start: int, stop: int, size: int) -> bytes:
        """Read these bytes, and no others; or all from `start` on."""
        attempts = Attempts(self.store.patience)
        while True:
            body = self._range(start, stop)
            if len(body) in {stop - start, size - start}:
                return body
            wait = attempts.wait_s() if attempts.made < SHORT_BODIES else None
            if wait is None:
                raise ShortBodyError(
                    f"{self.name}: the store was asked for the bytes {start} to {stop} of {size}, "
                    f"and gives {len(body)} of them, each of {attempts.made} times: look whether "
                    "the file is whole, and what lies between it and here",
                    first=b"" if start else body,
                )
            logger.info("%s: %d of %d bytes came; asking again", self.name, len(body), stop - start)
            self.store.counts.add(retries=1)
            with self.diary.page.within(Stage.RETRYING):
                time.sleep(wait)

    def _ask(self, request: Callable[[Any], _T]) -> _T:
        return self.store.ask(request, shown=self.name, diary=self.diary)
