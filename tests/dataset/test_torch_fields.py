"""`.pt` fields: read only where they are asked for, and nothing in them runs."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from typing import Any

import pytest
import torch

from shardloader.dataset.torch_fields import TORCH_DECODERS
from shardloader.errors import DecodeError
from shardloader.reading.decode import resolve
from tests.corpora import dataset_of, make_corpus_with


class Hostile:
    def __reduce__(self):
        return (os.abort, ())


def saved(value: object, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def compressed(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as archive,
        zipfile.ZipFile(buffer, "w", compression=zipfile.ZIP_DEFLATED) as out,
    ):
        for entry in archive.infolist():
            out.writestr(entry.filename, archive.read(entry))
    return buffer.getvalue()


def test_a_tensor_is_read_where_it_is_asked_for_by_name_and_bytes_elsewhere(tmp_path):
    data = saved({"x": torch.arange(3), "names": ["a"]})
    source = make_corpus_with(tmp_path, [[("pt", data)]])
    (plain,) = dataset_of(source)
    assert plain["pt"] == data
    (sample,) = dataset_of(source, decode={"pt": "torch"})
    assert sample["pt"]["x"].tolist() == [0, 1, 2]
    assert sample["pt"]["names"] == ["a"]


@pytest.mark.parametrize(
    "data",
    [
        saved(Hostile()),
        saved(Hostile(), _use_new_zipfile_serialization=False),
        pickle.dumps(Hostile()),
        saved(torch.zeros(3), _use_new_zipfile_serialization=False),
        compressed(saved(torch.zeros(100_000))),
        saved(torch.zeros(3))[:-30],
        b"",
        b"PK\x03\x04",
    ],
    ids=["object", "old object", "pickle", "old", "compressed", "cut", "empty", "magic"],
)
def test_what_could_run_code_or_claims_more_than_it_has_is_bad_data(data):
    table = resolve({"pt": "torch"}, named=TORCH_DECODERS)
    with pytest.raises(DecodeError, match="'pt'"):
        table.decode("pt", memoryview(data))


@pytest.mark.parametrize("field", ["pt", "pth", "pkl", "pickle", "pyd"])
def test_by_default_nothing_that_could_run_code_is_read(field):
    data = pickle.dumps(Hostile())
    assert resolve("default").decode(field, data) == data
