"""Which samples of an open shard have yet to be written, and how is one more taken in a moment?

Most samples have the fields of the one before them, and of those only keys and data are kept:
`Waiting.take` is for them. It looks at all that can be wrong with a sample as `tarred` does, and
leaves to that whatever it does not know; a property test holds that the shards are the same.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from shardloader.format.tar_header import BLOCK_BYTES
from shardloader.writing.contents import outline_alike, outline_of
from shardloader.writing.encode import encoded, field_layout, is_plain_key
from shardloader.writing.tarring import members_alike, ordinary_sample, pieces_of, tar_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardloader.writing.contents import Outline
    from shardloader.writing.encode import Layout
    from shardloader.writing.tarring import Members, TarredSample

_LAST = BLOCK_BYTES - 1
_IN_BLOCKS = -BLOCK_BYTES  # a mask


class Waiting:
    """Samples that wait to be written, in order.

    `keys` are those of all samples of the shard, the last of them of those that wait. `samples`
    are those that wait, unless they are alike: with the same fields and ordinary headers.
    """

    def __init__(self, keys: dict[str, None]) -> None:
        self.keys = keys
        self.samples: list[TarredSample] = []
        self.fields: tuple[str, ...] = ()  # of samples that are alike
        self._alike: list[Sequence[bytes]] = []  # their data
        self._num_bytes = 0  # but for what was taken since `expect`, where so many were allowed
        self._allowed_bytes = self._left_bytes = 0
        self._names: tuple[str, ...] = ()
        self._layout: Layout | None = None
        self._header_bytes = 0
        self._max_samples = 0

    def __len__(self) -> int:
        return len(self.samples) or len(self._alike)

    @property
    def num_bytes(self) -> int:
        """Their bytes in the tar."""
        return self._num_bytes + self._allowed_bytes - self._left_bytes

    def add(self, sample: TarredSample) -> None:
        """Append a sample, whose key is new to the shard."""
        self._num_bytes = self.num_bytes + sample.size_bytes
        self._allowed_bytes = self._left_bytes = 0
        is_alike = sample.made is None and not self.samples
        if is_alike and (not self._alike or sample.fields == self.fields):
            self.fields = sample.fields
            self._alike.append(sample.data)
        else:
            self._mix()
            self.samples.append(sample)
        self.keys[sample.key] = None

    def expect(self, names: tuple[str, ...], *, max_samples: int, num_bytes: int) -> None:
        """Let `take` take samples with these entries, while the shard has fewer samples.

        They have less than so many bytes in the tar together, headers and padding counted.
        """
        self._num_bytes = self.num_bytes
        self._allowed_bytes = self._left_bytes = 0
        layout = field_layout(names)
        if self.samples or num_bytes <= 0 or layout.fields != self.fields:
            return
        self._allowed_bytes = self._left_bytes = num_bytes
        self._max_samples = max_samples
        if names != self._names:
            self._names, self._layout = names, layout
            self._header_bytes = layout.num_fields * BLOCK_BYTES

    def take(self, sample: object) -> bool:
        """Append a sample if it is as expected; else nothing happened.

        Raises SampleError, as `tarred` does, and then nothing happened either.
        """
        layout = self._layout
        if layout is None or type(sample) is not dict or tuple(sample) != self._names:
            return False
        key, keys = sample["__key__"], self.keys
        is_simple = type(key) is str and key.isalnum() and key.isascii()
        if not (is_simple or is_plain_key(key)) or len(key) > layout.longest_key or key in keys:
            return False
        data: Sequence[bytes] = layout.values(sample)
        size_bytes = self._header_bytes
        for value in data:
            if type(value) is not bytes:
                data = encoded(key, layout, data)
                sizes = [len(value) + _LAST & _IN_BLOCKS for value in data]
                size_bytes = self._header_bytes + sum(sizes)
                break
            size_bytes += len(value) + _LAST & _IN_BLOCKS
        if size_bytes >= self._left_bytes or len(keys) >= self._max_samples:
            return False
        self._left_bytes -= size_bytes
        keys[key] = None
        self._alike.append(data)
        return True

    def tar(self) -> tuple[bytes | bytearray, Outline]:
        """Give their bytes, and what an index says of them."""
        if self.samples:
            return tar_of(self.samples), outline_of(self.samples)
        members = self._members()
        return members.tar(), outline_alike(self.fields, members.sizes)

    def pieces(self) -> tuple[list[bytes], Outline]:
        """Give the same in pieces: big data is not copied."""
        if self.samples:
            return pieces_of(self.samples), outline_of(self.samples)
        members = self._members()
        return members.pieces(), outline_alike(self.fields, members.sizes)

    def waiting_keys(self) -> list[str]:
        """Give their keys."""
        return [*islice(reversed(self.keys), len(self))][::-1]

    def clear(self) -> None:
        """Have none wait any more."""
        self.samples, self._alike = [], []
        self._num_bytes = self._allowed_bytes = self._left_bytes = 0

    def _members(self) -> Members:
        """Give the members of samples that are alike."""
        return members_alike(self.waiting_keys(), self.fields, self._alike)

    def _mix(self) -> None:
        """Keep what is alike as samples, since others are to follow."""
        if self._alike:
            rows = zip(self.waiting_keys(), self._alike, strict=True)
            self.samples = [ordinary_sample(key, self.fields, data) for key, data in rows]
            self._alike = []
