"""How do several machines write one dataset?

As tasks on a Ray cluster, which is an extra: a task encodes a part, others write its chunks to
where they were decided to lie, and one seals a shard when those have ended. What a lost machine had
made is made again by Ray, which knows of each object the task that it came from; and since tasks
write the same bytes at the same places, doing one twice does no harm. All machines see the
destination, and a source that is no URL, under the same paths.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Self

from shardloader.errors import MissingExtraError, ShardLoaderError, WorldError
from shardloader.writing.chunks import chunks_of
from shardloader.writing.filling import Filler, Filling
from shardloader.writing.hands import remaining

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardloader.writing.chunks import Chunk, Frame, Head
    from shardloader.writing.filling import Seal, Shop
    from shardloader.writing.layout import Closed, Position, Run
    from shardloader.writing.shard_file import Sealed
    from shardloader.writing.sources.base import Part

_RETRIES = 10  # of a task whose machine was lost
_PARTS_A_CPU = 2  # that are encoded ahead


class RayHands:
    """The workers of a Ray cluster, as `Hands`; of a local one without an address."""

    def __init__(self, shop: Shop, *, address: str | None) -> None:
        self._shop = shop
        self._address = address
        self._ray = _ray()
        self._is_own = False
        self._shop_ref: Any = None
        self._encoding: deque[tuple[Any, Any]] = deque()  # refs of heads and of chunks, by part
        self._now: tuple[Any, int, Head] | None = None  # ref of chunks, number among them, head
        self._filling: dict[int, Filling] = {}
        self._placing: dict[int, list[Any]] = {}  # refs by shard
        self._sealing: deque[Any] = deque()

    def __enter__(self) -> Self:
        ray = self._ray
        if not ray.is_initialized():
            self._is_own = True
            try:
                ray.init(address=self._address, log_to_driver=False, include_dashboard=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise WorldError(f"no Ray cluster at {self._address!r}: {error}") from error
        self._shop_ref = ray.put(self._shop)
        task = ray.remote(max_retries=_RETRIES)
        self._encode = task(_encode).options(num_returns=2)
        self._place, self._seal, self._recut = task(_place), task(_seal), task(_recut)
        return self

    def __exit__(self, *error: object) -> None:
        for _, chunks in self._encoding:
            self._ray.cancel(chunks)
        if self._is_own:
            self._ray.shutdown()

    def chunks(self, parts: Iterator[Part], start: Position | None) -> Iterator[Head]:
        """Yield the heads of all chunks from a position on, in order."""
        todo = remaining(parts, start)
        ahead = _PARTS_A_CPU * max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        is_at_end = False
        while True:
            while len(self._encoding) < ahead and not is_at_end:
                part, row = next(todo, (None, 0))
                is_at_end = part is None
                if part is not None:
                    self._encoding.append(self._encode.remote(self._shop_ref, part, row))
            if not self._encoding:
                return
            heads_ref, chunks_ref = self._encoding.popleft()
            for number, head in enumerate(self._got(heads_ref)):
                self._now = (chunks_ref, number, head)
                yield head
                self._now = None

    def recut(self, groups: Sequence[Sequence[int]]) -> list[Frame]:
        """Make other frames of the chunk that was yielded last."""
        chunks, number, _ = self._yielded()
        frames: list[Frame] = self._got(self._recut.remote(chunks, number, groups))
        return frames

    def put(self, runs: Sequence[Run]) -> None:
        """Have the chunk that was yielded last written to where its runs say."""
        chunks, number, head = self._yielded()
        for run in runs:
            self._filling.setdefault(run.shard, Filling()).take(head, run)
            # one task a shard, so that sealing waits for what concerns it
            placed = self._place.remote(self._shop_ref, chunks, number, [run])
            self._placing.setdefault(run.shard, []).append(placed)

    def close(self, closed: Closed) -> None:
        """Have a shard sealed, once all that was put into it is there."""
        seal = self._filling.pop(closed.shard).seal(self._shop, closed)
        placed = self._placing.pop(closed.shard)
        self._sealing.append(self._seal.remote(self._shop_ref, seal, *placed))

    def sealed(self, *, wait: bool = False) -> Iterator[Sealed]:
        """Yield shards that are sealed, in their order; all that were closed, if `wait`."""
        while self._sealing:
            ready, _ = self._ray.wait([self._sealing[0]], timeout=None if wait else 0)
            if not ready:
                return
            yield self._got(self._sealing.popleft())

    def _yielded(self) -> tuple[Any, int, Head]:
        if self._now is None:
            raise AssertionError("a chunk was yielded before")
        return self._now

    def _got(self, ref: Any) -> Any:
        """Get what a task made, or raise what it raised as itself."""
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, ShardLoaderError) else _failed(error)) from None
        except self._ray.exceptions.RayError as error:
            raise _failed(error) from error


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingExtraError(
            "engine='ray' needs Ray, which is not installed: pip install 'shardloader[ray]'"
        ) from error
    return ray


def _failed(error: Exception) -> WorldError:
    return WorldError(
        f"a task on the Ray cluster failed: {error}; run the command again (finished shards are "
        "kept)"
    )


def _encode(shop: Shop, part: Part, start: int) -> tuple[list[Head], list[Chunk]]:
    chunks = list(chunks_of(shop.source, part, shop.recipe, start=start))
    for chunk in chunks:
        if shop.spill is not None:
            shop.spill.write(chunk)
            chunk.head.keys, chunk.head.sizes = [], [chunk.num_bytes]
        else:
            chunk.outlined()
    return [chunk.head for chunk in chunks], chunks


def _recut(chunks: list[Chunk], number: int, groups: Sequence[Sequence[int]]) -> list[Frame]:
    return chunks[number].recut(groups)


def _place(shop: Shop, chunks: list[Chunk], number: int, runs: Sequence[Run]) -> None:
    filler = Filler(shop)
    try:
        filler.write(chunks[number], runs)
        filler.sync()  # whoever seals, on another machine, can do that for its own memory only
    finally:
        filler.close()


def _seal(shop: Shop, seal: Seal, *placed: None) -> Sealed:
    del placed  # waited for
    filler = Filler(shop)
    try:
        return filler.seal(seal)
    finally:
        filler.close()
