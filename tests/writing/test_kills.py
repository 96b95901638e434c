"""A write is killed anywhere, and run again: is the result what it would have been?"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardloader.errors import ShardError, UsageError, WorldError
from shardloader.reading.catalog import open_catalog
from shardloader.reading.source import UNFINISHED_NAME
from shardloader.writing import filling
from shardloader.writing.destination import Destination
from shardloader.writing.lock import LOCK_NAME
from shardloader.writing.place import WORK_NAME
from shardloader.writing.selection import Selection
from shardloader.writing.sources.jsonl_files import JsonLines
from shardloader.writing.write import write_shards
from tests.writing.inputs import CHOICE, EXPECTED, cut_small, jsonl
from tests.writing.reading_back import read_dataset, read_shard, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardloader.writing.sources.base import Source

OPTIONS: list[dict[str, Any]] = [
    {"max_samples": 25},
    {"max_samples": 25, "compression": "zstd", "frame_samples": 10},
    {"max_samples": 25, "shuffle": 1},
]
DIED = 70


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    cut_small(monkeypatch)
    (tmp_path / "input").mkdir()
    return jsonl(tmp_path / "input")


def in_a_child(work: Callable[[], object]) -> int:
    """Start a process that works and ends with 0, or with `DIED` after an error; gives its id."""
    child = os.fork()
    if child:
        return child
    code = DIED
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class KilledAt:
    """Kills its process at the n-th call that changes what lies on the disk."""

    CHANGES = (
        (os, "fsync"),
        (os, "truncate"),
        (shutil, "rmtree"),
        (Path, "replace"),
        (Path, "unlink"),
        (Path, "mkdir"),
    )

    def __init__(self, step: int) -> None:
        self.left = step
        for place, name in self.CHANGES:
            setattr(place, name, self.counting(getattr(place, name)))

    def counting(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments, **options)

        return counted


def killed_write(step: int, source: Source, folder: Path, **options: Any) -> None:
    KilledAt(step)
    write_shards(source, folder, **options)


def check_what_lies_there(folder: Path, whole: dict[str, bytes]) -> None:
    """Whatever has a final name is whole, and nothing looks like a dataset that is not."""
    if not folder.exists():
        return
    for name, data in visible(folder).items():
        if name.endswith((".tar", ".tar.zst")):
            assert whole[name] == data
            assert read_shard(folder / name)
    if not (folder / "manifest.json").exists() and list(folder.glob("*.tar")):
        assert (folder / UNFINISHED_NAME).exists()
        with pytest.raises(UsageError, match="a writer was broken off here"):
            open_catalog(folder)


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_killed_at_any_step_it_is_finished_by_the_same_write(
    tmp_path: Path, source: Source, options: dict[str, Any]
) -> None:
    write_shards(source, tmp_path / "whole", **options)
    whole = visible(tmp_path / "whole")
    folder = tmp_path / "out"
    for step in range(1, 1000):
        child = in_a_child(partial(killed_write, step, source, folder, **options))
        code = ended(child)
        check_what_lies_there(folder, whole)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        if (folder / "manifest.json").exists() and not (folder / UNFINISHED_NAME).exists():
            (folder / LOCK_NAME).unlink(missing_ok=True)  # killed when all was done
            assert visible(folder) == whole
        else:
            before = {path.name: path.stat() for path in folder.glob("*.tar*")}
            write_shards(source, folder, **options)
            assert visible(folder) == whole
            for name, status in before.items():
                again = (folder / name).stat()
                if name.endswith((".tar", ".zst")):
                    assert (again.st_ino, again.st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
        assert {path.name for path in folder.iterdir()} == set(whole)
        shutil.rmtree(folder)
    assert step > 20


def test_killed_while_it_clears_the_folder_it_clears_it_again(
    tmp_path: Path, source: Source
) -> None:
    options: dict[str, Any] = {"max_samples": 30, "overwrite": True}
    write_shards(source, tmp_path / "whole", max_samples=30)
    whole = visible(tmp_path / "whole")
    for step in range(1, 60, 2):
        folder = tmp_path / f"out{step}"
        write_shards(source, folder, max_samples=5)
        ended(in_a_child(partial(killed_write, step, source, folder, **options)))
        write_shards(source, folder, **options)
        assert visible(folder) == whole


def shards_in(folder: Path) -> int:
    return sum(1 for path in folder.glob("*.tar*") if path.suffix != ".index")


def killed_after(child: int, folder: Path, num_shards: int, delay: float) -> int:
    """Kill a process a moment after there are so many shards, unless it ends before."""
    while shards_in(folder) < num_shards:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return ended(child)
        time.sleep(0.001)
    time.sleep(delay)  # the moment is the test's subject
    os.kill(child, signal.SIGKILL)
    return ended(child)


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_killed_at_random_moments_with_workers_it_is_finished(
    tmp_path: Path, source: Source, options: dict[str, Any]
) -> None:
    options = {**options, "max_samples": 4}
    write_shards(source, tmp_path / "whole", workers=2, **options)
    whole = visible(tmp_path / "whole")
    total = shards_in(tmp_path / "whole")
    rng = random.Random(repr(options))
    kills = 0
    folder = tmp_path / "out"
    for _ in range(3):
        while shards_in(folder) < total:
            least = rng.randint(shards_in(folder), total - 1)
            child = in_a_child(partial(write_shards, source, folder, workers=2, **options))
            code = killed_after(child, folder, least, rng.choice([0, 0.003, 0.03]))
            check_what_lies_there(folder, whole)
            kills += code == -signal.SIGKILL
            if rng.random() < 0.2:
                break
        if not (folder / "manifest.json").exists() or (folder / UNFINISHED_NAME).exists():
            write_shards(source, folder, workers=2, **options)
        (folder / LOCK_NAME).unlink(missing_ok=True)
        assert visible(folder) == whole
        assert {path.name for path in folder.iterdir()} == set(whole)
        shutil.rmtree(folder)
    assert kills > 0


def test_a_worker_that_is_killed_ends_the_write_and_the_next_one_finishes_it(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = type(source).read
    main = os.getpid()

    def killing(self: Source, part: Any, *, outline: bool = False) -> Any:
        if part.number == 3 and os.getpid() != main:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, part, outline=outline)

    with monkeypatch.context() as patch:
        patch.setattr(type(source), "read", killing)
        with pytest.raises(WorldError, match="a process that wrote shards was killed"):
            write_shards(source, tmp_path / "out", workers=2, max_samples=3)
    write_shards(source, tmp_path / "out", workers=2, max_samples=3)
    assert read_dataset(tmp_path / "out") == EXPECTED


def test_a_worker_that_fails_in_a_way_nobody_foresaw_is_not_said_to_be_killed(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    def failing(self: Source, part: Any, *, outline: bool = False) -> Any:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(type(source), "read", failing)
    with pytest.raises(WorldError, match="ended with code 1, and what it said before"):
        write_shards(source, tmp_path / "out", workers=2)
    assert "nobody foresaw this" in capfd.readouterr().err


@pytest.mark.parametrize("failure", [OSError("broken"), RuntimeError("nobody foresaw this")])
def test_a_worker_that_fails_to_seal_ends_the_write_and_no_shard_gets_its_name(
    tmp_path: Path,
    source: Source,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
    failure: Exception,
) -> None:
    main = os.getpid()

    def failing(handle: int) -> None:
        if os.getpid() != main:
            raise failure

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(WorldError, match=r"broken|ended with code 1, and what it said before"):
        write_shards(source, tmp_path / "out", workers=2, max_samples=3)
    is_told = "nobody foresaw this" in capfd.readouterr().err
    assert is_told == isinstance(failure, RuntimeError)
    assert not list((tmp_path / "out").glob("*.tar"))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_a_disk_that_is_full_is_an_error_and_with_room_the_write_is_finished(
    tmp_path: Path, source: Source, options: dict[str, Any], workers: int
) -> None:
    write_shards(source, tmp_path / "whole", **options)

    def with_little_room() -> None:
        room = 1000 if "compression" in options else 6000  # less than a shard, more than a journal
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        with pytest.raises(WorldError, match="File too large"):
            write_shards(source, tmp_path / "out", workers=workers, **options)

    assert ended(in_a_child(with_little_room)) == 0
    write_shards(source, tmp_path / "out", workers=workers, **options)
    assert visible(tmp_path / "out") == visible(tmp_path / "whole")


def test_a_second_write_is_refused_while_the_first_one_is_at_work(
    tmp_path: Path, source: Source
) -> None:
    class Asking(type(source)):  # type: ignore[misc]
        """Tries the second write in the middle of the first."""

        def read(self, part: Any, *, outline: bool = False) -> Any:
            with pytest.raises(UsageError, match="another writer is writing"):
                write_shards(source, tmp_path / "out", max_samples=25)
            return super().read(part, outline=outline)

    source.__class__ = Asking
    write_shards(source, tmp_path / "out", max_samples=25)
    assert read_dataset(tmp_path / "out") == EXPECTED


def test_a_broken_off_write_of_other_options_or_input_is_not_taken_up(
    tmp_path: Path, source: Source
) -> None:
    folder = tmp_path / "out"
    child = in_a_child(partial(killed_write, 20, source, folder, max_samples=5))
    assert ended(child) == -signal.SIGKILL
    assert list(folder.glob("*.tar"))
    for other in ({"max_samples": 6}, {"max_samples": 5, "on_error": "skip"}):
        with pytest.raises(UsageError, match="the command that began it finishes it"):
            write_shards(source, folder, **other)
    again = jsonl(tmp_path / "input")  # the same files, written anew
    with pytest.raises(UsageError, match="the command that began it finishes it"):
        write_shards(again, folder, max_samples=5)
    write_shards(source, folder, max_samples=9, overwrite=True)
    assert read_dataset(folder) == EXPECTED


def test_a_finished_shard_that_changed_meanwhile_is_noticed(tmp_path: Path, source: Source) -> None:
    folder = tmp_path / "out"
    child = in_a_child(partial(killed_write, 30, source, folder, max_samples=5))
    assert ended(child) == -signal.SIGKILL
    first = min(folder.glob("*.tar"))
    first.write_bytes(b"")
    with pytest.raises(UsageError, match="gone or changed"):
        write_shards(source, folder, max_samples=5)


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_what_was_left_out_is_listed_once_wherever_the_write_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    cut_small(monkeypatch)
    rows = [{"id": key, "text": "x", "label": n % 3} for n, key in enumerate("abc" * 10)]
    lines = [json.dumps(row) if n % 4 else "not json" for n, row in enumerate(rows)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, "nor this"]))
    source = JsonLines([str(tmp_path / "a.jsonl")], choice=CHOICE)
    options = {**options, "max_samples": 4, "on_error": "skip"}
    write_shards(source, tmp_path / "whole", **options)
    whole = visible(tmp_path / "whole")
    assert b"nor this" not in whole["refused.jsonl"]
    assert len(whole["refused.jsonl"].splitlines()) > 9
    folder = tmp_path / "out"
    for step in range(1, 1000, 3):
        ended(in_a_child(partial(killed_write, step, source, folder, **options)))
        if (folder / "manifest.json").exists() and not (folder / UNFINISHED_NAME).exists():
            break
        write_shards(source, folder, **options)
        assert visible(folder) == whole
        shutil.rmtree(folder)
    assert step > 10


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_what_was_not_selected_is_counted_once_when_only_the_manifest_was_left_to_do(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    def failing(destination: Destination, manifest: Any) -> None:
        raise WorldError("the disk is full")

    options = {**options, "selection": Selection(patterns=("*[0-4]",))}
    with monkeypatch.context() as patch:
        patch.setattr(Destination, "publish_manifest", failing)
        with pytest.raises(WorldError, match="disk is full"):
            write_shards(source, tmp_path / "out", **options)
    written = write_shards(source, tmp_path / "out", **options)
    assert written.num_kept == len(written.shards) > 0
    assert written.num_left_out == len(EXPECTED) // 2


@pytest.mark.parametrize("options", OPTIONS[:2], ids=repr)
def test_bytes_that_are_lost_before_a_shard_is_sealed_are_noticed(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    def losing(path: Path) -> memoryview:
        return memoryview(path.read_bytes()[:-1])

    monkeypatch.setattr(filling, "map_file", losing)
    with pytest.raises((WorldError, ShardError), match=r"not what was written|truncated"):
        write_shards(source, tmp_path / "out", workers=2, **options)


@pytest.mark.parametrize("options", [{"on_error": "skip"}, {"shuffle": 1}], ids=repr)
def test_without_its_temporary_files_a_write_is_not_finished_as_something_else(
    tmp_path: Path, source: Source, options: dict[str, Any]
) -> None:
    with (tmp_path / "input" / "a.jsonl").open("rb+") as file:
        file.write(b"?")  # a line that is refused
    source = JsonLines([str(tmp_path / "input")], choice=CHOICE)
    options = {"max_samples": 5, "on_error": "skip", **options}
    folder = tmp_path / "out"
    child = in_a_child(partial(killed_write, 60, source, folder, **options))
    assert ended(child) == -signal.SIGKILL
    assert list(folder.glob("*.tar"))
    shutil.rmtree(folder / WORK_NAME)
    with pytest.raises(UsageError, match="these are gone: overwrite=True begins anew"):
        write_shards(source, folder, **options)
