"""How does a sample come from its shard to training: fields, decoders, transform.

Here the place of a fault is known, so here it is named: shard, key, field and offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shardloader.dataset.collate import rows_of
from shardloader.dataset.skipping import RefusedSampleError, loading_kind, transform_kind
from shardloader.dataset.transform import Transformer
from shardloader.errors import (
    CacheError,
    DecodeError,
    SampleError,
    ShardLoaderError,
    StoreError,
)
from shardloader.planning.lanes import distinct
from shardloader.reading.cached_sizes import CachedSizes, any_goes_through_cache
from shardloader.reading.columns import Spans, column_of, is_quick
from shardloader.reading.decode import located
from shardloader.reading.diary import Diary, Stage
from shardloader.reading.extents import locate
from shardloader.reading.frames import without_frames
from shardloader.reading.needs import ALL_ROOM, FAR, rows_at_once
from shardloader.reading.pool import ShardPool
from shardloader.reading.prefetch import Prefetcher
from shardloader.reading.ranged_shard import RangedShard
from shardloader.reading.store import files_to_keep_open

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardloader.dataset.batches import Row
    from shardloader.dataset.recipe import Recipe
    from shardloader.reading.columns import Column
    from shardloader.reading.extents import Extents
    from shardloader.reading.fetching import Block, Outlook
    from shardloader.reading.ranges import Stretches
    from shardloader.reading.shard import Shard


SHARE_AT_ONCE: Final = 4  # of the cache, what all readers together may be at
ROWS_AT_ONCE: Final = 4  # times the rows located at once is what a reader may be at
SHARE_OF_A_THREAD: Final = 8  # of the files that may be open: an eighth for each that reads
WORTH_A_TOUCH: Final = 48  # samples of a shard


class Columns(NamedTuple):
    """Some samples, field by field.

    keys: none if they were not asked for; fields: each a list, or an array [samples, ...].
    """

    keys: list[str]
    fields: dict[str, Any]


class SampleReader:
    """Reads samples of one dataset in one process; holds a bounded number of open shards.

    num_readers: how many read on this node, which share what the cache takes ahead of its need;
    diary: where the process writes what it does, and counts.
    """

    def __init__(self, recipe: Recipe, *, num_readers: int = 1, diary: Diary | None = None) -> None:
        self.diary = Diary() if diary is None else diary
        catalog = recipe.catalog.counted_in(self.diary.counts)
        self._ahead = None
        if catalog.cache is not None and any_goes_through_cache(catalog):
            share = catalog.cache.bytes_ahead // num_readers
            self._ahead = Prefetcher(catalog, share_bytes=share, counts=self.diary.counts)
            self._bytes_at_once = int(catalog.cache.max_bytes) // SHARE_AT_ONCE // num_readers
            self._most_rows = self._spare_bytes = FAR
            self._has_all_room = True
            self._sizes = CachedSizes(catalog)
        self._pool = ShardPool(
            catalog,
            keep_damaged=recipe.options.skip is not None,
            ahead=self._ahead,
            diary=self.diary,
        )
        self._shards_at_once = max(2, files_to_keep_open() // SHARE_OF_A_THREAD)
        options = recipe.options
        self._skip = options.skip
        self._broken: dict[int, ShardLoaderError] = {}  # shards that can't be opened
        self._whole: dict[int, int] = {}  # whole samples of shards that were cut
        self._wanted = options.fields
        self._decode = options.decode.decode
        self._decoder = options.decode.decoder
        self._columns: dict[str, Column] = {}
        self._transformer = Transformer(options.transform, seed=options.seed, reseed=options.reseed)

    def read(
        self, *, shard: int, sample: int, index: int, number: int
    ) -> tuple[str, Mapping[str, Any]]:
        """The key and the decoded, transformed sample.

        shard, sample: numbers in the manifest and the shard; index: the sample's number in the
        dataset; number: the pass over the data, which keys its augmentation. Raises ShardError,
        ManifestError, DecodeError or SampleError, each naming the place; what a transform raises
        gets a note that does. A sample that the transform refuses is a SampleError too.
        """
        key, decoded = self.load(shard, sample)
        return key, self.transform(decoded, shard, number=number, index=index)

    def load(self, shard: int, sample: int) -> tuple[str, dict[str, Any]]:
        """The key and the decoded sample; raises as `read` does."""
        opened = self._opened(shard)
        self.diary.page.begin(Stage.DECODING, shard)
        key = opened.key(sample)
        return key, {"__key__": key, **self._decoded(opened, sample, key)}

    def key(self, shard: int, sample: int) -> str | None:
        """The key of a sample; None if its shard can't be opened."""
        return None if shard in self._broken else self._opened(shard).key(sample)

    def forgives(self, error: Exception) -> bool:
        """Whether an error of the transform lets the batch go on without its sample."""
        if self._skip is None:
            return isinstance(error, RefusedSampleError)
        return transform_kind(error) is not None

    def is_known_bad(self, shard: int, sample: int) -> bool:
        """Whether a sample lies in a shard that could not be opened, or in what was cut off."""
        return shard in self._broken or sample >= self._whole.get(shard, sample + 1)

    def broken_shards(self) -> list[int]:
        """The shards that could not be opened."""
        return list(self._broken)

    def forget(self) -> None:
        """Try again to open the shards that could not be."""
        self._broken.clear()
        self._whole.clear()

    def _opened(self, shard: int) -> Shard:
        if self._skip is None:
            return self._pool[shard]
        known = self._broken.get(shard)  # to find out again costs as much as a sound shard
        if known is not None:
            raise without_frames(known)  # else it grows by a frame each time
        try:
            opened = self._pool[shard]
        except ShardLoaderError as error:
            if loading_kind(error) is not None:
                self._broken[shard] = error  # whoever answers it lets go of its frames
            raise
        if opened.num_whole < opened.num_samples:
            self._whole[shard] = opened.num_whole
        return opened

    @property
    def fetches_ahead(self) -> bool:
        """Whether shards come through the node's cache, so that it is worth knowing what comes."""
        return self._ahead is not None

    def fetch_ahead(
        self, blocks: Iterator[Block], outlook: Outlook, *, most_rows: int | None
    ) -> None:
        """Fetch what these steps need before they are read.

        most_rows: to be located at once; None for those of one shard, or of what there is room for.
        """
        if self._ahead is not None:
            self._most_rows = most_rows or FAR
            self._spare_bytes = FAR if most_rows else outlook.room.spare_bytes // ROWS_AT_ONCE
            self._has_all_room = outlook.room == ALL_ROOM
            if not self._has_all_room:
                self._pool.keep_only(())  # what was read last, others may need the room of
            self._ahead.begin(blocks, outlook)

    def move_to(self, start: int, stop: int, shards: NDArray[np.int64]) -> None:
        """The samples of the steps start .. stop-1 are read now; shards: of the last of them."""
        if self._ahead is None:
            return
        coming = self._ahead.move_to(start, stop)
        if coming is not None and not self._has_all_room:  # what is open can't be removed
            self._pool.keep_only(coming.union(shards.ravel().tolist()))

    def rows_at_once(self, shard: NDArray[np.int64]) -> int:
        """How many of these rows may be located at once: one at least; int64 [rows, batch_size].

        All, where nothing comes through the node's cache. There, to locate samples brings all of
        their shards, and as many as the cache holds would drive each other out before one is read.
        """
        if self._ahead is None:
            return len(shard)
        return rows_at_once(
            shard,
            self._sizes.of,
            bound_bytes=min(self._bytes_at_once, self._spare_bytes),
            most_rows=self._most_rows,
        )

    def stop_fetching(self) -> None:
        """Nothing more is read for now."""
        if self._ahead is not None:
            self._ahead.stop()

    def keep_open(self, shards: NDArray[np.int64]) -> None:
        """Close all shards but these, int64 of any shape, which come next."""
        self._pool.keep_only(distinct(shards.ravel()).tolist())

    @property
    def waits_for_a_store(self) -> bool:
        """Whether every sample is fetched when it is asked for."""
        return self._pool.reads_by_ranges

    def expect(self, shard: NDArray[np.int64], sample: NDArray[np.int64]) -> None:
        """Fetch at once what `load` will be asked for one by one, where it comes by ranges.

        What is wrong with a shard is not told here: `load` does.
        """
        for number in np.unique(shard).tolist() if self._pool.may_read_by_ranges else ():
            try:
                opened = self._opened(number)
                if isinstance(opened, RangedShard):
                    opened.expect(sample[shard == number], self._wanted)
            except StoreError:
                raise
            except ShardLoaderError as error:
                without_frames(error)

    @property
    def transforms(self) -> bool:
        """Whether samples are transformed."""
        return self._transformer.transforms

    def is_slow(self, fields: Sequence[str]) -> bool:
        """Whether one of the fields is an image, or decoded by a function of the caller's."""
        return not all(is_quick(self._decoder(field)) for field in fields)

    def locate(self, shard: NDArray[np.int64], sample: NDArray[np.int64]) -> Extents | None:
        """Where samples lie that can be read by columns, int64 [n]; None where they can't.

        Nor where a shard can't be opened: reading them one by one says so when its turn comes.
        Raises CacheError and StoreError.
        """
        if self._broken and np.isin(shard, list(self._broken)).any():
            return None
        try:
            return locate(self._pool, shard, sample, self._wanted)
        except (CacheError, StoreError):
            raise  # the process has waited, for room or for a store, and would wait as long again
        except ShardLoaderError:
            return None

    def read_columns(self, extents: Extents, start: int, stop: int, *, with_keys: bool) -> Columns:
        """What the samples start..stop-1 of `extents` hold.

        Raises anything for a sample that is bad: reading one by one tells which.
        """
        shards = extents.shard[start:stop].tolist()
        self.diary.page.begin(Stage.DECODING, shards[0])
        distinct = set(shards)
        opened = self._pool.together(distinct) if len(distinct) <= self._shards_at_once else None
        if opened is None or any(shard.is_ranged for shard in opened.values()):
            return self._read_shard_by_shard(extents, start, stop, with_keys=with_keys)
        buffers = {number: shard.buffer for number, shard in opened.items()}
        if stop - start >= WORTH_A_TOUCH * len(opened):
            for number, shard in opened.items():
                of = extents.shard[start:stop] == number
                shard.touch(extents.starts[0, start:stop][of])
        columns = {}
        for at, field in enumerate(extents.fields):
            starts, stops = extents.starts[at, start:stop], extents.stops[at, start:stop]
            columns[field] = self._column(field)(
                Spans(buffers, shards, starts.tolist(), stops.tolist())
            )
        if not with_keys:
            return Columns([], columns)
        first, last = extents.keys[:, start:stop].tolist()
        return Columns(_keys(opened, shards, first, last), columns)

    def _read_shard_by_shard(
        self, extents: Extents, start: int, stop: int, *, with_keys: bool
    ) -> Columns:
        """The same from many shards: all open at once would be too many files, or too much cache.

        Or from some that are not here: their bytes are fetched together. The bytes are copied out
        of one shard after another, and decoded then.
        """
        shard = extents.shard[start:stop]
        fetched = self._fetched(extents, np.arange(start, stop))
        data = np.empty((len(extents.fields), stop - start), dtype=object)
        keys = np.empty(stop - start if with_keys else 0, dtype=object)
        for number in np.unique(shard).tolist():
            rows = np.flatnonzero(shard == number)
            here, opened = fetched.get(number), self._pool[number]
            if here is None and opened.is_ranged:  # it was closed meanwhile, for others
                here = self._fetched(extents, start + rows).get(number)
                opened = opened if here is not None else self._pool.whole(number)
            buffer = opened.buffer if here is None else here
            for at in range(len(extents.fields)):
                begin = extents.starts[at, start + rows].tolist()
                end = extents.stops[at, start + rows].tolist()
                for row, first, last in zip(rows, begin, end, strict=True):
                    data[at, row] = buffer[first:last]
            if with_keys:
                first, last = extents.keys[:, start + rows].tolist()
                keys[rows] = _keys({number: opened}, [number] * len(rows), first, last)
            del opened, buffer  # while the next one is opened, the cache may need its room
        columns = {}
        for field, values in zip(extents.fields, data.tolist(), strict=True):
            spans = Spans(values, range(stop - start), [0] * len(values), list(map(len, values)))
            columns[field] = self._column(field)(spans)
        return Columns(keys.tolist(), columns)

    def _fetched(self, extents: Extents, rows: NDArray[np.int64]) -> Mapping[int, Stretches]:
        """The bytes of these rows of `extents`, int64 [n], of shards that are read by ranges."""
        if not self._pool.may_read_by_ranges:
            return {}
        return self._pool.fetch(
            np.tile(extents.shard[rows], len(extents.fields)),
            extents.starts[:, rows].ravel(),
            extents.stops[:, rows].ravel(),
        )

    def transformed(
        self, row: Row, keys: list[str], columns: dict[str, Any], failed: dict[int, Exception]
    ) -> list[Mapping[str, Any]]:
        """The samples of a row that was read by columns, each transformed.

        Takes into `failed`, by slot, what the transform raised and is forgiven.
        """
        rows = [_rows(values) for values in columns.values()]
        names = ("__key__", *columns)
        samples: list[Mapping[str, Any]] = []
        page = self.diary.page
        page.begin(Stage.TRANSFORMING)
        for values, shard, index, number in zip(
            zip(keys, *rows, strict=True),
            row.shard.tolist(),
            row.index.tolist(),
            row.passes.tolist(),
            strict=True,
        ):
            sample = dict(zip(names, values, strict=True))
            page.at_sample(shard, index)
            try:
                samples.append(self.transform(sample, shard, number=number, index=index))
            except Exception as error:
                if not self.forgives(error):
                    raise
                failed[len(samples)] = error
                samples.append({})
        return samples

    def transform(
        self, sample: dict[str, Any], shard: int, *, number: int, index: int
    ) -> Mapping[str, Any]:
        """The transformed sample; what the transform raises gets a note of its place."""
        key = sample["__key__"]
        try:
            return self._transformer(sample, number=number, index=index)
        except Exception as error:
            name = self._pool.catalog.shard_path(shard)
            error.add_note(f"in transform= of the sample with the key {key!r} of {name}")
            raise

    def _column(self, field: str) -> Column:
        found = self._columns.get(field)
        if found is None:
            found = self._columns[field] = column_of(self._decoder(field))
        return found

    def _decoded(self, shard: Shard, sample: int, key: str) -> dict[str, Any]:
        wanted = self._wanted
        raw = shard.fields(sample, wanted)
        if wanted is not None and len(raw) < len(wanted):
            raise SampleError(
                f"{shard.name}: every sample has the fields asked for, and the one with the key "
                f"{key!r} lacks {sorted(wanted - raw.keys())}; it has "
                f"{sorted(shard.fields(sample, None))}: leave the field out of fields=, or mend "
                "the shard"
            )
        decoded = {}
        self.diary.counts.add_field_bytes(sum(map(len, raw.values())))
        for field, data in raw.items():
            if field.startswith("__"):  # the loader's own names; a foreign tar may hold them
                continue
            try:
                decoded[field] = self._decode(field, data)
            except DecodeError as error:
                offset = shard.offset(sample, field)
                told = located(error, shard=shard.name, key=key, offset=offset)
                told.field, told.offset = field, offset
                raise told from error
        return decoded

    def close(self) -> None:
        """Close the open shards."""
        self.stop_fetching()
        self._pool.close()


def _keys(opened: dict[int, Shard], shards: list[int], first: list[int], last: list[int]) -> Any:
    """The keys of samples by their first and last bytes in their shards' keys."""
    text_of = {number: shard.keys for number, shard in opened.items()}
    if None not in text_of.values():
        texts: dict[int, Any] = text_of
        return [texts[of][i:j] for of, i, j in zip(shards, first, last, strict=True)]
    indexes = [opened[number].index for number in shards]
    return [index.key_of(i, j) for index, i, j in zip(indexes, first, last, strict=True)]


def _rows(values: Any) -> Any:
    """Each sample's value, with memory of its own."""
    if not isinstance(values, np.ndarray):
        return values
    return [row.copy() for row in rows_of(values)]
