"""Which batches of a pass are made, and what does whoever makes the next one do now?

Told from the pages of diaries: of worker processes through shared memory, which has no name in the
file system and goes with the processes; without workers from those of this process's threads.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

import torch

from shardloader.reading.diary import NUM_WORDS, Page, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from shardloader.reading.diary import Diary, Doing

_AT_REST = frozenset((Stage.STARTING, Stage.IDLE))


class Making(Protocol):
    """How far the making of a pass's batches is; they are numbered from 0."""

    def is_made(self, number: int) -> bool:
        """Whether a batch can be had without waiting for its making."""
        ...

    def num_made(self) -> int:
        """How many batches were made."""
        ...

    def doing(self, number: int) -> list[tuple[str, Doing]]:
        """Who makes a batch, and what they do now: nobody where it is at rest."""
        ...


class ByWorkers:
    """Batches that worker processes make, number k by worker k % N. memory: int64 [N, words]."""

    def __init__(self, memory: Tensor) -> None:
        self._pages = [Page(memoryview(row.numpy())) for row in memory]

    @staticmethod
    def memory(num_workers: int) -> Tensor:
        """Shared memory for the pages of workers."""
        memory = torch.zeros((num_workers, NUM_WORDS), dtype=torch.int64)
        memory.share_memory_()  # type: ignore[no-untyped-call]
        return memory

    def is_made(self, number: int) -> bool:
        """See `Making`."""
        turn, worker = divmod(number, len(self._pages))
        return self._pages[worker].num_made > turn

    def num_made(self) -> int:
        """See `Making`."""
        return sum(page.num_made for page in self._pages)

    def doing(self, number: int) -> list[tuple[str, Doing]]:
        """See `Making`; where one waits for another's writing of a shard, that one too."""
        maker = number % len(self._pages)
        all_of_them = [page.read() for page in self._pages]
        own = all_of_them[maker]
        return [(f"worker {maker}", own)] + [
            (f"worker {worker}", doing)
            for worker, doing in enumerate(all_of_them)
            if own.stage is Stage.LOCK and doing.shard == own.shard and worker != maker
        ]


class ByThreads:
    """Batches that this process makes: the loop's thread, and those that read ahead of it."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def is_made(self, number: int) -> bool:
        """See `Making`."""
        return self.num_made() > number

    def num_made(self) -> int:
        """See `Making`."""
        return sum(page.num_made for page in self._diary.pages().values())

    def doing(self, number: int) -> list[tuple[str, Doing]]:  # noqa: ARG002
        """See `Making`; all threads that do something: which one has the batch is not told."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        found = [
            (f"thread {names[ident]}", page.read())
            for ident, page in self._diary.pages().items()
            if ident in names
        ]
        return [(name, doing) for name, doing in found if doing.stage not in _AT_REST]
