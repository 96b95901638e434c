"""The committed table of odd shards says what shardloader does with them today."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.odd_shards import Outcome, cases, due, is_right, our_column, told

TABLE = Path(__file__).parents[2] / "docs" / "odd_shards.md"


def committed():
    rows = [line.strip("| ").split(" | ") for line in TABLE.read_text().splitlines()]
    return {row[1]: row for row in rows if len(row) == 5 and row[0] != "case"}


def test_our_column_is_what_happens_and_every_case_has_its_row():
    rows = committed()
    assert {name: row[4] for name, row in rows.items()} == our_column()
    assert {name: row[2] for name, row in rows.items()} == {c["name"]: due(c) for c in cases()}


def case_of(name):
    return next(case for case in cases() if case["name"] == name)


@pytest.mark.parametrize(
    ("name", "outcome", "right"),
    [
        ("control", Outcome(), False),
        ("control", Outcome(samples=case_of("control")["samples"]), True),
        ("control", Outcome(samples=case_of("control")["samples"], error="E"), False),
        ("cut_in_header", Outcome(samples=case_of("cut_in_header")["samples"]), False),
        ("cut_in_header", Outcome(error="E"), True),
        ("gz_no_trailer", Outcome(samples=case_of("gz_plain")["samples"]), False),
    ],
    ids=["none", "all", "error", "silent", "refused", "without the warning"],
)
def test_an_outcome_is_judged_by_the_case(name, outcome, right):
    assert is_right(outcome, case_of(name)) is right
    assert told(outcome, case_of(name)).startswith("**wrong**") is not right
