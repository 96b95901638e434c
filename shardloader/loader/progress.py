"""Where does training stand, in which topology, on which grid?

`order.position` and `order.checkpoint` decide; this module knows which dataset, rank and batch
size they decide for, and says in the log what a user should know.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from shardloader.dataset.batches import rows
from shardloader.dataset.recipe import NEXT_EPOCH
from shardloader.distributed.rendezvous import can_meet, meet
from shardloader.errors import ShardLoaderError
from shardloader.order.agreement import FIELDS, verdict
from shardloader.order.checkpoint import starting_grid
from shardloader.order.grid import default_grid
from shardloader.order.integers import checked
from shardloader.order.position import Position
from shardloader.order.schedule import Schedule
from shardloader.planning.sample_log import Start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardloader.dataset.batches import Row
    from shardloader.dataset.recipe import Recipe
    from shardloader.dataset.shard_dataset import ShardDataset
    from shardloader.format.manifest import Manifest
    from shardloader.loader.log import SampleLog
    from shardloader.order.batching import Batch, Batching
    from shardloader.order.checkpoint import Checkpoint
    from shardloader.order.epoch import Order
    from shardloader.order.grid import Grid
    from shardloader.order.topology import Topology

log = logging.getLogger("shardloader")


class Progress:
    """The position of one loader.

    patience_s: seconds to wait for other ranks before an epoch; token: the iterator that the
    position belongs to, an iterator with another one is out of date; sample_log: where received
    samples are written down, if anywhere.
    """

    def __init__(
        self, source: ShardDataset, *, batching: Batching, num_workers: int, patience_s: float
    ) -> None:
        self.position = Position()
        self.token: object = None
        self.sample_log: SampleLog | None = None
        self.batching = batching
        self._source = source
        self._options = source.options
        self._order: tuple[Recipe, Order] | None = None
        self._num_workers = num_workers
        self._patience_s = patience_s
        self._grid: Grid | None = None
        self._said: set[str] = set()
        self._closed: tuple[int, int] | None = None  # the epoch that a load left, and where
        self._earlier: tuple[int, Recipe] | None = None  # an epoch that is read as the data was
        self._loaded_dataset: str | None = None  # of the state that was loaded, as it was then

    @property
    def topology(self) -> Topology:
        """The data-parallel rank and world size."""
        return self._source.resolve_topology()

    @property
    def recipe(self) -> Recipe:
        """What the present epoch is read from: the dataset, or what it was before it grew."""
        if self._earlier is not None and self._earlier[0] == self.position.epoch:
            return self._earlier[1]
        return self._source.recipe

    @property
    def manifest(self) -> Manifest:
        """The list of shards that the present epoch is read from."""
        return self.recipe.catalog.manifest

    @property
    def batch(self) -> Batch:
        """Samples a rank and step, and steps an optimiser step, in this topology."""
        return self.batching.on(self.topology.world_size)

    @property
    def step_size(self) -> int:
        """Samples of a step over all ranks."""
        return self.topology.world_size * self.batch.batch_size

    @property
    def global_batch(self) -> int:
        """Samples of an optimiser step over all ranks."""
        return self.step_size * self.batch.accumulate

    def schedule(self, *, consumed: int | None = None) -> Schedule:
        """What is left of the epoch after `consumed` positions, by default those received."""
        at = self.position.consumed if consumed is None else consumed
        return Schedule.of(
            self._order_on(self._grid_at(at)),
            epoch=self.position.epoch,
            consumed=at,
            world_size=self.topology.world_size,
            batch_size=self.batch.batch_size,
            even=self._options.even,
            accumulate=self.batch.accumulate,
        )

    def checkpoint(self) -> Checkpoint:
        """The present position as a state holds it."""
        position = self.position
        start = self.recipe.start_of(
            position.epoch, self._grid_at(position.consumed), global_batch=self.global_batch
        )
        return start.at(epoch=position.epoch, consumed=position.consumed)

    def load(self, loaded: Checkpoint) -> None:
        """Go on from a checkpoint; raises CheckpointError if it is of another order."""
        recipe, loaded_dataset = self._source.recipe, loaded.dataset
        grown = self._grown_from(loaded)
        if grown is not None and loaded.consumed == 0:
            loaded, grown = replace(loaded, dataset=recipe.catalog.manifest.digest), None
        recipe = grown or recipe
        loaded.check_matches(replace(self.checkpoint(), dataset=recipe.catalog.manifest.digest))
        loaded.check_fits(recipe.order(loaded.grid))
        self._earlier = None if grown is None else (loaded.epoch, grown)
        self._loaded_dataset = loaded_dataset
        self._grid = loaded.grid
        self._closed = None
        self._move(self.position.load(epoch=loaded.epoch, consumed=loaded.consumed))
        self._say_what_changes(loaded)
        if loaded.consumed and self.schedule().dealing.num_steps == 0:
            log.warning(
                "epoch %d is over: %d samples are left of it, no step in this topology",
                loaded.epoch,
                self._length() - loaded.consumed,
            )
            self._move(self.position.load(epoch=loaded.epoch + 1, consumed=0))
            self._closed = (loaded.epoch, loaded.consumed)
        if self.sample_log is not None:
            self.sample_log.rolled_back()
            if self._closed:  # nothing else would tell of it if no batch follows
                self.sample_log.start(self._about(self.schedule()))

    def _grown_from(self, loaded: Checkpoint) -> Recipe | None:
        """The dataset that a state is of, if this one was appended to since and that is wanted."""
        recipe = self._source.recipe
        now = recipe.catalog.manifest
        if self._options.on_change != NEXT_EPOCH or loaded.dataset == now.digest:
            return None
        earlier = recipe.earlier(loaded.dataset)
        if earlier is not None:
            log.info(
                "the dataset has grown since the state was made, from %d to %d samples: %s",
                earlier.catalog.manifest.num_samples,
                now.num_samples,
                f"epoch {loaded.epoch} goes on with those that it began with"
                if loaded.consumed
                else f"epoch {loaded.epoch} begins with all of them",
            )
        return earlier

    def set_epoch(self, epoch: int) -> None:
        """Read `epoch` next."""
        length = self._length() if self.position.consumed else 0
        position, note = self.position.set_epoch(epoch, length=length)
        self._stand_at(position)
        if note:
            log.warning(note)

    def skip(self, steps: int) -> None:
        """Move on by `steps` steps without reading them."""
        steps = checked("steps", steps, least=0)
        schedule = self.schedule()
        dealing = schedule.dealing
        consumed = dealing.consumed_after(steps) if steps else dealing.consumed
        is_last = steps > 0 and steps >= dealing.num_steps
        if steps:
            self._grid = schedule.order.grid  # what was left out was so on this grid
        if self.sample_log is not None and steps:
            self.sample_log.start(self._about(schedule))
            self.sample_log.skip(
                epoch=self.position.epoch,
                consumed=self.position.consumed,
                count=consumed - self.position.consumed,
            )
        self._move(self.position.skip(consumed, is_last=is_last))

    def begin(self, token: object) -> Schedule | None:
        """Let the iterator of `token` start: its schedule, or None for an empty pass."""
        was_empty, before, earlier = self.position.empty, self.position, self._earlier
        length = self._length() if before.running else 0
        position, note = before.begin(length=length)
        self._stand_at(position)
        try:
            schedule = self.schedule()
            self._agree(schedule, num_steps=0 if was_empty else schedule.dealing.num_steps)
        except ShardLoaderError:
            self.position, self._earlier = before, earlier  # nothing has begun
            raise
        if note:
            log.log(logging.INFO if "broken off" in self._said else logging.WARNING, note)
            self._said.add("broken off")
        self.token = token
        if was_empty:
            return None
        self._grid = schedule.order.grid
        if schedule.dealing.num_steps == 0:
            log.warning(
                "epoch %d has no step: its %d samples make no step of %d",
                self.position.epoch,
                schedule.dealing.length,
                schedule.dealing.step_size,
            )
        if self.sample_log is not None:
            self.sample_log.start(self._about(schedule))
        return schedule

    def _agree(self, schedule: Schedule, *, num_steps: int) -> None:
        """Compare with all ranks what the order depends on; raises AgreementError if they differ.

        Where torch.distributed is not initialised there is nobody to ask.
        """
        topology = self.topology
        if topology.world_size == 1 or not can_meet(topology):
            return
        state = self.checkpoint().to_state()
        stand = {
            **{name: state[name] for name in state if name in FIELDS},
            "next_dataset": self._source.recipe.catalog.manifest.digest,
            "world_size": topology.world_size,
            "batch_size": schedule.dealing.batch_size,
            "accumulate": schedule.dealing.accumulate,
            "even": schedule.dealing.even,
            "num_steps": num_steps,
        }
        meet(topology, stand, verdict, timeout_s=self._patience_s, party=self)

    def rows_to_log(self, schedule: Schedule) -> Iterator[Row] | None:
        """What this rank will receive, where it is written down."""
        return None if self.sample_log is None else rows(schedule, self.topology.rank)

    def receive(self, consumed: int, *, is_last: bool) -> None:
        """A batch, or the epoch's end, was received."""
        self._stand_at(self.position.receive(consumed, is_last=is_last))

    def _move(self, position: Position) -> None:
        """Take a position that no iterator has reached: those that gave batches are out of date."""
        self._stand_at(position)
        self.token = None

    def _stand_at(self, position: Position) -> None:
        """Take a position: an epoch that starts at its beginning is of all that there is now."""
        self.position = position
        if position.consumed == 0:
            self._earlier = None

    def _order_on(self, grid: Grid) -> Order:
        """The order on a grid; the last one is kept, since sums over many shards take time."""
        recipe = self.recipe
        if self._order is None or self._order[0] is not recipe or self._order[1].grid != grid:
            self._order = recipe, recipe.order(grid)
        return self._order[1]

    def _length(self) -> int:
        """Positions of the present epoch."""
        return self.schedule().dealing.length

    def _grid_at(self, consumed: int) -> Grid:
        given = self._options.grid
        present = default_grid(
            world_size=self.topology.world_size,
            num_workers=self._num_workers,
            batch_size=self.batch.batch_size,
            shuffled=self._options.shuffle is not None,
        )
        return starting_grid(
            self._grid or given or present,
            present,
            given=given,
            consumed=consumed,
            steps_per_epoch=self._options.steps_per_epoch,
            global_batch=self.global_batch if self.batching.is_grouped else None,
        )

    def _say_what_changes(self, loaded: Checkpoint) -> None:
        was, given = loaded.global_batch or loaded.grid.step, self._options.grid
        if was != self.global_batch:
            log.log(
                logging.WARNING if self.topology.rank == 0 else logging.INFO,
                "the global batch changes from %d to %d samples: every sample is still read once, "
                "but the optimisation problem is another",
                was,
                self.global_batch,
            )
        within = loaded.consumed % self.global_batch
        if self.batching.is_grouped and within:
            log.warning(
                "the state lies within an optimiser step, %d of its %d samples consumed: gradients "
                "that were added up before it are not part of it; save after optimiser steps",
                within,
                self.global_batch,
            )
        if given not in {None, self._grid_at(loaded.consumed)}:
            endless = self._options.steps_per_epoch is not None
            log.info(
                "grid= holds %s: this one goes on with %s",
                "for a new run, since an endless order keeps its own"
                if endless
                else "from the next epoch on",
                loaded.grid,
            )

    def _about(self, schedule: Schedule) -> Start:
        """What the log says of where an attempt starts."""
        manifest, order = self.manifest, schedule.order
        loaded = self._loaded_dataset
        return Start(
            rank=self.topology.rank,
            world_size=self.topology.world_size,
            batch_size=schedule.dealing.batch_size,
            even=schedule.dealing.even,
            dataset=manifest.digest,
            num_samples=order.num_samples,
            num_shards=int((manifest.counts > 0).sum()),
            seed=order.seed,
            window=order.window,
            steps_per_epoch=order.steps_per_epoch,
            epoch=self.position.epoch,
            consumed=self.position.consumed,
            grid=order.grid,
            closed=self._closed,
            grown_from=None if loaded == manifest.digest else loaded,
        )
