"""Which rows does a worker read, and what does a batch look like?

A worker w of W makes the steps w, w+W, ... of the rest of an epoch. Positions are evaluated many
steps at a time. Samples are read field by field where all have the same ones, a batch at a time, or
some small batches at once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from shardloader.dataset.collate import collate, join_field, stack
from shardloader.dataset.recipe import GROUP_VALID, META
from shardloader.dataset.samples import Columns
from shardloader.dataset.skipping import Carrier, Filler
from shardloader.errors import UsageError, WorldError
from shardloader.order.schedule import Schedule
from shardloader.order.substitutes import candidates
from shardloader.reading.diary import Stage
from shardloader.reading.frames import without_frames

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from shardloader.dataset.recipe import Collate
    from shardloader.dataset.samples import SampleReader
    from shardloader.dataset.skipping import Filled, Skip
    from shardloader.order.schedule import StepSamples
    from shardloader.reading.extents import Extents

logger = logging.getLogger("shardloader")

SAMPLES_TO_LOCATE: Final = 16_384  # at once: few lookups a shard, and little memory
FIRST_TO_LOCATE: Final = 256
BYTES_TO_LOCATE: Final = 1 << 26  # of fields, which the kernel then fetches ahead
BYTES_TOGETHER: Final = 1 << 20  # of the fields of several small batches


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One rank's part of one step.

    step: counted from where the schedule starts; shard, sample, index, passes: int64 [size], as in
    StepSamples; valid: bool [size]; global_valid, group_valid: valid samples over all ranks, of
    the step and of the group of steps that make an optimiser step.
    """

    step: int
    shard: NDArray[np.int64]
    sample: NDArray[np.int64]
    index: NDArray[np.int64]
    passes: NDArray[np.int64]
    valid: NDArray[np.bool_]
    global_valid: int
    group_valid: int


class RowBlock(NamedTuple):
    """Rows that were evaluated together: the numbers of their steps, and what these hold."""

    steps: range
    read: StepSamples

    def rows(self) -> Iterator[Row]:
        """One row after another."""
        read = self.read
        batch_size = read.shard.shape[1]
        slots = zip(read.shard, read.sample, read.index, read.passes, read.valid, strict=True)
        numbers = zip(
            self.steps,
            read.size.tolist(),
            read.global_valid.tolist(),
            read.group_valid.tolist(),
            strict=True,
        )
        for arrays, (step, size, global_valid, group_valid) in zip(slots, numbers, strict=True):
            is_short = size < batch_size
            taken = [each[:size] for each in arrays] if is_short else arrays
            shard, sample, index, passes, valid = taken
            yield Row(step, shard, sample, index, passes, valid, global_valid, group_valid)


@dataclass(frozen=True, slots=True, eq=False)
class RowGroup:
    """Rows that are read at once.

    index, valid: of the rows, [rows, batch_size]; located: where their samples lie, one after
    another from `start` on; None where they have to be read one by one. num_bytes: of the fields
    of each row, where they are located.
    """

    rows: list[Row]
    index: NDArray[np.int64]
    valid: NDArray[np.bool_]
    located: Extents | None
    start: int
    batch_size: int
    num_bytes: int = 0


class Joined(NamedTuple):
    """The batches of a group, made where it was read; each leaves when it is given."""

    batches: deque[Any]


Read = Joined | Columns | Exception | None  # what became of a group, see `BatchMaker.read`


def row_blocks(
    schedule: Schedule, rank: int, *, worker: int = 0, num_workers: int = 1, skip: int = 0
) -> Iterator[RowBlock]:
    """The rows that a worker makes, after the first `skip` of them, many at a time."""
    reader = schedule.reader(rank)
    steps = range(worker, schedule.dealing.num_batches(rank), num_workers)[skip:]
    at_once = 1  # the first batch should not wait for a window's worth of evaluation
    while steps:
        now, steps = steps[:at_once], steps[at_once:]
        yield RowBlock(now, reader.steps(np.array(now, dtype=np.int64)))
        at_once = schedule.steps_at_once(num_workers)


def rows(
    schedule: Schedule, rank: int, *, worker: int = 0, num_workers: int = 1, skip: int = 0
) -> Iterator[Row]:
    """The rows that a worker makes, after the first `skip` of them."""
    for block in row_blocks(schedule, rank, worker=worker, num_workers=num_workers, skip=skip):
        yield from block.rows()


class BatchMaker:
    """Reads rows and joins them to batches.

    rank: of `schedule`, whose rows they are; skip: None where a bad sample stops the run;
    is_grouped: whether batches carry `__group_valid__`; reads_together: whether several small
    batches may be read at once, whose arrays then are views of one. A batch in which samples were
    bad or refused comes in a Carrier.
    """

    def __init__(
        self,
        reader: SampleReader,
        *,
        schedule: Schedule,
        rank: int,
        skip: Skip | None,
        collate_fn: Collate | None,
        meta: str,
        is_grouped: bool = False,
        reads_together: bool = False,
    ) -> None:
        self._reader = reader
        self._collate = collate_fn
        self._meta = META[meta] if is_grouped else tuple(n for n in META[meta] if n != GROUP_VALID)
        self._world_size = schedule.dealing.world_size
        self._skips = skip is not None
        reader.forget()
        # Of its own, since a schedule remembers passes, and rows may be evaluated in a thread.
        again = Schedule(schedule.order, schedule.dealing)
        self._filler = Filler(
            reader, skip=skip, candidates=lambda row: candidates(again, rank, row.step)
        )
        self._reads_together = reads_together
        self._to_locate = FIRST_TO_LOCATE  # samples; the next time by their size
        self._has_wondered = False
        self._begun: deque[int] = deque()  # first steps of groups that were given, and not joined

    @property
    def _joins_columns(self) -> bool:
        """Whether nothing needs samples: columns are joined as they are."""
        return self._collate is None and not self._reader.transforms

    def batches(self, block: RowBlock) -> Iterator[Any]:
        """The batches of a block's rows, each read when it is asked for, or a little before.

        What collate_fn makes of the samples, and the `__...__` entries.
        """
        for group in self.groups(block):
            yield from self.join(group, self.read(group))

    def groups(self, block: RowBlock) -> Iterator[RowGroup]:
        """The rows of a block, in groups that are read at once."""
        read, batch_size = block.read, block.read.shard.shape[1]
        rows = block.rows()
        num_whole = int(np.count_nonzero(read.size == batch_size))
        first = 0
        while first < num_whole:
            stop = min(first + max(1, self._to_locate // batch_size), num_whole)
            stop = first + self._reader.rows_at_once(read.shard[first:stop])
            self._move_to(block.steps[first], block.steps[stop - 1] + 1, read.shard[first:stop])
            near = slice(first, stop)
            page = self._reader.diary.page
            page.begin(Stage.LOCATING)
            located = self._reader.locate(read.shard[near].ravel(), read.sample[near].ravel())
            page.begin(Stage.IDLE)
            num_bytes = () if located is None else _bytes_of_rows(located, batch_size)
            together = 1 if located is None else self._rows_together(located, num_bytes, batch_size)
            for start in range(0, stop - first, together):
                of = slice(first + start, min(first + start + together, stop))
                group = list(islice(rows, of.stop - of.start))
                if located is None and self._skips:  # one bad shard is not the affair of all rows
                    yield self._alone(group[0])
                    continue
                index, valid = read.index[of], read.valid[of]
                begin = start * batch_size
                size = sum(num_bytes[start : start + together])
                self._begun.append(group[0].step)
                yield RowGroup(group, index, valid, located, begin, batch_size, size)
            first = stop
        for row in rows:  # a shorter one, under "join"
            yield self._alone(row)

    def _move_to(self, start: int, stop: int, shards: NDArray[np.int64]) -> None:
        """Go on, but from no later step than those that are being read still."""
        with suppress(IndexError):  # nothing is read still; another thread may be joining
            start = self._begun[0]
        self._reader.move_to(start, stop, shards)

    def _alone(self, row: Row) -> RowGroup:
        self._move_to(row.step, row.step + 1, row.shard)
        self._begun.append(row.step)
        located = self._reader.locate(row.shard, row.sample)
        size = len(row.shard)
        num_bytes = 0 if located is None else sum(_bytes_of_rows(located, size))
        return RowGroup([row], row.index[None], row.valid[None], located, 0, size, num_bytes)

    def read(self, group: RowGroup) -> Read:
        """Read and decode a group by columns, and join it if nobody needs samples; in any thread.

        None where its samples differ in their fields, and what was raised where one is bad: `join`
        reads them one by one.
        """
        if group.located is None:
            return None
        with_keys = "__key__" in self._meta or bool(self._collate) or self._reader.transforms
        stop = group.start + len(group.rows) * group.batch_size
        try:
            columns = self._reader.read_columns(
                group.located, group.start, stop, with_keys=with_keys
            )
        except Exception as error:  # noqa: BLE001 - it is raised again, with its place
            return without_frames(error)  # they would keep its shards open while others are read
        if not self._joins_columns:
            return columns
        try:
            return Joined(deque(self._batches_of(group, columns)))
        except Exception:  # noqa: BLE001 - `join` raises it, after the batches before it
            return columns

    def join(self, group: RowGroup, read: Read) -> Iterator[Any]:
        """The batches of a group that was read: transform and collate_fn are called here."""
        yield from self._joined_of(group, read)
        self._begun.popleft()

    def _joined_of(self, group: RowGroup, read: Read) -> Iterator[Any]:
        if isinstance(read, Joined):
            self._reader.diary.counts.add_field_bytes(group.num_bytes)
            while read.batches:
                yield read.batches.popleft()  # whoever lets go of it is the last that had it
            return
        if isinstance(read, Columns):
            self._reader.diary.counts.add_field_bytes(group.num_bytes)
            yield from self._batches_of(group, read)
            return
        before = self._filler.num_failed
        yield from map(self._one_by_one, group.rows)
        if self._filler.num_failed == before:
            self._wonder_at(read)

    def _batches_of(self, group: RowGroup, columns: Columns) -> Iterator[Any]:
        """The batches of a group that was read by columns."""
        size, together = group.batch_size, self._joins_columns
        names: list[str] = []
        parts: list[Any] = [_parts(columns.keys, size, len(group.rows))]
        for name, column in columns.fields.items():
            values = stack(column) if together else column
            # One tensor for the group, since making one costs as much as reading some samples.
            is_array = together and isinstance(values, np.ndarray)
            joined = join_field(name, values) if is_array else values
            names.append(name)
            parts.append(_parts(joined, size, len(group.rows)))
        slots = zip(_rows_of(group.index), _rows_of(group.valid), strict=True)
        for row, of, keys, *values in zip(group.rows, slots, *parts, strict=True):
            yield self._joined(row, keys, dict(zip(names, values, strict=True)), of)

    def is_slow(self, group: RowGroup) -> bool:
        """Whether reading costs more than handing over between threads."""
        return group.located is not None and (
            self._reader.waits_for_a_store or self._reader.is_slow(group.located.fields)
        )

    def _wonder_at(self, error: Exception | None) -> None:
        """Say once that columns failed where samples did not: right, and needlessly slow.

        Of a WorldError nothing is said: what failed outside, a full disk say, may go at once after.
        """
        if error is not None and not isinstance(error, WorldError) and not self._has_wondered:
            self._has_wondered = True
            logger.warning(
                "samples were read one by one, which is slower, since reading them together raised "
                "%s: %s; one by one they were good, so a decoder fails at times, or this is a "
                "fault of shardloader: please report it then",
                type(error).__name__,
                error,
            )

    def _rows_together(self, located: Extents, num_bytes: Sequence[int], batch_size: int) -> int:
        """How many small rows are read at once: a few calls more or less weigh there."""
        mean = max(1, sum(num_bytes) // (len(num_bytes) * batch_size))
        self._to_locate = min(SAMPLES_TO_LOCATE, BYTES_TO_LOCATE // mean)
        if not self._reads_together or self._reader.is_slow(located.fields):
            return 1
        return max(1, BYTES_TOGETHER // max(1, *num_bytes))

    def samples(self, block: RowBlock) -> Iterator[Any]:
        """The samples of rows of one, each with its own `__key__`, `__index__` and `__valid__`."""
        for row in block.rows():
            self._reader.move_to(row.step, row.step + 1, row.shard)
            read = self._filler.read(row)
            entries = {
                "__key__": read.keys[0],
                "__index__": int(read.row.index[0]),
                "__valid__": bool(read.row.valid[0]),
            }
            own = {name: entries[name] for name in self._meta if name in entries}
            sample = {**read.samples[0], **own}
            yield Carrier(sample, read.faults) if read.faults else sample

    def _one_by_one(self, row: Row) -> Any:
        """The batch of a row whose samples differ in their fields, or one of which is bad."""
        self._reader.expect(row.shard, row.sample)
        return self._filled(self._filler.read(row))

    def _filled(self, filled: Filled) -> Any:
        """The batch of a row whose samples were looked at one by one."""
        row = filled.row
        of = torch.from_numpy(row.index.copy()), torch.from_numpy(row.valid.copy())
        self._reader.diary.page.begin(Stage.COLLATING)
        batch = (self._collate or collate)(filled.samples)
        batch = self._with_entries(row, filled.keys, batch, of)
        return Carrier(batch, filled.faults) if filled.faults else batch

    def _joined(
        self, row: Row, keys: list[str], fields: dict[str, Any], of: tuple[Tensor, Tensor]
    ) -> Any:
        """The batch of a row that was read by columns."""
        if self._joins_columns:
            batch: Any = {
                name: join_field(name, values) if isinstance(values, list) else values
                for name, values in fields.items()
            }
            return self._with_entries(row, keys, batch, of)
        failed: dict[int, Exception] = {}
        samples = self._reader.transformed(row, keys, fields, failed)
        if failed:
            return self._filled(self._filler.fill(row, keys, samples, failed))
        self._reader.diary.page.begin(Stage.COLLATING)
        return self._with_entries(row, keys, (self._collate or collate)(samples), of)

    def _with_entries(
        self, row: Row, keys: list[str], batch: Any, of: tuple[Tensor, Tensor]
    ) -> Any:
        if not self._meta:
            return batch
        if not isinstance(batch, Mapping):
            raise UsageError(
                f"the entries {', '.join(self._meta)} are added to the mapping that collate_fn "
                f"returns, and it returned a {type(batch).__name__}: return a mapping, or give "
                'meta="none"'
            )
        entries = {
            "__valid__": of[1],
            "__global_valid__": row.global_valid,
            GROUP_VALID: row.group_valid,
            "__world_size__": self._world_size,
            "__index__": of[0],
            "__key__": keys,
        }
        return {**batch, **{name: entries[name] for name in self._meta}}


def _bytes_of_rows(located: Extents, batch_size: int) -> list[int]:
    """The bytes of the fields of each row."""
    sizes = (located.stops - located.starts).sum(axis=0)
    of_rows: list[int] = sizes.reshape(-1, batch_size).sum(axis=1).tolist()
    return of_rows


def _parts(values: Any, size: int, num_parts: int) -> Any:
    """What each of some batches of a size has of a list, an array or a tensor."""
    if isinstance(values, torch.Tensor):
        return torch.split(values, size)
    return [values[at * size : (at + 1) * size] for at in range(num_parts)]


def _rows_of(array: NDArray[Any]) -> Sequence[Tensor]:
    """The rows of a block's array, as tensors with memory of their own."""
    return torch.from_numpy(array.copy()).unbind(0)
