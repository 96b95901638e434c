"""What a pass tells Accelerate; the real one is in tests/trainers."""

from __future__ import annotations

import sys
import weakref
from itertools import islice
from types import SimpleNamespace
from typing import ClassVar

import pytest

from tests.corpora import kept_corpus, loader_of

STEPS = 4


class Gradients:
    """GradientState, as far as loaders know it."""

    named: ClassVar[list[weakref.ref]] = []

    def _add_dataloader(self, loader):
        self.named.append(weakref.ref(loader))

    def _remove_dataloader(self, loader):
        self.named[:] = [each for each in self.named if each() is not loader]

    @property
    def active_dataloader(self):
        return self.named[-1]() if self.named else None


@pytest.fixture
def gradients(monkeypatch):
    monkeypatch.setattr(Gradients, "named", [])
    monkeypatch.setitem(sys.modules, "accelerate.state", SimpleNamespace(GradientState=Gradients))
    return Gradients()


def make():
    return loader_of(kept_corpus((3, 4)), batch_size=2)


def test_a_pass_says_with_the_epochs_last_batch_that_it_is_the_last(gradients):
    loader = make()
    for _ in range(2):
        told = [gradients.active_dataloader.end_of_dataloader for _ in loader]
        assert told == [False] * (STEPS - 1) + [True]
        assert gradients.named == []


def test_a_loop_that_is_left_names_again_what_was_named_before(gradients):
    outer, inner = iter(make()), make()
    next(outer)
    named = gradients.active_dataloader
    for _ in islice(inner, 2):
        assert gradients.active_dataloader is not named
    assert gradients.active_dataloader is named
    assert len(list(inner)) == STEPS
    assert gradients.active_dataloader is named
    assert len(list(outer)) == STEPS - 1
    assert gradients.named == []


def test_nothing_is_cut_off_what_is_gathered(gradients):
    for _ in make():
        assert gradients.active_dataloader.remainder == -1
