"""Every good sample is valid exactly once and no bad one ever, whatever is killed and resumed."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import shardloader as sl
from shardloader.loader.quarantine import read
from shardloader.planning.audit import audit_logs
from tests.corpora import kept_corpus, loader_of, loaders_of, valid_of
from tests.troubled import FailAtSome, RefuseSome, check_filled, plan_of, troubled_corpus

COUNTS = [(7, 5, 9), (3,) * 8, (40,), (1, 0, 30, 2)]


@st.composite
def troubles(draw: Any) -> tuple[tuple[int, ...], frozenset[int], frozenset[int]]:
    """Counts, bad samples and refused ones; at least one sample is good."""
    counts = draw(st.sampled_from(COUNTS))
    numbers = range(sum(counts))
    spoilt = draw(st.sets(st.sampled_from(numbers), max_size=len(numbers) - 1))
    bad = draw(st.sets(st.sampled_from(sorted(spoilt)), max_size=len(spoilt))) if spoilt else set()
    return counts, frozenset(bad), frozenset(spoilt - bad)


def options_of(bad: Any, refused: Any, **others: Any) -> dict[str, Any]:
    # Refusing alone is no matter of on_error.
    skip = {"on_error": sl.Skip(max_share=1.0)} if bad else {}
    return {"transform": RefuseSome(refused) if refused else None, **skip, **others}


@given(
    trouble=troubles(),
    batch_size=st.integers(1, 5),
    world_size=st.integers(1, 3),
    window=st.sampled_from([False, 1, 8, 100]),
    even=st.sampled_from(["pad", "drop", "join"]),
    threads=st.sampled_from([0, 2]),
)
def test_a_batch_is_its_plan_with_faulty_slots_filled_by_its_good_ones(
    trouble, batch_size, world_size, window, even, threads
):
    counts, bad, refused = trouble
    shuffle = window and sl.Shuffle(window=window)
    given_options = options_of(bad, refused, shuffle=shuffle, even=even, batch_size=batch_size)
    if threads:  # which take only what is slow to decode
        given_options["decode"] = {"txt": bytes.decode}
    source = troubled_corpus(counts, bad)
    loaders = loaders_of(source, world_size, decode_threads=threads, **given_options)
    for loader in loaders:
        plans, batches = plan_of(loader), list(loader)
        assert len(batches) == len(plans)
        for batch, plan in zip(batches, plans, strict=True):
            check_filled(batch, plan, bad | refused)
        planned = [n for index, valid in plans for n, v in zip(index, valid, strict=True) if v]
        stats = loader.stats()
        assert stats.bad["decode"] == stats.num_bad == len(bad.intersection(planned))
        assert stats.refused == len(refused.intersection(planned))
        assert stats.valid == len(valid_of(batches)) == len(planned) - stats.num_bad - stats.refused
        assert stats.padded == sum(len(index) for index, _ in plans) - len(planned)
        assert stats.slots == stats.valid + stats.padded + stats.refused + stats.num_bad


@given(
    trouble=troubles(),
    topologies=st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=4
    ),
    window=st.sampled_from([False, 3, 100]),
)
def test_good_samples_come_once_and_bad_ones_never_over_kills_and_resumes(
    trouble, topologies, window
):
    counts, bad, refused = trouble
    given_options = options_of(bad, refused, shuffle=window and sl.Shuffle(window=window))
    sound = loader_of(kept_corpus(counts), shuffle=given_options["shuffle"])
    state, valid, source = None, list[int](), troubled_corpus(counts, bad)
    with tempfile.TemporaryDirectory() as folder:
        for attempt, (world_size, batch_size, steps) in enumerate([*topologies, (2, 3, 1000)]):
            extra = {"quarantine": Path(folder, "bad")} if bad else {}
            loaders = loaders_of(
                source, world_size, batch_size=batch_size, **given_options, **extra
            )
            for loader in loaders:
                loader.log_samples(Path(folder, "log"), attempt=attempt)
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
            for loader in loaders:
                for _, batch in zip(range(steps), loader, strict=False):
                    valid += valid_of([batch])
            states = [loader.state_dict() for loader in loaders]
            assert all(each == states[0] for each in states)
            state = states[0]
            if state["epoch"] > 0:
                break
        good = set(range(sum(counts))) - bad - refused
        assert Counter(valid) == Counter(good)
        assert state is not None
        assert {**state, "dataset": ""}.keys() == sound.state_dict().keys()
        history = audit_logs(Path(folder, "log"), source)
        assert history.is_exact
        (epoch,) = history.epochs
        assert set(epoch.bad.tolist()) == bad
        assert set(epoch.refused.tolist()) == refused
        assert epoch.num_given == len(good)
        if bad:
            quarantined = Counter(record["index"] for record in read(Path(folder, "bad")))
            assert quarantined == Counter(bad)


@given(trouble=troubles(), steps=st.integers(0, 9), batch_size=st.integers(1, 4))
def test_the_state_is_the_same_bytes_with_and_without_trouble(trouble, steps, batch_size):
    counts, bad, refused = trouble
    states = []
    for options in (
        {},
        {"transform": RefuseSome(refused)},
        {"transform": FailAtSome(bad), "on_error": sl.Skip(max_share=1.0)},
    ):
        loader = loader_of(kept_corpus(counts), batch_size=batch_size, **options)
        for _ in zip(range(steps), loader, strict=False):
            pass
        states.append(json.dumps(loader.state_dict()))
    assert states[0] == states[1] == states[2]
