"""Where are the inputs that once broke a rule?"""

from __future__ import annotations

from pathlib import Path

SEEDS = Path(__file__).parent / "seeds"


def seeds_of(target: str) -> list[Path]:
    """The kept inputs of a target."""
    return sorted(path for path in (SEEDS / target).glob("*") if path.is_file())
