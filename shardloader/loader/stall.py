"""Why does a step wait so long?

A thread looks at the clock, asleep but for once in a while, and says in the log what a step waits
for once it has waited longer than a limit: who makes the batch, what it does, with which shard.
Once a stall. It reads what others leave for it, and changes nothing; it keeps neither the loader
nor its iterator alive.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from shardloader.errors import UsageError
from shardloader.reading.diary import UNKNOWN, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardloader.reading.catalog import Catalog
    from shardloader.reading.diary import Doing

log = logging.getLogger("shardloader")

STALL_S: Final = 30.0
OF_STAGES: Final = {
    Stage.STARTING: "is starting",
    Stage.IDLE: "has nothing to do but hand over what it made",
    Stage.LOCATING: "looks up where samples lie",
    Stage.OPENING: "opens {shard}",
    Stage.LOCK: "waits for another process of this node, which brings {shard} into the cache",
    Stage.ROOM: "waits for room in the cache {cache}, for {shard}",
    Stage.ASKING: "asks the store about {shard}",
    Stage.FETCHING: "fetches {shard}, {done} of {total} bytes are here",
    Stage.UNPACKING: "unpacks {shard} into the cache, {done} bytes of its tar are written",
    Stage.RETRYING: "waits before it asks for {shard} again, since the store failed",
    Stage.DECODING: "reads and decodes the samples of a batch",
    Stage.TRANSFORMING: "is in transform=, with sample {index} of {shard}",
    Stage.COLLATING: "joins samples to a batch, in collate_fn= if there is one",
}


def checked_stall(stall_s: Any) -> float | None:
    """The limit, None for none; raises UsageError for what is no number of seconds above 0."""
    if stall_s is None:
        return None
    if isinstance(stall_s, bool) or not isinstance(stall_s, int | float) or not stall_s > 0:
        raise UsageError(
            "stall_s= is how many seconds a step may wait before the log says what for, above 0, "
            f"or None for never, and was {stall_s!r}"
        )
    return float(stall_s)


def told(who: str, doing: Doing, catalog: Catalog) -> str:
    """What somebody does, in words; a shard by its path or its URL without secrets."""
    is_known = doing.shard != UNKNOWN and doing.shard < catalog.num_shards
    words = OF_STAGES[doing.stage].format(
        shard=catalog.shard_path(doing.shard) if is_known else "a shard",
        cache=catalog.cache.folder if catalog.cache else "",
        index=doing.index,
        done=doing.done,
        total=doing.total or "unknown",
    )
    if not doing.since_ns:
        return f"{who} {words}"
    return f"{who} {words}, since {(time.monotonic_ns() - doing.since_ns) / 1e9:.1f} s"


class Vigil:
    """Watches the steps of one iterator.

    limit_s: seconds that a step may wait; describe: what for; clock: seconds. asked: when the batch
    that is being waited for was asked for; None while nobody waits. The training loop writes it,
    and nothing else is asked of it a step.
    """

    def __init__(
        self, limit_s: float, describe: Callable[[], str], clock: Callable[[], float]
    ) -> None:
        self.asked: float | None = None
        self._limit_s = limit_s
        self._describe = describe
        self._now = clock
        self._told: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shardloader-stall", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching."""
        self._over.set()

    def came(self, number: int) -> None:
        """The batch is here: say so if it was waited for aloud."""
        asked, self.asked = self.asked, None
        if asked is not None and asked == self._told:
            waited = self._now() - asked
            log.warning("batch %d of this pass came after %.1f s; the run goes on", number, waited)

    def _watch(self) -> None:
        pause = self._limit_s
        while not self._over.wait(pause):
            asked = self.asked
            if asked is None or asked == self._told:
                pause = self._limit_s
                continue
            waited = self._now() - asked
            pause = self._limit_s - waited
            if pause <= 0:
                pause, self._told = self._limit_s, asked
                log.warning("the training loop waits since %.1f s: %s", waited, self._describe())
