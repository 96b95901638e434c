"""What has training read, as far as it was not taken back, and was it every sample once?

Knows nothing of loaders. A place is (epoch, positions consumed in it); going back to a place takes
back what was read at or after it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Place = tuple[int, int]


def place_of(state: dict[str, Any]) -> Place:
    return state["epoch"], state["consumed"]


@dataclass(frozen=True)
class Entry:
    """Valid samples of one step. kind: "read", "skipped" on purpose, or "omitted" by "drop"."""

    kind: str
    place: Place
    passes: tuple[int, ...]
    samples: tuple[int, ...]


@dataclass
class Ledger:
    """The history of a run that led to its present place.

    num_samples: of the dataset, and so of a pass; kept: states that may still be gone back to.
    """

    num_samples: int
    entries: list[Entry] = field(default_factory=list)
    finished: dict[int, int] = field(default_factory=dict)  # epoch: its positions
    kept: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: str, place: Place, virtual: int, samples: Sequence[int]) -> None:
        """Note a step; virtual: the position of its first sample, counted over all passes."""
        numbers = range(virtual, virtual + len(samples))
        passes = tuple(number // self.num_samples for number in numbers)
        self.entries.append(Entry(kind, place, passes, tuple(samples)))

    def go_back(self, place: Place) -> None:
        self.entries = [entry for entry in self.entries if entry.place < place]
        self.finished = {e: length for e, length in self.finished.items() if e < place[0]}
        self.kept = [state for state in self.kept if place_of(state) <= place]

    @property
    def num_read(self) -> int:
        return sum(len(entry.samples) for entry in self.entries if entry.kind == "read")

    def check(self) -> int:
        """Every sample at most once a pass, and exactly once where all of it was finished.

        Gives the number of passes that are whole.
        """
        times: dict[int, Counter[int]] = {}
        for entry in self.entries:
            for number, sample in zip(entry.passes, entry.samples, strict=True):
                times.setdefault(number, Counter())[sample] += 1
        for number, found in times.items():
            twice = [sample for sample, count in found.items() if count > 1]
            assert not twice, f"pass {number} has these samples more than once: {twice}"
            assert set(found) <= set(range(self.num_samples)), f"pass {number}: unknown samples"
        whole = self._whole_passes()
        for number in whole:
            missing = set(range(self.num_samples)) - set(times.get(number, ()))
            assert not missing, f"pass {number} is finished and lacks the samples {missing}"
        return len(whole)

    def _whole_passes(self) -> list[int]:
        """Passes that lie in finished epochs alone."""
        if not self.finished or not self.num_samples:
            return []
        length = max(self.finished.values())
        first, last = min(self.finished), max(self.finished)
        whole = []
        for number in range(first * length // self.num_samples, (last + 1) * length + 1):
            start, stop = number * self.num_samples, (number + 1) * self.num_samples
            if start >= (last + 1) * length:
                break
            if all(e in self.finished for e in range(start // length, (stop - 1) // length + 1)):
                whole.append(number)
        return whole
