"""What is a process that reads doing now?

Each thread has a page: a few numbers that say what it does, written in well under a microsecond
and never read by it. The page of a worker's main thread lies in memory that the main process sees,
so that a stall explains itself while the worker is stuck. Who looks may find a page half written,
and looks again. With the pages goes the row that the process counts in.

A page knows numbers of shards and samples; what they are called is known to whoever looks.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from shardloader.reading.counts import CountRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NUM_WORDS: Final = 8  # int64 each, of a page
_TURN, _STAGE, _SHARD, _INDEX, _DONE, _TOTAL, _SINCE, _MADE = range(NUM_WORDS)
_LOOKS: Final = 100  # at a page that is being written
UNKNOWN: Final = -1


class Stage(IntEnum):
    """What a thread may be doing; 0 is what memory holds before anything was written."""

    STARTING = 0
    IDLE = 1
    LOCATING = 2
    OPENING = 3
    LOCK = 4
    ROOM = 5
    ASKING = 6
    FETCHING = 7
    UNPACKING = 8
    RETRYING = 9
    DECODING = 10
    TRANSFORMING = 11
    COLLATING = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """What a page says.

    shard, index: numbers of the shard in the manifest and of the sample in the dataset, UNKNOWN
    where there is none; done, total: of the stage, in bytes, total 0 where it is not known;
    since_ns: when it began, by the clock that all processes of a machine share; made: batches of
    this pass that are done.
    """

    stage: Stage
    shard: int
    index: int
    done: int
    total: int
    since_ns: int
    made: int


class Page:
    """One thread's page; `words` is its memory, int64 [NUM_WORDS]."""

    __slots__ = ("_clock_ns", "words")

    def __init__(self, words: memoryview, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.words = words
        self._clock_ns = clock_ns

    def begin(self, stage: Stage, shard: int = UNKNOWN, index: int = UNKNOWN) -> None:
        """Do something else from now on."""
        words = self.words
        words[_TURN] += 1
        words[_STAGE] = stage
        words[_SHARD] = shard
        words[_INDEX] = index
        words[_DONE] = words[_TOTAL] = 0
        words[_SINCE] = self._clock_ns()
        words[_TURN] += 1

    def at_sample(self, shard: int, index: int) -> None:
        """Go on with another sample."""
        words = self.words
        words[_TURN] += 1
        words[_SHARD] = shard
        words[_INDEX] = index
        words[_TURN] += 1

    def at_byte(self, done: int) -> None:
        """So many bytes of the stage are done."""
        self.words[_DONE] = done

    def show(self, doing: Doing) -> None:
        """Do what another thread does for this one; the shard and the sample stay."""
        words = self.words
        words[_TURN] += 1
        words[_STAGE] = doing.stage
        words[_DONE] = doing.done
        words[_TOTAL] = doing.total
        words[_SINCE] = doing.since_ns
        words[_TURN] += 1

    def start_pass(self) -> None:
        """No batch of a pass is made yet."""
        self.words[_MADE] = 0
        self.begin(Stage.IDLE)

    def made(self, num_batches: int = 1) -> None:
        """So many batches more are made."""
        self.words[_MADE] += num_batches

    @property
    def num_made(self) -> int:
        """Batches of this pass that are made."""
        return self.words[_MADE]

    def read(self) -> Doing:
        """What it says; whoever writes meanwhile is waited for, for some looks."""
        for _ in range(_LOOKS):
            turn, *words = self.words.tolist()
            if turn % 2 == 0 and turn == self.words[_TURN]:
                break
        stage, shard, index, done, total, since_ns, made = words
        return Doing(
            stage=Stage(stage),
            shard=shard,
            index=index,
            done=done,
            total=total,
            since_ns=since_ns,
            made=made,
        )

    @contextmanager
    def within(self, stage: Stage, shard: int | None = None, total: int = 0) -> Iterator[Page]:
        """Do something for a while, and then go on with what was done before.

        shard: None for that of before.
        """
        words = self.words
        before = words.tolist()
        self.begin(stage, before[_SHARD] if shard is None else shard, before[_INDEX])
        words[_TOTAL] = total
        try:
            yield self
        finally:
            words[_TURN] += 1
            for at in (_STAGE, _SHARD, _INDEX, _DONE, _TOTAL, _SINCE):
                words[at] = before[at]
            words[_TURN] += 1


class Diary:
    """The pages of one process, and where it counts.

    memory: int64 [NUM_WORDS], where the thread that makes the diary has its page; None for memory
    of its own, as with counts. A copy that travels to another process is an empty one.
    """

    def __init__(
        self,
        memory: Any = None,
        *,
        counts: CountRow | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._clock_ns = clock_ns
        self.counts = CountRow() if counts is None else counts
        own = Page(_own_memory() if memory is None else memoryview(memory), clock_ns)
        self._pages = {threading.get_ident(): own}

    def __reduce__(self) -> tuple[type[Diary], tuple[()]]:
        return (Diary, ())

    @property
    def page(self) -> Page:
        """The page of the thread that asks."""
        found = self._pages.get(threading.get_ident())
        if found is None:
            found = self._pages[threading.get_ident()] = Page(_own_memory(), self._clock_ns)
        return found

    def pages(self) -> dict[int, Page]:
        """All pages, by the identity of their threads."""
        return dict(self._pages)

    def start_pass(self) -> None:
        """No batch of a pass is made yet. Pages of threads that have ended are dropped."""
        here = threading.get_ident()
        alive = {here, *(thread.ident for thread in threading.enumerate())}
        self._pages = {ident: page for ident, page in self._pages.items() if ident in alive}
        for page in {here: self.page, **self._pages}.values():
            page.start_pass()


def _own_memory() -> memoryview:
    return memoryview(bytearray(8 * NUM_WORDS)).cast("q")
