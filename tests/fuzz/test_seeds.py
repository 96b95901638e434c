"""What was once found by fuzzing stays mended; what fuzzing begins with is sound."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.fuzz.__main__ import RUNS
from tests.fuzz.kept import SEEDS, seeds_of
from tests.fuzz.targets import TARGETS

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # odd images make Pillow warn, of all it can think of
]


def test_every_target_can_be_asked_for_by_name():
    assert list(TARGETS) == list(RUNS)
    assert {path.name for path in SEEDS.iterdir()} <= set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_the_examples_of_a_target_break_no_rule(name):
    for example in TARGETS[name].examples():
        TARGETS[name].check(example)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        pytest.param(name, path, id=f"{name}-{path.name}")
        for name in RUNS
        for path in seeds_of(name)
    ],
)
def test_what_was_found_is_mended(name, path):
    TARGETS[name].check(path.read_bytes())


@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not there for this Python")
def test_fuzzing_tells_what_it_did():
    command = [sys.executable, "-m", "tests.fuzz", "index", "--seconds", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    (result,) = json.loads(done.stdout)
    assert result["executions"] > 100
    assert result["findings"] == 0
