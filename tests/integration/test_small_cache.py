"""A cache no larger than is demanded: each shard comes into it once an epoch, whoever reads."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

import shardloader as sl
from shardloader.cli import main
from tests.contract.test_remote_sources import upload
from tests.corpora import each_once, kept_corpus, loaders_of, raises_in_worker, valid_of
from tests.reading.http_store import HttpStore

NUM_SHARDS = 24
COUNTS = (6,) * NUM_SHARDS
UNEVEN = (9, 2, 5, 0, 1, 12, 6, 6, 3, 7, 8, 1, 4, 6, 10, 2, 2, 9, 5, 7, 11, 6, 3, 8)
EPOCHS = 3


@pytest.fixture(params=[COUNTS, UNEVEN], ids=["even", "uneven"])
def counts(request):
    return request.param


@pytest.fixture
def store(counts):
    with HttpStore.of(kept_corpus(counts)) as server:
        yield server


TOPOLOGIES = [(1, 0), (1, 2), (2, 0), (2, 2), (4, 0)]
WINDOWS = [None, 2, 6, 15]
# ranks, workers, window; and the largest shards for which there is room besides the least
CASES = [(*of, window, 0) for of in TOPOLOGIES for window in WINDOWS]
CASES += [(*of, window, 2) for of in ((1, 0), (2, 2)) for window in (None, 6)]


def planned(capsys, url, window, world_size, num_workers, folder):
    """What `shardloader plan` says."""
    words = ["plan", url, "--batch-size", "2", "--world-size", str(world_size), "--json"]
    words += ["--num-workers", str(num_workers), "--cache", str(folder)]
    words += ["--no-shuffle"] if window is None else ["--window", str(window)]
    assert main(words) == 0
    (stretch,) = json.loads(capsys.readouterr().out)["stretches"]
    return stretch["cache"]["least_bytes"]


def options_of(window, num_workers):
    options = {"batch_size": 2, "num_workers": num_workers}
    options["shuffle"] = window is not None and sl.Shuffle(window=window)
    if num_workers:
        options |= {"multiprocessing_context": "fork", "timeout": 120}
    return options


def fetched(store):
    """How often each shard was fetched since the last call."""
    found = [store.asked["GET", f"shard-{number:04d}.tar"] for number in range(NUM_SHARDS)]
    store.asked.clear()
    return found


@pytest.mark.parametrize(("world_size", "num_workers", "window", "more"), CASES)
def test_each_shard_is_fetched_once_an_epoch(
    store, counts, tmp_path, capsys, monkeypatch, world_size, num_workers, window, more
):
    """With the least that `plan` says and with more, as ranks that go in step read it."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(world_size))
    folder = tmp_path / "cache"
    least = planned(capsys, store.url, window, world_size, num_workers, folder)
    largest = max(path.stat().st_size for path in kept_corpus(counts).glob("*.tar"))
    cache = sl.Cache(folder, max_bytes=least + more * largest)
    loaders = loaders_of(store.url, world_size, cache=cache, **options_of(window, num_workers))
    for _ in range(EPOCHS):
        numbers = []
        for step in itertools.zip_longest(*loaders):
            numbers += valid_of(batch for batch in step if batch is not None)
        assert each_once(numbers, sum(counts))
        assert max(fetched(store)) <= 1


@pytest.mark.parametrize("prefetch_bytes", [0, None, "1GB"])
def test_so_it_is_where_decoding_goes_ahead_in_threads(
    store, counts, tmp_path, capsys, prefetch_bytes
):
    folder = tmp_path / "cache"
    least = planned(capsys, store.url, 15, 1, 0, folder)
    cache = sl.Cache(folder, max_bytes=least, prefetch_bytes=prefetch_bytes)
    (loader,) = loaders_of(
        store.url,
        1,
        cache=cache,
        decode={"cls": lambda data: int(bytes(data)), "txt": "text"},
        decode_threads=8,
        **options_of(15, 0),
    )
    for _ in range(EPOCHS):
        assert each_once(valid_of(loader), sum(counts))
        assert max(fetched(store)) <= 1


def test_once_for_all_epochs_where_all_fit(store, counts, tmp_path):
    sizes = [path.stat().st_size for path in kept_corpus(counts).glob("*.tar*")]
    cache = sl.Cache(tmp_path / "cache", max_bytes=sum(sizes) * 4)
    (loader,) = loaders_of(store.url, 1, cache=cache, **options_of(15, 0))
    for _ in range(EPOCHS):
        assert each_once(valid_of(loader), sum(counts))
    assert fetched(store) == [int(count > 0) for count in counts]


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (1, 2), (2, 2)])
@pytest.mark.parametrize("window", [None, 6, 10_000])
def test_a_smaller_one_is_refused_with_the_figure_of_the_plan_to_the_byte(
    tmp_path, capsys, monkeypatch, world_size, num_workers, window
):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(world_size))
    url = upload(kept_corpus(COUNTS), f"memory://small/{tmp_path.name}")
    folder = tmp_path / "cache"
    least = planned(capsys, url, window, world_size, num_workers, folder)
    options = options_of(window, num_workers)
    for max_bytes in (least - 1, least):
        cache = sl.Cache(folder, max_bytes=max_bytes)
        loaders = loaders_of(url, world_size, cache=cache, **options)
        if max_bytes == least:
            assert next(iter(loaders[0]))["__index__"].shape == (2,)
            continue
        words = (
            rf"here {least} bytes for {world_size * max(1, num_workers)} .*{least - 1}: raise "
            r"max_bytes=, .*Shuffle\(window=\).*cache=None"
        )
        with pytest.raises(sl.CacheError, match=words):
            next(iter(loaders[0]))
        assert not Path(folder).exists()


def test_a_dataset_without_a_loader_refuses_it_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    url = upload(kept_corpus(COUNTS), f"memory://small/{tmp_path.name}")
    least = planned(capsys, url, 6, 1, 0, tmp_path / "cache")
    cache = sl.Cache(tmp_path / "cache", max_bytes=least - 1)
    dataset = sl.ShardDataset(url, cache=cache, batch_size=2, shuffle=sl.Shuffle(window=6))
    with raises_in_worker(sl.CacheError, rf"here {least} bytes for 1 "):
        next(iter(dataset))
