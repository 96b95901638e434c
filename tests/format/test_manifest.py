"""The manifest: its file, its identity, and what it refuses."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import ManifestError
from shardloader.format import manifest as manifest_module
from shardloader.format.manifest import Manifest


def manifest(**change: Any) -> Manifest:
    columns: dict[str, Any] = {
        "names": ("a.tar", "sub/b#1.tar", "caf\u00e9 \udcff.tar"),
        "sizes": np.array([1024, 2**40, 5120]),
        "counts": np.array([0, 7, 2]),
        "index_digests": ("0" * 32, "a1" * 16, "f" * 32),
    }
    return Manifest(**{**columns, **change})


def edited(path: str, value: Any) -> bytes:
    document = json.loads(manifest().to_json_bytes())
    if path == "":
        return json.dumps(value).encode()
    at = document["shards"] if path in document["shards"] or path == "content_digests" else document
    at[path] = value
    return json.dumps(document).encode()


def test_a_file_reads_back_with_the_same_identity():
    for content in (None, ("c" * 32, "d" * 32, "e" * 32)):
        made = manifest(content_digests=content)
        again = Manifest.from_json_bytes(made.to_json_bytes(), name="m")
        assert again.to_json_bytes() == made.to_json_bytes()
        assert (again.names, again.content_digests) == (made.names, content)
        assert (again.num_shards, again.num_samples) == (3, 9)
        assert again.digest == made.digest


def test_the_digest_is_the_same_in_every_release():
    assert manifest().digest == "e9db1d077efbc04e708167d112f7f321"


@pytest.mark.parametrize(
    "change",
    [
        {"names": ("a.tar", "sub/b#2.tar", "caf\u00e9 \udcff.tar")},
        {"names": ("sub/b#1.tar", "a.tar", "caf\u00e9 \udcff.tar")},
        {"sizes": np.array([1024, 2**40, 5121])},
        {"counts": np.array([7, 0, 2])},
        {"index_digests": ("0" * 32, "a1" * 16, "e" * 32)},
    ],
)
def test_every_column_is_part_of_the_identity(change):
    assert manifest(**change).digest != manifest().digest


def test_content_digests_are_not_part_of_the_identity():
    assert manifest(content_digests=("c" * 32,) * 3).digest == manifest().digest


def test_columns_cannot_be_changed_and_survive_a_pickle():
    made = manifest()
    with pytest.raises(ValueError, match="read-only"):
        made.sizes[0] = 1
    copied = pickle.loads(pickle.dumps(made))
    assert (copied.digest, copied.names) == (made.digest, made.names)


def test_an_empty_manifest_is_a_manifest():
    empty = manifest(names=(), sizes=np.array([]), counts=np.array([]), index_digests=())
    assert Manifest.from_json_bytes(empty.to_json_bytes(), name="m").num_samples == 0


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/abs.tar",
        "../up.tar",
        "a/../../b.tar",
        "a/..",
        "..",
        ".",
        "./a.tar",
        "a//b.tar",
        "a/./b.tar",
        "a/",
        "a\0.tar",
        "s3://bucket/a.tar",
    ],
)
def test_names_that_leave_the_folder_are_refused(name):
    with pytest.raises(ManifestError, match="relative path"):
        manifest(names=("a.tar", "b.tar", name))


@pytest.mark.parametrize(
    "name",
    ["p#1.tar", "a b.tar", "c%20d.tar", "[x].tar", "u:v.tar", "a..b.tar", "...tar", "\n.tar"],
)
def test_odd_names_that_stay_inside_are_fine(name):
    assert manifest(names=("a.tar", "b.tar", name)).names[2] == name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"names": ("a.tar", "a.tar", "b.tar")}, "'a.tar' is there twice"),
        ({"names": ("a.tar", "b.tar")}, "equally long"),
        ({"names": ("a.tar", "b.tar", b"c.tar")}, "are texts"),
        ({"sizes": np.array([1, 2])}, "equally long"),
        ({"sizes": np.array([1, 2, -3])}, "from 0 on"),
        ({"sizes": np.array([1.0, 2.0, 3.0])}, "whole numbers"),
        ({"counts": np.array([True, False, True])}, "whole numbers"),
        ({"counts": np.array([[1], [2], [3]])}, "column of whole"),
        ({"counts": np.array([-(2**62), 2**62, 1])}, "from 0 on"),
        ({"counts": np.array([2**62, 2**62, 2**62])}, "sum below"),
        ({"index_digests": ("0" * 32, "0" * 31, "0" * 33)}, "hex digits"),
        ({"index_digests": ("0" * 32, "0" * 32, "G" * 32)}, "hex digits"),
        ({"content_digests": ("0" * 32,)}, "equally long"),
    ],
)
def test_columns_that_make_no_sense_are_refused(change, words):
    with pytest.raises(ManifestError, match=words):
        manifest(**change)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 100_000, "JSON"),
        (edited("", []), "another file"),
        (edited("", {"urls": []}), "another file"),
        (edited("version", 2), "version 2"),
        (edited("version", True), "version True"),
        (edited("shards", []), "JSON object"),
        (edited("names", {}), "list of texts"),
        (edited("names", ["a.tar", "b.tar", 3]), "list of texts"),
        (edited("sizes", [1, 2, True]), "list of whole numbers"),
        (edited("sizes", [1, 2, 3.0]), "list of whole numbers"),
        (edited("sizes", [1, 2, 10**30]), "whole numbers"),
        (edited("sizes", None), "list of whole numbers"),
        (edited("samples", [0, 7, 3]), "changed or damaged"),
        (edited("digest", "0" * 32), "changed or damaged"),
        (edited("digest", None), "changed or damaged"),
        (edited("names", ["a.tar", "../b.tar", "c.tar"]), "relative path"),
        (edited("names", ["a.tar", "\ud800.tar", "c.tar"]), "UTF-8"),
        (edited("content_digests", ["x"]), "equally long"),
    ],
)
def test_a_file_that_is_not_a_sound_manifest_is_refused_in_words(data, words):
    with pytest.raises(ManifestError, match=words) as caught:
        Manifest.from_json_bytes(data, name="folder/manifest.json")
    assert "folder/manifest.json" in str(caught.value)
    assert "shardloader index" in str(caught.value)


@given(st.lists(st.text("a./:\0", max_size=6), max_size=4, unique=True))
def test_names_looked_at_in_one_text_are_judged_as_one_by_one(names):
    sound = all(manifest_module._SOUND_NAME.fullmatch(name) for name in names)
    try:
        manifest_module._check_names(tuple(names))
    except ManifestError:
        assert not sound
    else:
        assert sound


def test_a_number_that_would_become_infinite_is_refused():
    text = manifest().to_json_bytes().replace(b'"names"', b'"later":3e308,"names"', 1)
    with pytest.raises(ManifestError, match="3e308 is beyond the numbers that are read"):
        Manifest.from_json_bytes(text, name="manifest.json")
