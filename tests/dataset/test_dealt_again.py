"""What is noticed of a loader that deals a dataset out again; the real one is in integration."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import shardloader as sl
from tests.corpora import dataset_of, kept_corpus


def active(loader):
    """accelerate.state, as it is while `loader` is iterated."""
    return SimpleNamespace(GradientState=lambda: SimpleNamespace(active_dataloader=loader))


@pytest.mark.parametrize(
    "wrapped",
    [lambda dataset: dataset, lambda dataset: SimpleNamespace(dataset=dataset)],
    ids=["dispatcher", "shard of an iterable"],
)
def test_a_dataset_in_an_accelerated_loader_is_refused_only_where_it_divides_itself(
    monkeypatch, wrapped
):
    for world_size in (1, 2):
        dataset = dataset_of(kept_corpus((4, 4)), world_size=world_size)
        loader = SimpleNamespace(dataset=wrapped(dataset))
        monkeypatch.setitem(sys.modules, "accelerate.state", active(loader))
        if world_size == 1:
            assert len(list(dataset)) == 8
        else:
            with pytest.raises(sl.UsageError, match="divide it again"):
                list(dataset)


def test_another_datasets_accelerated_loader_is_no_affair_of_ours(monkeypatch):
    dataset = dataset_of(kept_corpus((4, 4)), world_size=2)
    for loader in (None, SimpleNamespace(), SimpleNamespace(dataset=[1])):
        monkeypatch.setitem(sys.modules, "accelerate.state", active(loader))
        assert len(list(dataset)) == 4
