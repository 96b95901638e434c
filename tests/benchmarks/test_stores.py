"""The comparison of clients runs, and looks whether they read the same."""

from __future__ import annotations

import pytest

from benchmarks import stores


def test_clients_are_compared_on_the_same_bytes(nginx):
    pytest.importorskip("s3fs")
    pytest.importorskip("obstore")
    stores.fill(nginx.folder, stores.SMALL)
    figures = stores.compare(nginx.url, "files", stores.SMALL, rounds=1)
    assert {"s3fs, seconds", "obstore, seconds", "s3fs / obstore, seconds"} <= set(figures)
    for work in stores.WORKS:
        tasks, num_threads = stores.requests_of(work, stores.FULL)
        assert sum(map(len, tasks)) > num_threads
