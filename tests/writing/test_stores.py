"""Shards written to a store are those that a local write makes, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
import xxhash

import shardloader as sl
from shardloader.cli import main
from shardloader.errors import StoreError, UsageError, WorldError
from shardloader.reading import storing
from shardloader.reading.clients import new_client
from shardloader.reading.patience import Patience
from shardloader.reading.source import UNFINISHED_NAME
from shardloader.writing import store_place
from shardloader.writing.lease import Lease, Rhythm
from shardloader.writing.lock import LOCK_NAME
from shardloader.writing.selection import Selection
from shardloader.writing.sources.opening import open_source
from shardloader.writing.store_place import StorePlace
from shardloader.writing.write import write_shards
from tests.servers.azurite import KEY
from tests.servers.plan import Fault, Plan
from tests.servers.proxy import FaultProxy
from tests.writing.inputs import CHOICE, cut_small, json_lines, jsonl
from tests.writing.reading_back import visible
from tests.writing.test_kills import ended, in_a_child

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


QUICK = Rhythm(renew_s=0.1, dead_s=1.0, look_s=0.05)
CASES: list[dict[str, Any]] = [
    {"compression": "zstd", "frame_samples": 3, "workers": 2},
    {"shuffle": 3},
    {"on_error": "skip", "selection": Selection(patterns=("*[1-9]",))},
]


SHUFFLED: dict[str, Any] = {"shuffle": 1, "workers": 2}


class Bucket:
    """A bucket of a server, and what is in it."""

    def __init__(self, server: Any, name: str, scheme: str) -> None:
        server.put(name)
        self.server = server
        self.url = f"{scheme}://{name}/corpus"
        self.options = server.options()
        self.secret = KEY if scheme == "az" else self.options.get("secret", "t3stingSecret")
        self.client = new_client(self.url, scheme, self.options, Patience())
        self._name = name

    def names(self, *, hidden: bool = False) -> list[str]:
        found = self.client.find(f"{self._name}/corpus")
        names = [path.removeprefix(f"{self._name}/corpus/") for path in found]
        return [name for name in names if hidden or name[0] != "."]

    def files(self, *, hidden: bool = False) -> dict[str, bytes]:
        return {
            name: self.client.cat_file(f"{self._name}/corpus/{name}")
            for name in self.names(hidden=hidden)
        }

    def put(self, name: str, data: bytes) -> None:
        self.server.put(self._name, name, data)

    def remove(self, name: str) -> None:
        self.client.rm_file(f"{self._name}/{name}")

    def open_uploads(self) -> int:
        """How many uploads in parts were begun and not ended; a store may end them by itself."""
        if not self.url.startswith("s3"):
            return 0
        found = self.client.call_s3("list_multipart_uploads", Bucket=self._name)
        return len(found.get("Uploads", []))

    def write(self, source: Any, **options: Any) -> Any:
        return write_shards(source, self.url, storage_options=self.options, **options)


SERVERS = {"s3": "s3", "gs": "gcs", "az": "azurite"}


@pytest.fixture(params=SERVERS)
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    name = f"b{xxhash.xxh3_64_hexdigest(str(tmp_path).encode())}"
    return Bucket(request.getfixturevalue(SERVERS[request.param]), name, request.param)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The system's folder for temporary files; nothing may be left in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    (tmp_path / "rows").mkdir()
    jsonl(tmp_path / "rows")
    with (tmp_path / "rows" / "b.jsonl").open("ab") as file:
        file.write(b"")
    return tmp_path / "rows"


def source_of(rows: Path) -> Any:
    return open_source([str(rows)], choice=CHOICE)


@pytest.mark.parametrize("options", CASES, ids=repr)
def test_a_store_gets_the_bytes_that_a_folder_gets(
    tmp_path, bucket, rows, temporary, monkeypatch, options
):
    cut_small(monkeypatch)
    options = {"max_samples": 7, **options}
    local = write_shards(source_of(rows), tmp_path / "out", **options)
    written = bucket.write(source_of(rows), **options)
    assert written.manifest.digest == local.manifest.digest
    assert bucket.files(hidden=True) == visible(tmp_path / "out")


def test_what_was_written_to_a_store_is_read_from_it(tmp_path, bucket, rows, temporary):
    bucket.write(source_of(rows), max_samples=7)
    cache = sl.Cache(tmp_path / "cache", max_bytes="100MB")
    dataset = sl.ShardDataset(bucket.url, storage_options=bucket.options, cache=cache)
    assert dataset.num_samples == 60
    assert dataset.as_map()[59]["__key__"] == "k0059"


def test_a_shard_writer_writes_to_a_store_and_appends_to_it(tmp_path, bucket, temporary):
    for folder, options in ((tmp_path / "out", {}), (bucket.url, bucket.options)):
        how: dict[str, Any] = {"storage_options": options} if options else {}
        for first, append in ((0, False), (7, True)):
            with sl.ShardWriter(folder, max_samples=3, append=append, **how) as writer:
                for number in range(first, first + 7):
                    writer.write({"__key__": f"{number}", "txt": "x"})
    assert bucket.files(hidden=True) == visible(tmp_path / "out")
    assert writer.folder == bucket.url
    with pytest.raises(UsageError, match="give another folder, or overwrite=True"):
        sl.ShardWriter(bucket.url, storage_options=bucket.options).write(
            {"__key__": "0", "txt": "x"}
        )
    with sl.ShardWriter(bucket.url, storage_options=bucket.options, overwrite=True) as writer:
        writer.write({"__key__": "0", "txt": "x"})
    assert sorted(bucket.files(hidden=True)) == [
        "manifest.json",
        "shard-000000.tar",
        "shard-000000.tar.index",
    ]


def test_a_writer_that_fails_leaves_its_finished_shards_and_no_manifest(bucket, temporary):
    writer = sl.ShardWriter(bucket.url, storage_options=bucket.options, max_samples=2)
    for number in range(5):
        writer.write({"__key__": f"{number}", "txt": "x"})
    writer.abort()
    assert sorted(name for name in bucket.files() if name.endswith(".tar")) == [
        "shard-000000.tar",
        "shard-000001.tar",
    ]
    assert "manifest.json" not in bucket.names()


def noted_write(log: Path, rows: Path, bucket: Bucket, **options: Any) -> None:
    """Write, and note each shard that is there: in a process that will be killed."""
    publish = StorePlace.publish_file

    def noting(place: StorePlace, path: Path, name: str) -> None:
        publish(place, path, name)
        with log.open("a") as file:
            file.write(f"{name}\n")

    setattr(StorePlace, "publish_file", noting)  # noqa: B010  # in this process only
    bucket.write(source_of(rows), **options)


@pytest.mark.parametrize(
    ("bucket", "options"),
    [("s3", {}), ("s3", SHUFFLED), ("gs", SHUFFLED), ("az", {})],
    indirect=["bucket"],
    ids=repr,
)
def test_killed_at_random_moments_the_same_write_finishes_and_puts_no_shard_twice(
    tmp_path, bucket, rows, monkeypatch, temporary, options
):
    cut_small(monkeypatch)
    monkeypatch.setattr(store_place, "_PIECE_BYTES", 700)
    options = {"max_samples": 3, "on_error": "skip", **options}
    (rows / "b.jsonl").write_bytes(json_lines(40) + b"not json\n" + json_lines(40, 41))
    write_shards(source_of(rows), tmp_path / "whole", **options)
    whole = visible(tmp_path / "whole")
    rng = random.Random(repr(options))
    kills, log = 0, tmp_path / "log"
    log.touch()
    write = partial(noted_write, log, rows, bucket, **options)
    while "manifest.json" not in bucket.names():
        wanted = len(log.read_text().splitlines()) + rng.randint(1, 9)
        child = in_a_child(write)
        while len(log.read_text().splitlines()) < wanted:
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            time.sleep(0.002)
        time.sleep(rng.choice([0, 0.01, 0.05]))  # the moment is the test's subject
        os.kill(child, signal.SIGKILL)
        kills += ended(child) == -signal.SIGKILL
        found = bucket.files()
        for name, data in found.items():
            assert whole[name] == data, name
        assert "manifest.json" not in found or len(found) == len(whole)
    if UNFINISHED_NAME in bucket.names(hidden=True):
        assert ended(in_a_child(write)) == 0
    assert kills >= 2
    assert bucket.files() == whole
    published = log.read_text().splitlines()
    assert len(set(published)) == len(published)
    for item in temporary.iterdir():  # killed after the end
        shutil.rmtree(item) if item.is_dir() else item.unlink()


@pytest.mark.parametrize("bucket", ["s3", "az"], indirect=True)  # whose PUTs have the file's URL
def test_a_store_that_fails_in_the_middle_is_named_and_the_next_write_finishes(
    tmp_path, bucket, rows, temporary
):
    write_shards(source_of(rows), tmp_path / "whole", max_samples=7)
    fault = Fault(kind="status", status=403, method="PUT", path="*/shard-000003.tar", times=2)
    with FaultProxy(bucket.server.url, Plan(faults=(fault,))) as proxy:
        options = {**bucket.server.options(proxy.url), "patience": {"attempts": 2, "first_s": 0.01}}
        how: dict[str, Any] = {"storage_options": options, "max_samples": 7}
        with pytest.raises(StoreError, match=r"shard-000003\.tar.*the store refuses"):
            write_shards(source_of(rows), bucket.url, **how)
        found = bucket.files(hidden=True)
        assert "manifest.json" not in found
        assert "shard-000002.tar" in found
        assert UNFINISHED_NAME in found
        assert LOCK_NAME not in found
        assert write_shards(source_of(rows), bucket.url, **how).num_kept == 3
    assert bucket.files(hidden=True) == visible(tmp_path / "whole")


def test_what_passes_is_tried_again_and_no_upload_is_left_open(
    tmp_path, bucket, temporary, monkeypatch
):
    in_parts = {"chunksize": 5 << 20, "max_concurrency": 2}
    monkeypatch.setitem(storing._PUTTING, "S3FileSystem", in_parts)
    monkeypatch.setitem(storing._PUTTING, "GCSFileSystem", {"chunksize": 5 << 20})
    sample = {"__key__": "a", "bin": os.urandom(12 << 20)}
    with sl.ShardWriter(tmp_path / "out") as writer:
        writer.write(sample)
    name = "*/o" if bucket.url.startswith("gs") else "*.tar"
    faults = (
        Fault(kind="status", status=503, method="PUT", path=name, times=2),
        Fault(kind="reset", method="POST", path=name, times=1, after=1),
    )
    with FaultProxy(bucket.server.url, Plan(faults=faults)) as proxy:
        options = {**bucket.server.options(proxy.url), "patience": {"first_s": 0.01}}
        with sl.ShardWriter(bucket.url, storage_options=options) as writer:
            writer.write(sample)
        assert any(proxy.met)
    assert bucket.files(hidden=True) == visible(tmp_path / "out")
    assert bucket.open_uploads() == 0


def test_a_second_writer_is_refused_here_and_on_another_machine(bucket, tmp_path, temporary):
    with sl.ShardWriter(bucket.url, storage_options=bucket.options):
        second = sl.ShardWriter(bucket.url, storage_options=bucket.options)
        with pytest.raises(UsageError, match="another writer is writing"):
            second.write({"__key__": "0", "txt": "x"})
        StorePlace(bucket.url, bucket.options)
    there = StorePlace(bucket.url, bucket.options, temporary=tmp_path / "there", rhythm=QUICK)
    there.take()
    try:
        here = StorePlace(bucket.url, bucket.options, rhythm=QUICK)
        with pytest.raises(UsageError, match=r"another writer is writing to '.*://.*, on '"):
            here.take()
        here.clear_work()
        here.release()
    finally:
        there.clear_work()
        there.release()


def test_a_dead_writer_of_another_machine_is_followed_and_one_that_comes_back_stops(
    bucket, tmp_path, temporary
):
    dead = StorePlace(bucket.url, bucket.options, temporary=tmp_path / "there", rhythm=Rhythm())
    dead.take()
    heir = StorePlace(bucket.url, bucket.options, rhythm=QUICK)
    heir.take()
    dead._lease._rhythm = QUICK
    dead._lease._renew("there")  # as its thread will in a while
    with pytest.raises(WorldError, match="was taken for dead"):
        dead.publish("manifest.json", b"{}")
    dead.release()
    assert LOCK_NAME in bucket.files(hidden=True)
    heir.clear_work()
    heir.release()
    assert bucket.files(hidden=True) == {}


def test_of_two_who_ask_at_once_one_gets_the_lease(bucket):
    leases = [Lease(StorePlace(bucket.url, bucket.options).store, "l", QUICK) for _ in range(2)]
    leases[0].acquire("a")
    with pytest.raises(UsageError):
        leases[1].acquire("b")
    leases[0].release()
    leases[1].acquire("b")
    leases[1].release()


def test_another_machine_finishes_what_one_began_also_shuffled_and_with_refused_samples(
    tmp_path, bucket, rows, temporary, monkeypatch
):
    cut_small(monkeypatch)
    (rows / "a.jsonl").write_bytes(b"not json\n" + json_lines(0, 40))
    (rows / "b.jsonl").write_bytes(json_lines(40) + json_lines(0, 20))
    options: dict[str, Any] = {"max_samples": 3, "shuffle": 2, "on_error": "skip"}
    write_shards(source_of(rows), tmp_path / "whole", **options)
    published: list[str] = []
    publish = StorePlace.publish_file

    def failing(place: StorePlace, path: Path, name: str) -> None:
        if len(published) % 6 == 5:
            published.append("broken off")
            raise WorldError("the store is full")
        publish(place, path, name)
        published.append(name)

    monkeypatch.setattr(StorePlace, "publish_file", failing)
    for number in range(50):
        try:
            bucket.write(source_of(rows), temporary=tmp_path / f"machine{number}", **options)
            break
        except WorldError:
            assert "manifest.json" not in bucket.names()
    assert number > 2
    assert bucket.files(hidden=True) == visible(tmp_path / "whole")
    names = [name for name in published if name != "broken off"]
    assert len(set(names)) == len(names)


def test_what_is_no_folder_of_a_store_is_refused_before_anything_is_asked(tmp_path):
    for url in (
        "https://host/corpus",
        "hf://datasets/a/b/corpus",
        "simplecache::s3://b/c",
        "s3://b/c?versionId=1",
    ):
        with pytest.raises(UsageError, match="a writer writes to a folder"):
            sl.ShardWriter(url)
    with pytest.raises(UsageError, match="storage_options= is for"):
        sl.ShardWriter(tmp_path / "out", storage_options={})
    with pytest.raises(UsageError, match="temporary= is for"):
        write_shards([str(tmp_path)], tmp_path / "out", temporary=tmp_path)
    with pytest.raises(UsageError, match="all of them see: give it as temporary="):
        write_shards([str(tmp_path)], "s3://b/c", engine="ray")


def test_shards_are_not_written_into_the_store_folder_that_they_are_made_from(bucket, temporary):
    with sl.ShardWriter(bucket.url, storage_options=bucket.options) as writer:
        writer.write({"__key__": "0", "txt": "x"})
    source = open_source([bucket.url], storage_options=bucket.options)
    before = bucket.files(hidden=True)
    for below in ("", "/below"):
        with pytest.raises(UsageError, match="packed into itself"):
            write_shards(
                source, f"{bucket.url}{below}", storage_options=bucket.options, overwrite=True
            )
    shard = open_source([f"{bucket.url}/shard-000000.tar"], storage_options=bucket.options)
    with pytest.raises(UsageError, match="lies in the destination"):
        write_shards(shard, bucket.url, storage_options=bucket.options, overwrite=True)
    assert bucket.files(hidden=True) == before


def test_a_store_without_conditional_writes_or_whole_puts_is_written_to_as_well(
    tmp_path, rows, temporary
):
    write_shards(source_of(rows), tmp_path / "out", max_samples=7)
    url = f"memory://{tmp_path}/corpus"
    write_shards(source_of(rows), url, max_samples=7)
    client = fsspec.filesystem("memory")
    found = {path.rpartition("/")[2]: client.cat_file(path) for path in client.find(url)}
    assert found == visible(tmp_path / "out")


def test_class_folders_on_a_store_make_what_they_make_here(
    tmp_path, bucket, temporary, monkeypatch
):
    for name in (
        "cat/a.txt",
        "cat/b.c.txt",
        "dog/sub/a.txt",
        "dog/empty.txt",
        "dog/.hidden",
        "top",
    ):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if "empty" in name else name.encode())
        bucket.put(f"in/{name}", path.read_bytes())
    if not bucket.url.startswith("az"):
        bucket.put("in/dog/", b"")  # as consoles mark a folder
    local = write_shards(open_source([str(tmp_path / "in")], kind="classes"), tmp_path / "out")
    url = bucket.url.replace("/corpus", "/in")
    source = open_source([url], kind="classes", storage_options=bucket.options)
    written = bucket.write(source)
    assert written.survey.skipped == local.survey.skipped
    assert written.survey.num_bytes == local.survey.num_bytes > 0
    assert bucket.files(hidden=True) == visible(tmp_path / "out")
    assert json.loads(bucket.files()["classes.json"]) == {"cat": 0, "dog": 1}
    part, *_ = source.parts()
    bucket.put("in/cat/a.txt", b"longer than it was")
    with pytest.raises(WorldError, match=r"in/cat/a\.txt' had 9 bytes when it was planned"):
        list(source.read(part))
    bucket.remove("in/cat/a.txt")
    with pytest.raises(WorldError, match="no such file"):
        list(source.read(part))


def test_the_command_takes_urls_and_their_options(tmp_path, bucket, rows, temporary, capsys):
    write_shards(source_of(rows), tmp_path / "out", max_samples=7)
    options = json.dumps(bucket.options)
    words = ["write", str(rows), bucket.url, "--destination-options", options, "--max-samples", "7"]
    words += ["--key", "id", "--field", "txt=text", "--field", "cls=label"]
    assert main([*words, "--dry-run"]) == 0
    assert bucket.names(hidden=True) == []
    assert main(words) == 0
    assert bucket.files(hidden=True) == visible(tmp_path / "out")
    assert main(words) == 2
    again = ["write", bucket.url, str(tmp_path / "again"), "--storage-options", options]
    assert main([*again, "--max-samples", "7"]) == 0
    assert visible(tmp_path / "again") == visible(tmp_path / "out")
    assert bucket.secret not in "".join(capsys.readouterr())
