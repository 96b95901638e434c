"""The order of version 1, for ever: a checkpoint written by one release resumes in the next.

If one of these fails, the change is wrong, not the file. Only the first test speaks of numpy: when
it fails too, numpy's Philox has changed, and not this package.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardloader.order.checkpoint import Checkpoint
from shardloader.order.permutation import random_words
from tests.golden import make_order
from tests.order.reference import Reference

GOLDEN: dict[str, Any] = json.loads(make_order.FILE.read_text(encoding="utf-8"))
AFFORDABLE = 10_000  # samples that the slow reference puts in order within a second


def by_name(entry: dict[str, Any]) -> str:
    return str(entry["name"])


@pytest.mark.parametrize("entry", GOLDEN["words"])
def test_numpys_philox_gives_the_words_that_it_gave(entry):
    key, stream, first = tuple(entry["key"]), entry["stream"], entry["first"]
    assert make_order.raw_words(key, stream, first) == entry["words"]


@pytest.mark.parametrize("entry", GOLDEN["words"])
def test_words_are_addressed_as_philox_draws_them(entry):
    key, stream, first, words = tuple(entry["key"]), *map(entry.get, ("stream", "first", "words"))
    for skipped in range(len(words)):
        drawn = random_words(key, stream, first + skipped, first + len(words))
        assert drawn.tolist() == words[skipped:]


@pytest.mark.parametrize("entry", GOLDEN["orders"], ids=by_name)
def test_an_order_stays_what_it_was(entry):
    reads = [[read["step"], read["rank"]] for read in entry["reads"]]
    assert make_order.pinned({**entry, "reads": reads}) == entry


@pytest.mark.parametrize(
    "entry",
    [entry for entry in GOLDEN["orders"] if sum(entry["counts"]) <= AFFORDABLE],
    ids=by_name,
)
def test_the_file_agrees_with_the_reference(entry):
    reference = Reference(
        tuple(entry["counts"]),
        entry["seed"],
        entry["window"],
        tuple(entry["grid"]),
        entry["steps_per_epoch"],
    )
    steps = reference.steps(
        *(entry[name] for name in ("epoch", "consumed", "world_size", "batch_size", "even"))
    )
    assert len(steps) == entry["num_steps"]
    for read in entry["reads"]:
        if read["step"] >= len(steps):
            assert read["index"] is None
            continue
        batch = steps[read["step"]][read["rank"]]
        assert read["index"] == [slot.index for slot in batch]
        assert read["valid"] == [slot.valid for slot in batch]


@pytest.mark.parametrize("entry", GOLDEN["states"])
def test_a_state_of_version_1_loads_is_written_as_it_was_and_resumes(entry):
    checkpoint = Checkpoint.from_state(entry["state"])
    # These were taken before states told the global batch.
    written = {**entry["state"], "global_batch": None}
    assert json.dumps(checkpoint.to_state()) == json.dumps(written)
    assert make_order.resumed(checkpoint) == {**entry, "state": written}


def test_the_file_is_made_once_and_never_rewritten():
    with pytest.raises(FileExistsError):
        make_order.main()
