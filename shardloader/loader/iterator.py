"""One pass over what is left of an epoch.

Until it has given a batch it follows load_state_dict and set_epoch. Afterwards a change of the
loader's position, or a later iterator, puts it out of date. It counts a batch as received when it
hands it over, and the epoch as finished with the last one, whether or not anybody asks for more.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shardloader.dataset.skipping import Carrier
from shardloader.errors import StaleIteratorError, WorldError
from shardloader.loader.accelerated import Pass
from shardloader.loader.stall import Vigil, Wait, tell_over

if TYPE_CHECKING:
    from shardloader.dataset.batches import Row
    from shardloader.dataset.skipping import Fault
    from shardloader.loader.engine import Engine
    from shardloader.loader.meter import Meter
    from shardloader.loader.progress import Progress
    from shardloader.loader.stats import Account, Leg
    from shardloader.order.schedule import Schedule


class LoaderIterator(Iterator[Any]):
    """This rank's batches from the loader's position to the end of the epoch.

    stall_s: seconds after which a step says what it waits for, None for never.
    """

    def __init__(
        self, progress: Progress, engine: Engine, account: Account, *, stall_s: float | None
    ) -> None:
        self._process = os.getpid()
        self._progress = progress
        self._engine = engine
        self._account = account
        # Not the iterator itself: the loader must not keep alive what a loop has let go.
        self._token = object()
        self._schedule: Schedule | None = None
        self._batches: Iterator[Any] | None = None
        self._rows: Iterator[Row] | None = None
        self._leg: Leg | None = None
        self._meter: Meter = account.meter
        self._stall_s = stall_s
        self._wait = Wait()
        self._vigil: Vigil | None = None
        self._pass: Pass | None = None
        self._given = 0
        self._num_batches = 0
        self._num_steps = 0
        self._failed = False
        self._ended = False

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        """The next batch; raises StaleIteratorError once the iterator is out of date."""
        if self._ended:
            self._leave()
            self._check_not_moved()
            raise StopIteration
        self._wait.asked = asked = self._meter.now()
        try:
            return self._next(asked)
        except BaseException:
            self._wait.asked = None
            raise

    def _next(self, asked: float) -> Any:
        if self._given == 0 and not self._failed:
            self._start()
            self._meter.begin(asked)
        self._check_current()
        schedule = self._schedule
        if schedule is None or self._given == self._num_batches:
            self._end(schedule)
            raise StopIteration
        batch = self._fetch()
        self._check_current()  # another thread may have moved the position meanwhile
        self._meter.received(asked)
        self._wait.asked = None
        if self._wait.told == asked:
            tell_over(self._given, self._meter.now() - asked)
        self._given += 1
        is_last = self._given == self._num_steps
        if self._pass is not None:
            self._pass.end_of_dataloader = self._given == self._num_batches
        if is_last:
            self._let_go()
            self._ended = True
        self._progress.receive(schedule.dealing.consumed_after(self._given), is_last=is_last)
        if is_last:
            self._look_forward()
        return batch

    def _look_forward(self) -> None:
        """Let the engine know what comes next, if the loop goes on as it did."""
        progress = self._progress
        self._engine.ended(progress.schedule(), progress.recipe, epoch=progress.position.epoch)

    def _start(self) -> None:
        progress = self._progress
        if progress.topology.world_size > 1:  # else workers start before this process has a thread
            self._watch()
        self._schedule = progress.begin(self._token)
        if self._schedule is None:
            return
        self._num_steps = self._schedule.dealing.num_steps
        self._num_batches = self._schedule.dealing.num_batches(progress.topology.rank)
        if self._num_batches:
            self._rows = progress.rows_to_log(self._schedule)
            leg = self._account.begin(self._schedule, progress.topology.rank)
            self._leg = self._wait.leg = leg
            self._leave()
            self._pass = Pass(self)
            self._batches = self._engine.batches(
                self._schedule, progress.recipe, epoch=progress.position.epoch
            )
            self._account.making = self._wait.making = self._engine.making
            self._wait.catalog = progress.recipe.catalog
            self._watch()

    def _watch(self) -> None:
        if self._vigil is None and self._stall_s is not None:
            self._vigil = Vigil(self._wait, self._stall_s, self._meter.now)
            weakref.finalize(self, self._vigil.end).atexit = False

    def _check_not_moved(self) -> None:
        """An iterator that is at its end says so, unless a position was loaded since."""
        if self._given and self._progress.token is None:
            raise self._stale()

    def _stale(self) -> StaleIteratorError:
        return StaleIteratorError(
            f"an iterator goes on while the loader's position is its own, and after this one had "
            f"given {self._given} batches the position was changed by load_state_dict, skip or a "
            "later iterator: make a new one with iter(loader)"
        )

    def _check_current(self) -> None:
        if os.getpid() != self._process:
            raise StaleIteratorError(
                "an iterator goes on in the process that made it, whose threads and workers read "
                "for it, and this is a child: make one here with iter(loader)"
            )
        if self._failed:
            self._let_go()
            raise StaleIteratorError(
                "an iterator that raised an error is at its end, since a worker stops at its "
                "first error: make a new one with iter(loader), or load a state to go on from it"
            )
        if self._progress.token is not self._token:
            self._let_go()
            raise self._stale()

    def _fetch(self) -> Any:
        """The next batch from the workers, and its line in the log."""
        leg = self._leg
        if self._batches is None or leg is None:
            raise AssertionError
        self._failed = True  # until the batch is here, and in the log
        try:
            batch = next(self._batches)
        except StopIteration:
            raise WorldError(
                f"the workers ended after {self._given} of {self._num_batches} batches: look in "
                "their output why, and make a new iterator"
            ) from None
        except (RuntimeError, OSError, EOFError):
            # What torch raises for a dead worker, or one that dies while it hands over a
            # descriptor: start new ones next time.
            self._engine.forget_workers()
            raise
        faults: tuple[Fault, ...] = ()
        if type(batch) is Carrier:
            batch, faults = batch
        leg.given += 1
        if faults or self._account.is_waiting:
            progress = self._progress
            self._account.take(
                leg, faults, epoch=progress.position.epoch, manifest=progress.manifest
            )
        if self._rows is not None and self._schedule and self._progress.sample_log:
            self._progress.sample_log.step(
                epoch=self._progress.position.epoch,
                consumed=self._schedule.dealing.consumed_after(self._given),
                row=next(self._rows),
                faults=faults,
            )
        self._failed = False
        return batch

    def _end(self, schedule: Schedule | None) -> None:
        """The end without a last batch: an empty pass, no data, or "join" on a shorter rank."""
        self._let_go()
        self._leave()
        self._ended = True
        if schedule is not None:
            self._progress.receive(schedule.dealing.length, is_last=True)

    def _leave(self) -> None:
        """Let a trainer turn to whatever it iterated before."""
        if self._pass is not None:
            self._pass.leave()
            self._pass = None

    def _let_go(self) -> None:
        """Let workers that are not persistent end; nobody waits for them."""
        self._wait.asked = None
        self._batches = None
        self._rows = None
        if self._vigil is not None:
            self._vigil.end()
