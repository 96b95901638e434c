"""`shardloader index`: what it makes, what it finds odd, and what it names as broken."""

from __future__ import annotations

from shardloader.reading.indexing import index_dataset
from tests.cli.workplace import make_corpus
from tests.shards import sample_members, tar_bytes


def test_it_makes_indexes_and_a_manifest(place, run):
    make_corpus(place / "corpus")
    ended = run("index", "corpus", "--json")
    assert (ended.code, ended.err) == (0, "")
    (dataset,) = ended.json["datasets"]
    assert (dataset["shards"], dataset["samples"], dataset["notices"]) == (4, 200, [])
    assert (place / "corpus" / "manifest.json").is_file()
    manifest, _ = index_dataset(place / "corpus")
    assert manifest.digest == dataset["digest"]


def test_indexes_may_lie_elsewhere(place, run):
    make_corpus(place / "corpus")
    assert run("index", "corpus", "--index-dir", "indexes", "--workers", "2").code == 0
    assert not list((place / "corpus").glob("*.index"))
    assert len(list((place / "indexes").glob("*.index"))) == 4
    assert run("info", "corpus", "--index-dir", "indexes", "--json").json["indexes"] == 4


def test_folders_are_datasets_and_shards_are_one(place, run):
    make_corpus(place / "one", shards=1)
    make_corpus(place / "two", shards=2)
    told = run("index", "one", "two", "--json").json["datasets"]
    assert [each["shards"] for each in told] == [1, 2]
    shards = sorted((place / "two").glob("*.tar"))
    (together,) = run("index", *shards, "--json").json["datasets"]
    assert (together["shards"], together["samples"], together["manifest"]) == (2, 100, None)
    ended = run("index", f"{place}/two/shard-{{000..001}}.tar")
    assert "none: shards, not a folder" in ended.out


def test_notices_are_listed_by_kind_with_shard_and_offset(place, run):
    (place / "corpus").mkdir()
    members = sample_members(3)
    odd = tar_bytes([*members, ("000000.json", b"{}"), ("notes", b"")])
    for name in "abcdefg":
        (place / "corpus" / f"{name}.tar").write_bytes(odd)
    ended = run("index", "corpus")
    assert (ended.code, ended.err) == (0, "")
    assert "key_reappears: a key comes back after another one" in ended.out
    assert "a.tar at byte 6144: key '000000' was seen before" in ended.out
    assert "and 2 shards more" in ended.out
    assert "g.tar at byte" in run("index", "corpus", "--force", "-v").out
    again = run("index", "corpus", "--json").json["datasets"][0]
    assert again["notices"] == []
    (first, *_) = run("index", "corpus", "--force", "--json").json["datasets"][0]["notices"]
    assert first == {
        "kind": "key_reappears",
        "shard": "a.tar",
        "offset": 6144,
        "times": 1,
        "detail": "key '000000' was seen before",
        "is_warning": True,
    }


def test_a_broken_shard_is_named_and_exit_code_1(place, run):
    make_corpus(place / "corpus")
    for name in ("shard-001.tar", "shard-003.tar"):
        path = place / "corpus" / name
        path.write_bytes(path.read_bytes()[:1500])
    ended = run("index", "corpus")
    assert (ended.code, ended.out) == (1, "")
    assert "shard-001.tar" in ended.err
    assert "1 more of the shards" in ended.err
    assert run("index", "corpus", "--json").json["error"]["kind"] == "ShardError"
    assert run("plan", "corpus", "--batch-size", "4").code == 2


def test_a_broken_manifest_is_exit_code_1(place, run):
    make_corpus(place / "corpus")
    (place / "corpus" / "manifest.json").write_text("{}")
    for words in (["info", "corpus"], ["plan", "corpus", "--batch-size", "4"]):
        ended = run(*words)
        assert (ended.code, ended.out) == (1, "")
        assert "manifest" in ended.err
