"""The benchmark of what metering costs still finds what it switches off."""

from __future__ import annotations

import argparse

from benchmarks import metering


def test_all_turns_of_one_loader_are_measured(tmp_path):
    corpus = metering._made(tmp_path, 300)
    options = argparse.Namespace(batch_size=8, batches=3, rounds=2)
    costs = metering.report(corpus, options, decode=None)
    assert {name: len(each) for name, each in costs.items()} == {
        "as it is": 2,
        "bare": 2,
        "again": 2,
    }
