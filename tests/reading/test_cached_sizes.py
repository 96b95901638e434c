"""Which shards come through the node's cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shardloader.reading.cache import Cache
from shardloader.reading.cached_sizes import any_goes_through_cache, goes_through_cache

NAMES = [
    (),
    ("a.tar",),
    ("a.tar", "b.TAR.ZST"),
    ("a.tgz", "b.tar"),
    ("a.zst.tar", "zst"),
]


@pytest.mark.parametrize("store", [None, object()])
@pytest.mark.parametrize("cache", [None, Cache("c"), Cache("c", copy_local=True)])
@pytest.mark.parametrize("names", NAMES, ids=range(len(NAMES)))
def test_one_of_all_is_found_as_looking_at_each_finds_it(names, cache, store):
    catalog: Any = SimpleNamespace(
        cache=cache,
        num_shards=len(names),
        source=SimpleNamespace(store=store),
        manifest=SimpleNamespace(names=names),
    )
    found = [goes_through_cache(catalog, shard) for shard in range(len(names))]
    assert any_goes_through_cache(catalog) == any(found)
