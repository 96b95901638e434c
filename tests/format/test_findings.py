"""The table of docs/verify.md is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

from shardloader.format.findings import KINDS

DOCS = Path(__file__).parents[2] / "docs" / "verify.md"


def test_the_docs_list_every_kind_with_its_level_and_what_mends_it():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| .+ \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    assert {kind: (level, mend) for kind, level, mend in rows} == KINDS
