"""The first batch is measured each way, and each way gives the same samples; no time is judged."""

from __future__ import annotations

import pytest

from benchmarks import first_batch
from tests.servers.nginx import nginx_path


@pytest.mark.skipif(nginx_path() is None, reason="nginx is not installed (Debian: nginx-light)")
@pytest.mark.parametrize(("is_packed", "shard_bytes"), [(False, 17_000_000), (True, 40_000_000)])
def test_the_first_batch_is_measured_each_way(is_packed, shard_bytes):
    figures = first_batch.report(
        shard_bytes=shard_bytes,
        num_shards=2,
        latency=0.0,
        link_bytes=1e9,
        rounds=1,
        is_packed=is_packed,
    )
    assert set(figures) == {"start", "middle"}
    for of_place in figures.values():
        assert set(of_place) == set(first_batch.WAYS)
        assert min(each["seconds"] for each in of_place.values()) > 0
