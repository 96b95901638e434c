"""How does a sample come from its shard to training: fields, decoders, transform.

Here the place of a fault is known, so here it is named: shard, key, field and offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardloader.dataset.transform import Transformer
from shardloader.errors import DecodeError, SampleError
from shardloader.reading.decode import located
from shardloader.reading.shard import ShardPool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardloader.dataset.recipe import Recipe
    from shardloader.reading.shard import Shard


class SampleReader:
    """Reads samples of one dataset in one process; holds a bounded number of open shards."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._pool = ShardPool(recipe.catalog)
        self._transformer = Transformer(recipe.transform, seed=recipe.seed, reseed=recipe.reseed)

    def read(
        self, *, shard: int, sample: int, index: int, epoch: int
    ) -> tuple[str, Mapping[str, Any]]:
        """The key and the decoded, transformed sample.

        shard, sample: numbers in the manifest and the shard; index: the sample's number in the
        dataset; epoch: the epoch that keys its augmentation. Raises ShardError, ManifestError,
        DecodeError or SampleError, each naming the place.
        """
        opened = self._pool[shard]
        key = opened.key(sample)
        decoded: dict[str, Any] = {"__key__": key}
        decoded.update(self._decoded(opened, sample, key))
        return key, self._transformer(decoded, epoch=epoch, index=index)

    def _decoded(self, shard: Shard, sample: int, key: str) -> dict[str, Any]:
        wanted = self._recipe.fields
        raw = shard.fields(sample, wanted)
        if wanted is not None and len(raw) < len(wanted):
            raise SampleError(
                f"{shard.name}: every sample has the fields asked for, and the one with the key "
                f"{key!r} lacks {sorted(wanted - raw.keys())}; it has "
                f"{sorted(shard.fields(sample, None))}: leave the field out of fields=, or mend "
                "the shard"
            )
        decode = self._recipe.decode.decode
        decoded = {}
        for field, data in raw.items():
            try:
                decoded[field] = decode(field, data)
            except DecodeError as error:
                offset = shard.offset(sample, field)
                raise located(error, shard=shard.name, key=key, offset=offset) from error
        return decoded

    def close(self) -> None:
        """Close the open shards."""
        self._pool.close()
