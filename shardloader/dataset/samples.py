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
        self._pool = ShardPool(recipe.catalog)
        options = recipe.options
        self._wanted = options.fields
        self._decode = options.decode.decode
        self._transformer = Transformer(options.transform, seed=options.seed, reseed=options.reseed)

    def read(
        self, *, shard: int, sample: int, index: int, number: int
    ) -> tuple[str, Mapping[str, Any]]:
        """The key and the decoded, transformed sample.

        shard, sample: numbers in the manifest and the shard; index: the sample's number in the
        dataset; number: the pass over the data, which keys its augmentation. Raises ShardError,
        ManifestError, DecodeError or SampleError, each naming the place; what a transform raises
        gets a note that does.
        """
        opened = self._pool[shard]
        key = opened.key(sample)
        decoded: dict[str, Any] = {"__key__": key, **self._decoded(opened, sample, key)}
        try:
            return key, self._transformer(decoded, number=number, index=index)
        except Exception as error:
            error.add_note(f"in transform= of the sample with the key {key!r} of {opened.name}")
            raise

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
        for field, data in raw.items():
            if field.startswith("__"):  # the loader's own names; a foreign tar may hold them
                continue
            try:
                decoded[field] = self._decode(field, data)
            except DecodeError as error:
                offset = shard.offset(sample, field)
                raise located(error, shard=shard.name, key=key, offset=offset) from error
        return decoded

    def close(self) -> None:
        """Close the open shards."""
        self._pool.close()
