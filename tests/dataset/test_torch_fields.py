"""`.pt` fields: read only where they are asked for, and nothing in them runs."""

from __future__ import annotations

import io
import os
import pickle
import tracemalloc
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


def with_pickle(pickled: bytes) -> bytes:
    """A file of torch.save whose pickle is another one."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(saved(torch.zeros(3)))) as archive,
        zipfile.ZipFile(buffer, "w") as out,
    ):
        for entry in archive.infolist():
            is_pickle = entry.filename.endswith("data.pkl")
            out.writestr(entry.filename, pickled if is_pickle else archive.read(entry))
    return buffer.getvalue()


def claiming(found: bytes, instead: bytes) -> bytes:
    """A file of torch.save of three numbers, with another claim."""
    with zipfile.ZipFile(io.BytesIO(saved(torch.zeros(3)))) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        pickled = archive.read(name)
    assert pickled.count(found) == 1
    return with_pickle(pickled.replace(found, instead))


TWO_GIB = b"J\xff\xff\xff\x7f"


@pytest.mark.parametrize(
    "data",
    [
        with_pickle(b"\x80\x02cbuiltins\nbytearray\n" + TWO_GIB + b"\x85R."),
        with_pickle(b"\x80\x02c__builtin__\nbytearray\n" + TWO_GIB + b"\x85R."),
        with_pickle(pickle.dumps(bytearray(3), protocol=4)),
        with_pickle(b"\x80\x02cos\nabort\n)R."),
        with_pickle(b"(S'x'\nios\nsystem\n."),
        with_pickle(b"no pickle"),
        claiming(b"K\x03\x85", TWO_GIB + b"\x85"),
        claiming(b"K\x01\x85", TWO_GIB + b"\x85"),
        claiming(b"cpuq\x04K\x03", b"cpuq\x04" + TWO_GIB),
    ],
)
def test_what_a_few_bytes_claim_is_not_made(data):
    tracemalloc.start()
    with pytest.raises(DecodeError, match="'pt'"):
        resolve({"pt": "torch"}, named=TORCH_DECODERS).decode("pt", memoryview(data))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 << 20


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(5),
        torch.zeros(2, 3, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.zeros(3, dtype=torch.complex64),
        torch.zeros(3, dtype=torch.float8_e4m3fn),
        torch.zeros(3, dtype=torch.uint16),
        torch.nn.Parameter(torch.ones(2)),
        {"a": [torch.zeros(1), 1, 2.5, "text", None, (True, b"bytes")], "size": torch.Size([1, 2])},
        torch.nn.Linear(2, 3).state_dict(),
    ],
    ids=range(9),
)
def test_tensors_and_plain_containers_read_back(value):
    decoded = resolve({"pt": "torch"}, named=TORCH_DECODERS).decode("pt", saved(value))
    assert type(decoded) is type(value)
    assert str(decoded) == str(value)


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
