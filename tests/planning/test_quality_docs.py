"""The tables of docs/shuffle.md are what benchmarks/shuffle_quality.py prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import shuffle_quality

PAGE = Path(__file__).parents[2] / "docs" / "shuffle.md"


@pytest.mark.parametrize("case", shuffle_quality.CASES, ids=lambda case: case.name)
def test_a_row_of_windows_is_as_measured(case):
    lines = PAGE.read_text().splitlines()
    measured = shuffle_quality.measure(case)
    assert shuffle_quality.row(case.name, measured) in lines
    assert shuffle_quality.row("a perfect shuffle", measured, "perfect") in lines


@pytest.mark.parametrize("case", shuffle_quality.SIZES, ids=lambda case: case.name)
def test_a_row_of_shards_is_as_measured(case):
    line = shuffle_quality.row_of_size(case.name, shuffle_quality.measure(case))
    assert line in PAGE.read_text().splitlines()


def test_both_tables_are_printed_whole(monkeypatch, capsys):
    measured = shuffle_quality.measure(shuffle_quality.CASES[0])
    monkeypatch.setattr(shuffle_quality, "measure", lambda _: measured)
    monkeypatch.setattr("sys.argv", ["shuffle_quality.py"])
    shuffle_quality.main()
    printed = capsys.readouterr().out.splitlines()
    rows = len(shuffle_quality.CASES) + len(shuffle_quality.SIZES)
    assert len([line for line in printed if line]) == rows + 5
