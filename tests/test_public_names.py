"""The explicit public list, and what an import costs."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

import shardloader as sl

PUBLIC = {
    "AgreementError",
    "Cache",
    "CacheError",
    "CheckpointError",
    "DataError",
    "DecodeError",
    "Grid",
    "IndexFileError",
    "Jpeg",
    "Manifest",
    "ManifestError",
    "MissingExtraError",
    "Plan",
    "Png",
    "RawArray",
    "SampleError",
    "ShardDataset",
    "ShardError",
    "ShardLoader",
    "ShardLoaderError",
    "ShardWriter",
    "Shuffle",
    "Skip",
    "StaleIteratorError",
    "StoreError",
    "Topology",
    "TopologyError",
    "UnsupportedError",
    "UsageError",
    "WorldError",
    "__version__",
    "loss_scale",
    "plan",
}
WITHOUT_TORCH = PUBLIC - {"ShardDataset", "ShardLoader", "loss_scale", "__version__"}


def modules_after(code):
    """What is imported in a fresh interpreter after `code`."""
    command = [sys.executable, "-c", f"import sys, json\n{code}\nprint(json.dumps([*sys.modules]))"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout))


def test_the_public_names_are_these():
    assert set(sl.__all__) == set(dir(sl)) == PUBLIC
    assert sl.__all__ == sorted(sl.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_each_name_is_there_and_is_what_its_module_calls_it(name):
    value = getattr(sl, name)
    assert getattr(value, "__name__", "__version__") == name


def test_the_version_is_that_of_the_distribution():
    assert sl.__version__ == version("shardloader")


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'ShardReader'"):
        _ = sl.ShardReader


def test_import_costs_nothing_that_is_not_asked_for():
    modules = modules_after("import shardloader")
    assert not modules & {"torch", "torchdata", "fsspec", "numpy", "PIL", "tqdm", "safetensors"}


def test_only_names_that_need_torch_import_it():
    names = ", ".join(sorted(WITHOUT_TORCH))
    assert "torch" not in modules_after(f"from shardloader import {names}")
    assert "torch" in modules_after("from shardloader import ShardLoader")


def test_every_error_is_one_of_the_librarys():
    errors = [getattr(sl, name) for name in PUBLIC if name.endswith("Error")]
    assert all(issubclass(error, sl.ShardLoaderError) for error in errors)


COLLECTIONS = """
import gc
seen = []
gc.callbacks.append(lambda phase, about: seen.append(about["generation"]))
import shardloader as sl
{before}
enabled = gc.isenabled()
sl.ShardLoader
assert gc.isenabled() == enabled
print(seen.count(2))
"""


@pytest.mark.parametrize("before", ["", "gc.disable()"])
def test_the_first_use_of_a_name_looks_through_no_garbage_and_leaves_the_collector_as_it_was(
    before,
):
    script = COLLECTIONS.format(before=before)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "0\n"
