"""Where does a large piece of a batch lie while it crosses from a worker to the training loop?

In a block of shared memory that is used again: a fresh block for every batch, its page faults and
its descriptor are what crossing costs, not the copy. A worker makes its blocks, marks one as in
use when it fills it, and sends it once; from then on its number is enough. The main process clears
the mark when the last array or tensor that lies in the block is gone, in whatever view. Where no
block is free, one is made that is used once: nobody waits.

Blocks have no name in the file system (torch unlinks them before they are used), so that nothing
is left behind by a crash; torch's sharing strategy "file_system" keeps names, and gets no ring.
A process that is forked while a batch is held sees it until the parent lets it go.
"""

from __future__ import annotations

import os
import secrets
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

MOST_BLOCKS: Final = 64  # of a worker, that are used again
IDLE_ROUNDS: Final = 2
ONCE: Final = -1  # the number of a block that is not

# Receivers of this process by their rings' tokens. What unpickles a batch knows nothing else.
_receivers: WeakValueDictionary[str, Receiver] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """What the two sides share; travels to the workers.

    token: names the receiver in the main process; in_use: uint8 [workers, MOST_BLOCKS] in shared
    memory, 1 for a block that has been filled and not let go yet.
    """

    token: str
    in_use: Tensor

    @classmethod
    def of(cls, num_workers: int) -> Ring:
        """A ring whose blocks are all yet to be made."""
        in_use = torch.zeros((num_workers, MOST_BLOCKS), dtype=torch.uint8)
        return cls(secrets.token_hex(16), in_use.share_memory_())  # type: ignore[no-untyped-call]


class Place(NamedTuple):
    """A block that was taken, uint8 [capacity]; block is what has to be sent, if anything."""

    worker: int
    number: int
    memory: NDArray[np.uint8]
    block: Tensor | None


class Sender:
    """One worker's side: takes blocks; at most `most` of them are used again."""

    def __init__(self, ring: Ring, worker: int, *, most: int) -> None:
        self._worker = worker
        self._in_use: NDArray[np.uint8] = ring.in_use[worker].numpy()
        self._most = min(most, MOST_BLOCKS)
        self._blocks: list[Tensor] = []
        self._last_used: list[int] = []
        self._num_taken = 0

    def take(self, num_bytes: int) -> Place:
        """A block of at least so many bytes, and not of many more."""
        self._num_taken += 1
        free = np.flatnonzero(self._in_use[: len(self._blocks)] == 0).tolist()
        fitting = [each for each in free if num_bytes <= len(self._blocks[each]) <= 2 * num_bytes]
        if fitting:
            number = min(fitting, key=lambda each: len(self._blocks[each]))
            self._in_use[number] = 1
            self._last_used[number] = self._num_taken
            return Place(self._worker, number, self._blocks[number].numpy(), None)
        block = torch.empty(num_bytes + num_bytes // 8, dtype=torch.uint8)
        block.share_memory_()  # type: ignore[no-untyped-call]
        oldest = min(free, key=self._last_used.__getitem__, default=None)
        is_full = len(self._blocks) == self._most
        if oldest is not None and (is_full or self._is_idle(oldest)):
            number = oldest  # of a size that batches had before
            self._blocks[number] = block
        elif is_full:
            return Place(self._worker, ONCE, block.numpy(), block)
        else:
            number = len(self._blocks)
            self._blocks.append(block)
            self._last_used.append(0)
        self._in_use[number] = 1
        self._last_used[number] = self._num_taken
        return Place(self._worker, number, block.numpy(), block)

    def _is_idle(self, number: int) -> bool:
        """Whether a block has not been taken for some rounds of all of them."""
        return self._num_taken - self._last_used[number] > IDLE_ROUNDS * len(self._blocks)


class Receiver:
    """The main process's side; lives as long as the workers do."""

    def __init__(self, ring: Ring) -> None:
        self._in_use: NDArray[np.uint8] = ring.in_use.numpy()
        self._blocks: dict[tuple[int, int], Tensor] = {}
        _receivers[ring.token] = self

    def memory(self, worker: int, number: int, block: Tensor | None) -> NDArray[np.uint8]:
        """The bytes of a block, uint8 [capacity]; it is let go when nothing refers to them."""
        if block is not None and number != ONCE:
            self._blocks[worker, number] = block
        held = self._blocks[worker, number] if block is None else block
        # An array of its own: views of it refer to it, and not to what it is made of.
        memory = np.frombuffer(held.numpy().data, dtype=np.uint8)
        if number != ONCE:
            mark = self._in_use[worker, number : number + 1]
            weakref.finalize(memory, _let_go, mark, os.getpid()).atexit = False
        return memory


def _let_go(mark: NDArray[np.uint8], owner: int) -> None:
    if os.getpid() == owner:  # a forked child has the same arrays, and lets go of nothing
        mark[0] = 0


def received(token: str, worker: int, number: int, block: Tensor | None) -> Any:
    """The bytes of a block that was sent to the receiver of a token."""
    return _receivers[token].memory(worker, number, block)
