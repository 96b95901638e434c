"""The command that looks into the node's cache, and clears it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from shardloader.reading.cache import Cache
from shardloader.reading.origin import LocalFile
from tests.shards import tar_bytes, write_shard


@pytest.fixture
def cache(place):
    made = Cache(place / "cache")
    for number in range(3):
        path = place / f"{number}.tar.gz"
        path.write_bytes(gzip.compress(tar_bytes([(f"{number}.txt", bytes(5000))])))
        made.tar(LocalFile(str(path)))
    return made


def test_it_says_what_is_there_and_what_is_in_use(place, run, cache):
    held = cache.tar(LocalFile(str(place / "1.tar.gz")))
    told = run("cache", "info", cache.folder, "--json").json
    assert told["folder"] == cache.folder
    assert (told["tars"], told["used"], told["parts"]) == (3, 1, 0)
    assert told["tar_bytes"] == 3 * told["used_bytes"] == 3 * len(held)
    assert "3 tars" in run("cache", "info", cache.folder).out


def test_clearing_leaves_what_is_in_use(place, run, cache):
    held = cache.tar(LocalFile(str(place / "1.tar.gz")))
    told = run("cache", "clear", cache.folder, "--json").json
    assert (told["removed"], told["tars"], told["used"]) == (2, 1, 1)
    del held
    assert "1 tar," in run("cache", "clear", cache.folder).out
    assert not list(Path(cache.folder).glob("*.cached"))


def test_the_users_own_cache_is_meant_where_none_is_named(place, run, monkeypatch):
    monkeypatch.setenv("HOME", str(place / "home"))
    told = run("cache", "info", "--json").json
    assert told["folder"] == str(place / "home/.cache/shardloader")
    assert told["tars"] == 0
    assert run("cache", "clear", "--json").json["removed"] == 0
    assert not (place / "home").exists()


def test_a_folder_that_is_not_there_is_wrong_use(place, run):
    nowhere = run("cache", "info", place / "nowhere")
    assert nowhere.code == 2
    assert "a cache is a folder" in nowhere.err
    assert run("cache", "show").code == 2


def test_index_takes_the_caches_options_and_messages_name_them(place, run):
    (place / "corpus").mkdir()
    write_shard(place / "a.tar", 200, size=2000)
    (place / "corpus" / "a.tar.gz").write_bytes(gzip.compress((place / "a.tar").read_bytes()))
    arguments = ("index", place / "corpus", "--cache", place / "mine")
    small = run(*arguments, "--max-bytes", "100kB")
    assert small.code == 1
    assert "raise --max-bytes" in small.err
    assert run(*arguments, "--max-bytes", "10MB", "--json").json["datasets"][0]["samples"] == 200
    assert len(list((place / "mine").glob("*.cached"))) == 1
