from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from shardloader.writing.journal import JournalFile, Line, parse_journal, read_journal
from shardloader.writing.layout import Position
from shardloader.writing.place import FolderPlace
from shardloader.writing.shard_file import FinishedShard

if TYPE_CHECKING:
    from pathlib import Path


def line(number: int) -> Line:
    shard = FinishedShard(
        name=f"é-{number}.tar",
        size_bytes=number,
        num_samples=3,
        index_digest="0" * 32,
        content_digest="1" * 32,
    )
    return Line(
        shard=shard,
        end=Position(1, 2, number),
        last_key="k\n",
        refused_bytes=4,
        num_refused=5,
        num_left_out=6,
    )


def written(path: Path, count: int) -> bytes:
    journal = JournalFile(FolderPlace(path.parent), path.name)
    journal.begin(fingerprint="f", base=None, lines=(line(0),))
    for number in range(1, count):
        journal.add(line(number))
    return path.read_bytes()


def test_what_was_added_is_read_back(tmp_path: Path) -> None:
    written(tmp_path / "journal", 4)
    journal = read_journal(FolderPlace(tmp_path), "journal")
    assert journal is not None
    assert (journal.fingerprint, journal.base) == ("f", None)
    assert journal.lines == tuple(map(line, range(4)))


@given(st.data())
def test_cut_anywhere_the_whole_lines_count(tmp_path_factory, data) -> None:
    whole = written(tmp_path_factory.mktemp("journal") / "journal", 3)
    kept = whole[: data.draw(st.integers(0, len(whole)))]
    journal = parse_journal(kept)
    num_lines = kept.count(b"\n")
    if num_lines == 0:
        assert journal is None
    else:
        assert journal is not None
        assert journal.lines == tuple(map(line, range(num_lines - 1)))


def test_what_is_no_journal_is_none(tmp_path: Path) -> None:
    assert read_journal(FolderPlace(tmp_path), "none") is None
    for data in (b"", b"\n", b"[]\n", b"{}\n", b'{"format":"shardloader-write","version":9}\n'):
        assert parse_journal(data) is None
