"""What lies where in a tar that is written: what its index will say.

Known from what was written, in columns: nobody has to look into the file for it.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardloader.format.index import SampleIndex
from shardloader.format.tar_header import BLOCK_BYTES, END_OF_ARCHIVE
from shardloader.writing.tarring import is_ordinary, ordinary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardloader.writing.tarring import TarredSample


class Outline(NamedTuple):
    """What an index says of samples that lie one after another, but for their keys and place.

    Sample `i` has the fields `kinds[numbers[i]]`, and every kind occurs. int64: `numbers`
    [samples], and of each member, in the order of the tar, `header_bytes` and `data_bytes`
    [members].
    """

    kinds: tuple[tuple[str, ...], ...]
    numbers: NDArray[np.int64]
    header_bytes: NDArray[np.int64]
    data_bytes: NDArray[np.int64]

    def take(self, samples: Sequence[int]) -> Outline:
        """Give the outline of some of the samples, by number."""
        lengths = _lengths(self.kinds)[self.numbers]
        chosen = np.asarray(samples, np.int64)
        members = _spans((np.cumsum(lengths) - lengths)[chosen], lengths[chosen])
        present, numbers = np.unique(self.numbers[chosen], return_inverse=True)
        kinds = tuple([self.kinds[number] for number in present])
        return Outline(kinds, numbers, self.header_bytes[members], self.data_bytes[members])


def outline_of(samples: Sequence[TarredSample]) -> Outline:
    """Give the outline of samples; their bytes are not needed any more then."""
    fields = [sample.fields for sample in samples]
    kinds = {each: number for number, each in enumerate(dict.fromkeys(fields))}
    numbers = np.fromiter(map(kinds.__getitem__, fields), np.int64, len(fields))
    if all(map(is_ordinary, samples)):
        data = chain.from_iterable([sample.data for sample in samples])
        data_bytes = np.array(list(map(len, data)), np.int64)
        header_bytes = np.full(len(data_bytes), BLOCK_BYTES, np.int64)
    else:
        made = [sample.made or ordinary(sample) for sample in samples]
        header_bytes = np.array([size for each in made for size in each.headers], np.int64)
        data_bytes = np.array([size for each in made for size in each.sizes], np.int64)
    return Outline(tuple(kinds), numbers, header_bytes, data_bytes)


def outline_alike(fields: tuple[str, ...], data_bytes: NDArray[np.int64]) -> Outline:
    """Give that of samples with the same fields and ordinary headers, by their members' sizes."""
    numbers = np.zeros(len(data_bytes) // len(fields), np.int64)
    header_bytes = np.full(len(data_bytes), BLOCK_BYTES, np.int64)
    return Outline((fields,), numbers, header_bytes, data_bytes)


class Contents:
    """What lies in the tar of a shard so far.

    `keys` are those of all its samples; whoever adds samples adds them, perhaps before.
    """

    def __init__(self) -> None:
        self.keys: dict[str, None] = {}
        self.tar_bytes = 0
        self._kinds: dict[tuple[str, ...], int] = {}
        none = np.zeros(0, np.int64)
        self._numbers = [none]  # of samples' kinds, some of them at a time; so are members'
        self._offsets = [none]
        self._sizes = [none]

    def add(self, outline: Outline) -> None:
        """Append samples."""
        kinds = [self._kinds.setdefault(fields, len(self._kinds)) for fields in outline.kinds]
        in_blocks = -(-outline.data_bytes // BLOCK_BYTES) * BLOCK_BYTES
        ends = self.tar_bytes + np.cumsum(outline.header_bytes + in_blocks)
        self._numbers.append(np.array(kinds, np.int64)[outline.numbers])
        self._offsets.append(ends - in_blocks)
        self._sizes.append(outline.data_bytes)
        self.tar_bytes = int(ends[-1])

    def index(self) -> SampleIndex:
        """Index the archive, if it ended here."""
        kinds, numbers = tuple(self._kinds), np.concatenate(self._numbers)
        names = tuple(sorted({name for fields in kinds for name in fields}, key=str.encode))
        lengths = _lengths(kinds)
        members = _spans((np.cumsum(lengths) - lengths)[numbers], lengths[numbers])
        places = {name: place for place, name in enumerate(names)}
        fields = np.array([places[name] for each in kinds for name in each], np.uint32)
        text = "".join(self.keys)
        key_bytes = text.encode()
        is_ascii = len(key_bytes) == len(text)
        sizes = [len(key) if is_ascii else len(key.encode()) for key in self.keys]
        return SampleIndex(
            shard_bytes=self.tar_bytes + len(END_OF_ARCHIVE),
            fields=names,
            sample_starts=_starts(lengths[numbers]),
            member_offsets=np.concatenate(self._offsets),
            member_sizes=np.concatenate(self._sizes),
            member_fields=fields[members],
            key_starts=_starts(np.array(sizes, np.int64)),
            key_bytes=np.frombuffer(key_bytes, dtype=np.uint8),
        )


def _lengths(kinds: Sequence[tuple[str, ...]]) -> NDArray[np.int64]:
    return np.array(list(map(len, kinds)), np.int64)


def _spans(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the numbers from each start on, so many of them, one after another."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts
