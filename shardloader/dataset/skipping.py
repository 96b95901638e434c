"""What happens to a sample that can't be given?

It is one of two: *bad* (its shard, a field or the transform failed, and `on_error` says to go on)
or *refused* (the transform returned None, in either mode). Its slot repeats another sample of the
batch, the good ones in turn as pads do, and is marked invalid; where the batch has no good one,
the next good one of the lane (`order.substitutes`). What was wrong travels with the batch as
`Fault` values, so that it is counted where the batch is received.

Bad is what the data is to blame for. Wrong use (UsageError), a process that ran out of memory or
files, a cache that can't hold a shard (CacheError) and a store that fails (StoreError) stop the run
in either mode.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shardloader.errors import (
    CacheError,
    DataError,
    DecodeError,
    SampleError,
    UsageError,
    WorldError,
)
from shardloader.order.integers import checked, shown
from shardloader.reading.diary import Stage
from shardloader.reading.frames import without_frames
from shardloader.reading.store import is_of_the_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardloader.dataset.batches import Row
    from shardloader.dataset.samples import SampleReader
    from shardloader.format.manifest import Manifest
    from shardloader.order.substitutes import Candidates

log = logging.getLogger("shardloader")

BAD_KINDS: Final = {
    "decode": "a field's bytes are not what its name says",
    "field": "the sample lacks a field that was asked for",
    "transform": "transform= raised an error",
    "shard": "the shard can't be read, or is not the one that was indexed",
}
REFUSED: Final = "refused"  # the kind of what a transform returned None for

MOST_TRIED: Final = 256  # samples that are read in search of a good one
MOST_LOOKED_AT: Final = 1 << 22  # positions, many of them perhaps of shards known to be bad
MESSAGE_LENGTH: Final = 500
NUM_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Go on past bad samples, `on_error=sl.Skip(...)`, and how many may be bad.

    max_share: the share of a rank's samples that may be bad, above 0 and at most 1 (no limit),
    counted over the life of the loader; min_samples: how many samples the rank must have come to
    before that is judged. Samples that a transform refuses do not count as bad. `on_error="skip"`
    is `Skip()`. Raises UsageError for values that make no limit.
    """

    max_share: float = 0.01
    min_samples: int = 1000

    def __post_init__(self) -> None:
        share = self.max_share
        if type(share) not in {int, float} or not 0 < share <= 1:
            raise UsageError(
                f"Skip(max_share=) is a share above 0 and at most 1, and was {shown(share)}: "
                "0.01 stops a run of which more than one sample in a hundred is bad"
            )
        least = checked("Skip(min_samples=)", self.min_samples, least=1)
        object.__setattr__(self, "max_share", float(share))
        object.__setattr__(self, "min_samples", least)

    def is_exceeded(self, *, bad: int, of: int) -> bool:
        """Whether so many bad samples of so many are too many."""
        return of >= self.min_samples and bad > self.max_share * of


def checked_on_error(on_error: Any) -> Skip | None:
    """What `on_error` stands for, None for "raise"; raises UsageError for anything else."""
    if isinstance(on_error, Skip):
        return on_error
    if not isinstance(on_error, str) or on_error not in {"raise", "skip"}:
        raise UsageError(
            "on_error= is 'raise' (a bad sample stops the run with its shard, key, field and "
            "offset), 'skip' (its slot is filled and marked invalid) or Skip(max_share=, "
            f"min_samples=), and was {shown(on_error)}"
        )
    return Skip() if on_error == "skip" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One sample that a valid slot should have held.

    at: the slot; kind: a word of BAD_KINDS, or REFUSED; shard: its number in the manifest; index:
    the sample's number in the dataset; number: the pass over the data; key, field, offset: where
    they are known, the offset in bytes of the tar; message: what was wrong.
    """

    at: int
    kind: str
    shard: int
    index: int
    number: int
    key: str | None
    field: str | None
    offset: int | None
    message: str


class Carrier(NamedTuple):
    """A batch or a sample on its way to whoever counts, where there is anything to tell of it."""

    batch: Any
    faults: tuple[Fault, ...] = ()


class RefusedSampleError(SampleError):
    """The transform returned None: a sample that it does not want."""


def loading_kind(error: Exception) -> str | None:
    """The kind of bad that an error of reading or decoding a sample is; None if it is no such."""
    if isinstance(error, DecodeError):
        return "decode"
    if isinstance(error, SampleError):
        return "field"
    if isinstance(error, DataError):
        return "shard"
    if isinstance(error, CacheError):
        return None
    if isinstance(error, WorldError):
        return "shard" if is_of_the_file(error) else None
    return None


def transform_kind(error: Exception) -> str | None:
    """The same of what a transform raised."""
    if isinstance(error, RefusedSampleError):
        return REFUSED
    return None if isinstance(error, UsageError | MemoryError) else "transform"


class Filled(NamedTuple):
    """A row that can be joined: its samples, the row they make, and what was wrong in it."""

    row: Row
    keys: list[str]
    samples: list[Mapping[str, Any]]
    faults: tuple[Fault, ...]


class _Place(NamedTuple):
    """Where a sample stands: shard, number in it, number in the dataset, pass."""

    shard: int
    sample: int
    in_dataset: int
    number: int


class _Failed(NamedTuple):
    kind: str
    error: Exception
    key: str | None


class _Good(NamedTuple):
    place: _Place
    key: str
    sample: Mapping[str, Any]


class Filler:
    """Reads the rows of one schedule whose samples have to be looked at one by one.

    skip: None to raise the first error; candidates: what may fill a row that has no good sample.
    num_failed: slots that could not be given what they should hold, pads too.
    """

    def __init__(
        self,
        reader: SampleReader,
        *,
        skip: Skip | None,
        candidates: Callable[[Row], Iterator[Candidates]],
    ) -> None:
        self._reader = reader
        self._skip = skip
        self._candidates = candidates
        self.num_failed = 0

    def read(self, row: Row) -> Filled:
        """Read a row; raises the first error that is not to be skipped."""
        slots = [self._read(place) for place in _places(row)]
        return self._filled(row, slots)

    def fill(
        self,
        row: Row,
        keys: list[str],
        samples: Sequence[Mapping[str, Any]],
        failed: Mapping[int, Exception],
    ) -> Filled:
        """The same for a row that was read by columns, where the transform failed at some slots."""
        slots: list[_Good | _Failed] = []
        for at, (place, key, sample) in enumerate(zip(_places(row), keys, samples, strict=True)):
            error = failed.get(at)
            if error is None:
                slots.append(_Good(place, key, sample))
            else:
                slots.append(_Failed(transform_kind(error) or "transform", error, key))
        return self._filled(row, slots)

    def _read(self, place: _Place) -> _Good | _Failed:
        try:
            key, decoded = self._reader.load(place.shard, place.sample)
        except (DataError, WorldError) as error:
            kind = loading_kind(error)
            if kind is None or self._skip is None:
                raise
            without_frames(error)  # they would keep its shard open while others are read
            return _Failed(kind, error, self._reader.key(place.shard, place.sample))
        try:
            self._reader.diary.page.begin(Stage.TRANSFORMING, place.shard, place.in_dataset)
            sample = self._reader.transform(
                decoded, place.shard, number=place.number, index=place.in_dataset
            )
        except Exception as error:
            if not self._reader.forgives(error):
                raise
            return _Failed(transform_kind(error) or "transform", without_frames(error), key)
        return _Good(place, key, sample)

    def _filled(self, row: Row, slots: list[_Good | _Failed]) -> Filled:
        good = [slot for slot in slots if isinstance(slot, _Good)]
        if len(good) == len(slots):
            return Filled(row, [each.key for each in good], [each.sample for each in good], ())
        self.num_failed += len(slots) - len(good)
        sources = good or [self._next_good(row, slots)]
        filled, num_filled = [], 0
        for slot in slots:
            if isinstance(slot, _Good):
                filled.append(slot)
            else:
                filled.append(self._again(sources[num_filled % len(sources)]))
                num_filled += 1
        faults = tuple(
            _fault(at, slot, row)
            for at, slot in enumerate(slots)
            if isinstance(slot, _Failed) and row.valid[at]
        )
        shard, sample, index, passes = (
            np.array(column, dtype=np.int64)
            for column in zip(*(each.place for each in filled), strict=True)
        )
        is_good = np.array([isinstance(slot, _Good) for slot in slots], dtype=bool)
        return Filled(
            replace(
                row,
                shard=shard,
                sample=sample,
                index=index,
                passes=passes,
                valid=row.valid & is_good,
            ),
            [each.key for each in filled],
            [each.sample for each in filled],
            faults,
        )

    def _again(self, source: _Good) -> _Good:
        """A good sample once more, with memory of its own; where that fails, the same one."""
        again = self._read(source.place)
        return again if isinstance(again, _Good) else source._replace(sample=dict(source.sample))

    def _next_good(self, row: Row, slots: Sequence[_Good | _Failed]) -> _Good:
        """The next good sample of the row's lane; raises DataError if there is none near."""
        failed = [slot for slot in slots if isinstance(slot, _Failed)]
        tried, looked_at = set(row.index.tolist()), 0
        most = len(tried) + MOST_TRIED
        for number, samples in self._candidates(row):
            looked_at += samples.index.size
            near = ~np.isin(samples.shard, self._reader.broken_shards())
            columns = (samples.shard, samples.sample, samples.index)
            for shard, sample, index in zip(
                *(each[near].tolist() for each in columns), strict=True
            ):
                if index in tried or self._reader.is_known_bad(shard, sample):
                    continue
                found = self._read(_Place(shard, sample, index, number))
                if isinstance(found, _Good):
                    return found
                failed.append(found)
                tried.add(index)
                if len(tried) >= most:
                    raise _nothing_good(failed)
            if looked_at >= MOST_LOOKED_AT:
                break
        raise _nothing_good(failed)


class Watch:
    """What one process came to: logs a shard's first bad sample, and holds the limit of a Skip.

    names: those of the shards.
    """

    def __init__(self, skip: Skip | None, names: Sequence[str]) -> None:
        self._skip = skip
        self._names = names
        self._num_samples = 0
        self._bad: Counter[str] = Counter()
        self._first: list[str] = []
        self._logged: set[int] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether there were bad samples, and too few of all to judge: good ones count then too."""
        skip = self._skip
        return bool(self._bad) and skip is not None and self._num_samples < skip.min_samples

    def take(self, num_samples: int, faults: Sequence[Fault]) -> None:
        """Count some samples, bad ones among them; raises DataError where these are too many."""
        self._num_samples += num_samples
        for fault in faults:
            if fault.kind != REFUSED:
                self._take_bad(fault)
        skip, num_bad = self._skip, self._bad.total()
        if skip is None or not skip.is_exceeded(bad=num_bad, of=self._num_samples):
            return
        raise DataError(
            f"at most {skip.max_share:g} of a rank's samples may be bad, and {num_bad} of "
            f"{self._num_samples} are: {summary(self._bad)}. The first: "
            f"{' | '.join(self._first)}. Mend the data, or allow more with "
            "on_error=Skip(max_share=, min_samples=)"
        )

    def _take_bad(self, fault: Fault) -> None:
        self._bad[fault.kind] += 1
        if len(self._first) < NUM_NAMED and fault.message not in self._first:
            self._first.append(fault.message)
        if fault.shard not in self._logged:
            self._logged.add(fault.shard)
            log.warning(
                "%s: a bad sample is skipped, and so will others of this shard be: %s",
                self._names[fault.shard],
                fault.message,
            )


def check_damage(skip: Skip, manifest: Manifest) -> None:
    """Raise DataError where what damaged shards lost when they were indexed is too much.

    How many samples that were nobody knows: a damaged shard is taken to have had as many as a
    whole one has on average.
    """
    damaged = [number for number, _ in manifest.damage]
    whole = np.delete(manifest.counts, damaged)
    if not damaged or not whole.size:
        return
    lost = int(np.maximum(0, int(whole.mean()) - manifest.counts[damaged]).sum())
    of = manifest.num_samples + lost
    if skip.is_exceeded(bad=lost, of=of):
        kinds = summary(Counter(damage.kind for _, damage in manifest.damage))
        first = [f"{manifest.names[n]}: {damage}" for n, damage in manifest.damage[:NUM_NAMED]]
        raise DataError(
            f"at most {skip.max_share:g} of the samples may be bad, and about {lost} of {of} are "
            f"lost in {len(damaged)} damaged shards: {kinds}. The first: {' | '.join(first)}. Mend "
            "the shards, or allow more with on_error=Skip(max_share=, min_samples=)"
        )


def summary(bad: Mapping[str, int]) -> str:
    """Counts by kind, in words, the most frequent first.

    >>> summary({"decode": 2, "shard": 30})
    '30 shard, 2 decode'
    """
    ordered = sorted(bad.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {kind}" for kind, count in ordered)


def _places(row: Row) -> Iterator[_Place]:
    columns = (row.shard, row.sample, row.index, row.passes)
    return map(_Place, *(column.tolist() for column in columns))


def _fault(at: int, failed: _Failed, row: Row) -> Fault:
    error = failed.error
    return Fault(
        at=at,
        kind=failed.kind,
        shard=int(row.shard[at]),
        index=int(row.index[at]),
        number=int(row.passes[at]),
        key=failed.key,
        field=getattr(error, "field", None) if failed.kind == "decode" else None,
        offset=_offset(error) if failed.kind in {"decode", "shard"} else None,
        message="" if failed.kind == REFUSED else told(error),
    )


def _offset(error: Exception) -> int | None:
    offset = getattr(error, "offset", None)
    return offset if type(offset) is int else None


def told(error: Exception) -> str:
    """An error as one line: of an error that is not the library's own its type too, and notes."""
    text = str(error)
    if not isinstance(error, DataError | WorldError):
        text = f"{type(error).__name__}: {text}"
    text = " ".join([text, *getattr(error, "__notes__", ())])
    return text if len(text) <= MESSAGE_LENGTH else f"{text[: MESSAGE_LENGTH - 3]}..."


def _nothing_good(failed: Sequence[_Failed]) -> DataError:
    kinds = Counter(each.kind for each in failed)
    errors = [told(each.error) for each in failed if each.kind != REFUSED]
    first = f" The first: {' | '.join(errors[:NUM_NAMED])}." if errors else ""
    return DataError(
        "a batch in which no sample is good repeats the next good one, and there is none among "
        f"the {len(failed)} that were tried: {summary(kinds)}.{first} Look at the data, or at "
        "what the transform refuses"
    )
