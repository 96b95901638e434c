"""Shards are indexed once, by one process, in parallel, and taken up where it was interrupted."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import ShardError, UsageError, WorldError
from shardloader.format.index import SampleIndex
from shardloader.reading import indexing
from shardloader.reading.cache import default_cache
from shardloader.reading.catalog import open_catalog
from shardloader.reading.indexing import index_dataset
from shardloader.reading.store import file_lock
from shardloader.writing.writer import ShardWriter
from tests.shards import tar_bytes, write_shard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(8):
        write_shard(tmp_path / f"{number}.tar", 2 + number)
    return tmp_path


@pytest.fixture
def in_parallel(monkeypatch) -> None:
    monkeypatch.setattr(indexing, "_PARALLEL_BYTES", 0)


def stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.index")}


def test_processes_make_the_indexes_that_one_process_makes(folder, in_parallel):
    one, _ = index_dataset(folder, num_workers=1)
    files = {path.name: path.read_bytes() for path in folder.glob("*.index")}
    two, _ = index_dataset(folder, num_workers=2, force=True)
    assert one.digest == two.digest
    assert {path.name: path.read_bytes() for path in folder.glob("*.index")} == files
    assert len(files) == 8


def test_little_work_starts_no_process(folder, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a pool was started")

    monkeypatch.setattr(indexing, "ProcessPoolExecutor", refuse)
    index_dataset(folder, num_workers=4)


SIZES = st.dictionaries(st.integers(0, 99_999).map(str), st.integers(0, 1 << 40), max_size=200)


@given(SIZES, st.integers(2, 16))
def test_tasks_hold_every_shard_once_the_largest_first_and_end_small(sizes, workers):
    tasks = indexing._tasks(sizes, workers)
    dealt = [name for task in tasks for name in task]
    assert sorted(dealt) == sorted(sizes)
    assert [sizes[name] for name in dealt] == sorted(sizes.values(), reverse=True)
    assert all(1 <= len(task) <= 64 for task in tasks)
    costs = [sum(sizes[name] + indexing._INDEX_BYTES for name in task) for task in tasks]
    for number, task in enumerate(tasks):
        assert len(task) == 1 or costs[number] <= sum(costs[number:]) / (4 * workers)


def test_one_process_takes_the_shards_in_order():
    assert indexing._tasks({"b": 1, "a": 3, "c": 2}, 1) == [["b"], ["a"], ["c"]]


@pytest.mark.parametrize(
    ("num_shards", "shard_bytes", "workers"),
    [(1, 1 << 40, 1), (2, 100 << 20, 1), (3, 100 << 20, 3), (9, 100 << 20, 4), (40, 1000, 4)],
)
def test_processes_are_started_for_many_bytes_or_many_indexes(num_shards, shard_bytes, workers):
    job = indexing._Job(num_workers=4, force=False, progress=False, cache=default_cache())
    assert indexing._workers([shard_bytes] * num_shards, job) == workers


def test_results_come_in_the_order_of_names_whatever_was_read_first(tmp_path, in_parallel):
    for name, size in (("a", 20), ("b", 3000), ("c", 1000)):
        shard = tar_bytes([("README", b"x" * size), ("1.txt", b"")])
        (tmp_path / f"{name}.tar").write_bytes(shard)
    _, notices = index_dataset(tmp_path, num_workers=2)
    assert list(notices) == ["a.tar", "b.tar", "c.tar"]


def test_a_current_index_is_kept_and_a_stale_one_is_made_again(folder):
    index_dataset(folder)
    before = stamps(folder)
    index_dataset(folder)
    assert stamps(folder) == before
    write_shard(folder / "3.tar", 30)
    os.utime(folder / "4.tar", ns=(time.time_ns() + 10**9,) * 2)
    (folder / "5.tar.index").write_bytes(b"nonsense")
    manifest, _ = index_dataset(folder)
    after = stamps(folder)
    assert {name for name in after if after[name] != before[name]} == {
        "3.tar.index",
        "4.tar.index",
        "5.tar.index",
    }
    assert manifest.counts[3] == 30


def test_force_makes_all_anew(folder):
    index_dataset(folder)
    for path in folder.glob("*.index"):
        os.utime(path, ns=(1, 2**62))
    index_dataset(folder, force=True)
    assert all(stamp < 2**62 for stamp in stamps(folder).values())


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_damaged_shard_is_raised_with_the_number_of_others(folder, in_parallel, workers):
    for name in ("2.tar", "5.tar", "6.tar"):
        (folder / name).write_bytes((folder / name).read_bytes()[:3100])
    with pytest.raises(ShardError, match=r"2\.tar: truncated.*2 more of the shards") as caught:
        index_dataset(folder, num_workers=workers)
    assert caught.value.kind == "truncated"
    assert caught.value.offset is not None
    assert len(list(folder.glob("*.index"))) == 5
    assert not (folder / "manifest.json").exists()


def test_notices_are_given_and_warnings_logged_once_a_shard(folder, caplog):
    odd = tar_bytes(
        [("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3"), ("b.cls", b"4"), ("c", b"")]
    )
    (folder / "1.tar").write_bytes(odd)
    _, notices = index_dataset(folder)
    assert list(notices) == ["1.tar"]
    assert {notice.kind for notice in notices["1.tar"]} == {
        "key_reappears",
        "non_adjacent_sample",
        "duplicate_key",
        "member_without_extension",
    }
    assert caplog.text.count("1.tar") == 1
    assert "key_reappears, 2 times" in caplog.text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "progress", "shown"),
    [(Terminal(), True, True), (Terminal(), False, False), (io.StringIO(), True, False)],
)
def test_progress_is_shown_on_a_terminal_only(folder, monkeypatch, stream, progress, shown):
    monkeypatch.setattr(sys, "stderr", stream)
    index_dataset(folder, progress=progress)
    assert ("8/8" in stream.getvalue()) == shown


def test_a_daemon_process_indexes_by_itself(folder, in_parallel):
    def work() -> None:
        index_dataset(folder, num_workers=4)

    process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert (folder / "manifest.json").exists()


def die(place, name, job):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_helper_is_an_error_that_says_so(folder, in_parallel, monkeypatch):
    monkeypatch.setattr(indexing, "_index_one", die)
    with pytest.raises(WorldError, match="was killed"):
        index_dataset(folder, num_workers=2)


OPEN = """
import sys
from shardloader.reading import indexing
from shardloader.reading.catalog import open_catalog
made = []
real = indexing._index_one
indexing._index_one = lambda place, name, job: (made.append(name), real(place, name, job))[1]
print("ready", flush=True)
sys.stdin.readline()
from shardloader.reading.catalog import open_catalog
catalog = open_catalog(sys.argv[1])
print(len(made), catalog.manifest.digest, flush=True)
"""


def start(script: str, *args: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    return process


def test_processes_that_open_an_unindexed_folder_index_it_once(folder):
    processes = [start(OPEN, str(folder)) for _ in range(3)]
    with file_lock(folder / indexing.LOCK_NAME):  # all of them find no manifest, and wait
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
    answers = [process.communicate()[0].split() for process in processes]
    assert sorted(int(made) for made, _ in answers) == [0, 0, 8]
    assert len({digest for _, digest in answers}) == 1


SLOW = """
import os, sys, time
from shardloader.reading import indexing
from shardloader.reading.catalog import open_catalog
indexing._PARALLEL_BYTES = 0
def slow(place, name, job):
    os.close(os.open(f"{place.root}/started-{os.getpid()}", os.O_CREAT))
    time.sleep(600)
indexing._index_one = slow
print("ready", flush=True)
indexing.index_dataset(sys.argv[1], num_workers=2)
"""


def wait_for(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_killing_the_indexing_process_frees_the_lock_and_ends_its_helpers(folder):
    process = start(SLOW, str(folder))
    wait_for(lambda: len(list(folder.glob("started-*"))) == 2)
    helpers = [int(path.name.split("-")[1]) for path in folder.glob("started-*")]
    process.kill()
    process.communicate()
    manifest, _ = index_dataset(folder)  # would wait for ever if a helper kept the lock
    assert manifest.num_shards == 8
    wait_for(lambda: not any(is_running(helper) for helper in helpers))


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_an_interrupted_run_is_taken_up_where_it_was(folder, monkeypatch):
    real = indexing._index_one

    def interrupted(place, name, job):
        if name == "4.tar":
            raise KeyboardInterrupt
        return real(place, name, job)

    monkeypatch.setattr(indexing, "_index_one", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index_dataset(folder, num_workers=1)
    before = stamps(folder)
    assert len(before) == 4
    monkeypatch.setattr(indexing, "_index_one", real)
    index_dataset(folder)
    after = stamps(folder)
    assert {name: after[name] for name in before} == before


def test_each_index_is_that_of_its_shard(folder):
    manifest, _ = index_dataset(folder)
    for number, name in enumerate(manifest.names):
        index, _ = SampleIndex.build((folder / name).read_bytes(), shard=name)
        assert manifest.index_digests[number] == index.digest
        assert (folder / f"{name}.index").read_bytes() == index.to_bytes()


def test_what_a_writer_has_not_finished_is_no_dataset_until_it_is_indexed_on_purpose(tmp_path):
    writer = ShardWriter(tmp_path, max_samples=2)
    for number in range(5):
        writer.write({"__key__": str(number), "txt": "x"})
    with pytest.raises(UsageError, match="a writer was broken off here, or still writes"):
        open_catalog(tmp_path)
    writer.abort()
    with pytest.raises(UsageError, match="run `shardloader index`"):
        open_catalog(tmp_path)
    manifest, _ = index_dataset(tmp_path)
    assert open_catalog(tmp_path).manifest.digest == manifest.digest
    assert manifest.num_samples == 4


def test_a_finished_folder_bears_no_sign_of_its_writer(tmp_path):
    with ShardWriter(tmp_path, max_samples=2) as writer:
        writer.write({"__key__": "a", "txt": "x"})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "manifest.json",
        "shard-000000.tar",
        "shard-000000.tar.index",
    ]


def test_digests_of_the_bytes_are_made_when_asked_for_and_kept_while_they_hold(tmp_path, caplog):
    folder = tmp_path / "corpus"
    for number in range(3):
        write_shard(folder / f"{number}.tar", 4, first=4 * number)
    assert index_dataset(folder)[0].content_digests is None
    made, _ = index_dataset(folder, digest=True)
    assert made.content_digests == tuple(
        xxhash.xxh3_128((folder / f"{number}.tar").read_bytes()).hexdigest() for number in range(3)
    )
    assert index_dataset(folder)[0].content_digests == made.content_digests
    assert not caplog.records
    write_shard(folder / "1.tar", 4, first=40)
    assert index_dataset(folder)[0].content_digests is None
    assert "1 of 3 shards have no content digest" in caplog.text
    again, _ = index_dataset(folder, digest=True)
    assert again.content_digests is not None
    assert again.content_digests[::2] == made.content_digests[::2]
    assert again.content_digests[1] != made.content_digests[1]


def test_a_writers_digests_are_those_that_indexing_makes(tmp_path):
    with ShardWriter(tmp_path / "corpus", max_samples=3) as writer:
        for number in range(7):
            writer.write({"__key__": str(number), "txt": "a"})
    written = writer.manifest
    assert index_dataset(tmp_path / "corpus")[0].content_digests == written.content_digests
    made, _ = index_dataset(tmp_path / "corpus", force=True, digest=True)
    assert made.content_digests == written.content_digests
    (tmp_path / "corpus" / "manifest.json").write_text("{}")
    assert index_dataset(tmp_path / "corpus")[0].content_digests is None


def test_digests_need_a_manifest_to_stand_in(tmp_path):
    write_shard(tmp_path / "a.tar", 2)
    with pytest.raises(UsageError, match="give the folder"):
        index_dataset([tmp_path / "a.tar"], digest=True)
