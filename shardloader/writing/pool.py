"""How do several processes write one dataset?

Each worker reads parts and encodes chunks, keeps their bytes, and tells only their heads. The one
who asked decides, in the input's order, at which byte of which shard they lie, and the worker
writes them there: bytes are made, moved and written once, and where they lie does not depend on
who was quicker.

Workers are forked, and end when the one who started them does, however that ends: what they may
still write goes to a folder that no later write uses.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections import deque
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from shardloader.errors import ShardLoaderError, WorldError
from shardloader.writing.beside import Beside
from shardloader.writing.chunks import chunks_of
from shardloader.writing.filling import Filler, Filling
from shardloader.writing.hands import remaining

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardloader.writing.chunks import Chunk, Frame, Head
    from shardloader.writing.filling import Seal, Shop
    from shardloader.writing.layout import Closed, Position, Run
    from shardloader.writing.shard_file import Sealed
    from shardloader.writing.sources.base import Part

_PATIENCE_S = 5.0  # for a process that ends
_MAX_SEALED = 2  # shards that a worker has yet to seal before it makes no more chunks
_MAX_HELD = 2  # chunks that a worker keeps before it waits to be told where they go


class _Told(NamedTuple):
    """A head that a worker told: whose chunk it is, and by which number."""

    worker: int
    number: int
    head: Head


class Pool:
    """Worker processes, as `Hands`."""

    def __init__(self, shop: Shop, *, workers: int, lock: int | None) -> None:
        self._shop = shop
        self._context = multiprocessing.get_context("fork")
        self._num_workers = workers
        self._lock = lock
        self._processes: list[Any] = []
        self._pipes: list[connection.Connection] = []
        self._free: deque[int] = deque()
        self._parts: deque[int] = deque()  # those that were given out, in order
        self._heads: dict[int, deque[_Told]] = {}  # by part
        self._now: _Told | None = None
        self._frames: list[Frame] | None = None
        self._filling: dict[int, Filling] = {}
        self._done: dict[int, Sealed] = {}
        self._closed: deque[int] = deque()  # shards that have yet to come back sealed, in order
        self._next_sealer = 0

    def __enter__(self) -> Self:
        for _ in range(self._num_workers):
            here, there = self._context.Pipe()
            inherited = [*self._pipes, here]
            process = self._context.Process(
                target=_work, args=(self._shop, there, inherited, self._lock), daemon=True
            )
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(0.2 if error[0] is not None else _PATIENCE_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()

    def chunks(self, parts: Iterator[Part], start: Position | None) -> Iterator[Head]:
        """Yield the heads of all chunks from a position on, in order."""
        todo = remaining(parts, start)
        is_at_end = False
        while True:
            while self._free and not is_at_end:
                part, row = next(todo, (None, 0))
                if part is None:
                    is_at_end = True
                    break
                self._parts.append(part.number)
                self._tell(self._free.popleft(), ("part", part, row))
            told = self._next_told()
            if told is not None:
                self._now = told
                yield told.head
                if self._now is not None:
                    self.put(())
            elif is_at_end and not self._parts:
                return
            else:
                self._receive()

    def recut(self, groups: Sequence[Sequence[int]]) -> list[Frame]:
        """Make other frames of the chunk that was yielded last."""
        worker, number, _ = self._yielded()
        self._tell(worker, ("recut", number, groups))
        while self._frames is None:
            self._receive()
        frames, self._frames = self._frames, None
        return frames

    def put(self, runs: Sequence[Run]) -> None:
        """Have the chunk that was yielded last written to where its runs say."""
        worker, number, head = self._yielded()
        self._now = None
        for run in runs:
            filling = self._filling.setdefault(run.shard, Filling())
            filling.waiting.add((worker, number))
            filling.take(head, run)
        self._tell(worker, ("place", number, runs))

    def close(self, closed: Closed) -> None:
        """Have a shard sealed, once all that was put into it is there."""
        self._closed.append(closed.shard)
        self._filling[closed.shard].closed = closed
        self._seal_if_full(closed.shard)

    def sealed(self, *, wait: bool = False) -> Iterator[Sealed]:
        """Yield shards that are sealed, in their order; all that were closed, if `wait`."""
        while self._closed:
            sealed = self._done.pop(self._closed[0], None)
            if sealed is not None:
                self._closed.popleft()
                yield sealed
            elif wait:
                self._receive()
            else:
                return

    def _yielded(self) -> _Told:
        if self._now is None:
            raise AssertionError("a chunk was yielded before")
        return self._now

    def _next_told(self) -> _Told | None:
        """Give the next head in the input's order, if it was told already."""
        waiting = self._heads.get(self._parts[0]) if self._parts else None
        if not waiting:
            return None
        told = waiting.popleft()
        if told.head.is_last:
            del self._heads[self._parts.popleft()]
        return told

    def _seal_if_full(self, shard: int) -> None:
        filling = self._filling[shard]
        closed = filling.closed
        if closed is None or filling.waiting:
            return
        del self._filling[shard]
        seal = filling.seal(self._shop, closed)
        self._tell(self._next_sealer, ("seal", seal))
        self._next_sealer = (self._next_sealer + 1) % len(self._pipes)

    def _tell(self, worker: int, message: tuple[Any, ...]) -> None:
        try:
            self._pipes[worker].send(message)
        except OSError:
            self._raise_what_failed(worker)

    def _receive(self) -> None:
        """Wait until a worker says something, and take it in."""
        for pipe in connection.wait(self._pipes):
            worker = self._pipes.index(pipe)  # type: ignore[arg-type]
            try:
                message = self._pipes[worker].recv()
            except (EOFError, ConnectionError):
                raise self._gone(worker) from None
            self._take(worker, message)

    def _take(self, worker: int, message: tuple[Any, ...]) -> None:
        kind, *content = message
        if kind == "free":
            self._free.append(worker)
        elif kind == "chunk":
            number, head = content
            self._heads.setdefault(head.part, deque()).append(_Told(worker, number, head))
        elif kind == "placed":
            for shard, filling in list(self._filling.items()):
                filling.waiting.discard((worker, content[0]))
                self._seal_if_full(shard)
        elif kind == "recut":
            self._frames = content[0]
        elif kind == "sealed":
            self._done[content[0]] = content[1]
        else:
            raise content[0]

    def _raise_what_failed(self, worker: int) -> None:
        """Raise what a worker said before its pipe broke."""
        try:
            while True:
                self._take(worker, self._pipes[worker].recv())
        except (EOFError, ConnectionError):
            raise self._gone(worker) from None

    def _gone(self, worker: int) -> WorldError:
        """Say that a worker is there no more."""
        process = self._processes[worker]
        process.join(_PATIENCE_S)
        if process.exitcode is not None and process.exitcode >= 0:
            return WorldError(
                f"a process that wrote shards ended with code {process.exitcode}, and what it said "
                "before tells why: finished shards are kept"
            )
        return WorldError(
            "a process that wrote shards was killed, perhaps for want of memory: run the command "
            "again (finished shards are kept), with fewer workers"
        )


def _work(
    shop: Shop,
    pipe: connection.Connection,
    inherited: Sequence[connection.Connection],
    lock: int | None,
) -> None:
    """Be a worker, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started it
    for other in inherited:
        other.close()
    if lock is not None:
        os.close(lock)
    worker = _Worker(shop, pipe)
    worker.ending_with_failures(worker.work)


class _Worker:
    """What a worker holds: chunks that have no place yet, and the files that it fills.

    Shards are sealed beside that: to wait for the disk takes as long as to make many a chunk.
    """

    def __init__(self, shop: Shop, pipe: connection.Connection) -> None:
        self._shop = shop
        self._pipe = pipe
        self._inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._held: dict[int, Chunk] = {}
        self._filler = Filler(shop)
        self._sealing = Beside(ahead=_MAX_SEALED)
        self._speaking = threading.Lock()
        self._number = 0
        # always emptied, so that whoever sends never waits for a worker that sends itself
        threading.Thread(target=self._listen, daemon=True).start()

    def work(self) -> None:
        self.say("free")
        while True:
            message = self._inbox.get()
            if message[0] == "part":
                self._take_part(message[1], message[2])
                self.say("free")
            else:
                self._obey(message)

    def ending_with_failures(self, call: Callable[..., None], *arguments: object) -> None:
        """Make a call; if it fails, tell why and end this process, from whatever thread."""
        try:
            call(*arguments)
        except (ShardLoaderError, OSError, MemoryError) as error:
            failure = error if isinstance(error, ShardLoaderError) else WorldError(repr(error))
            self.say("failed", failure)
            os._exit(1)
        except BaseException:  # noqa: BLE001  (in a thread nobody would wait for it)
            traceback.print_exc()
            os._exit(1)

    def say(self, kind: str, *content: Any) -> None:
        try:
            with self._speaking:
                self._pipe.send((kind, *content))
        except OSError:
            os._exit(1)  # nobody listens any more

    def _listen(self) -> None:
        try:
            while True:
                self._inbox.put(self._pipe.recv())
        except (EOFError, OSError):
            os._exit(0)

    def _take_part(self, part: Part, start: int) -> None:
        shop = self._shop
        for chunk in chunks_of(shop.source, part, shop.recipe, start=start):
            if shop.spill is not None:
                shop.spill.write(chunk)
                chunk.head.keys, chunk.head.sizes = [], [chunk.num_bytes]
            self._held[self._number] = chunk
            head = chunk.outlined() if shop.spill is None else chunk.head
            self.say("chunk", self._number, head)
            self._number += 1
            while len(self._held) >= _MAX_HELD or not self._inbox.empty():
                self._obey(self._inbox.get())

    def _obey(self, message: tuple[Any, ...]) -> None:
        kind, *content = message
        if kind == "place":
            number, runs = content
            self._filler.write(self._held.pop(number), runs)
            self.say("placed", number)
        elif kind == "recut":
            number, groups = content
            self.say("recut", self._held[number].recut(groups))
        else:
            self._sealing.do(self.ending_with_failures, self._seal, content[0])

    def _seal(self, seal: Seal) -> None:
        self.say("sealed", seal.shard, self._filler.seal(seal))
