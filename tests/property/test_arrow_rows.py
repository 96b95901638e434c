"""Whatever bits an Arrow column holds, each row becomes a sample that reads back, or is refused."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from shardloader.errors import SampleError
from shardloader.reading.decode import resolve
from shardloader.writing.encode import encode_sample
from shardloader.writing.sources.arrow_files import ArrowRows
from shardloader.writing.sources.base import Refused

WORDS = st.integers(0, 2**64 - 1) | st.integers(0, 2**40) | st.sampled_from([0, 2**63, 2**64 - 1])
WIDE = [
    pa.int64(),
    pa.uint64(),
    pa.float64(),
    pa.date64(),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp(unit, tz="Europe/Paris") for unit in ("s", "ns")),
    *(pa.duration(unit) for unit in ("s", "ns")),
    pa.time64("us"),
    pa.time64("ns"),
    pa.month_day_nano_interval(),
    pa.decimal128(38, 3),
]


def column(kind: Any, words: list[int], nest: str) -> Any:
    """Make a column of these bits, bare or in something else, with a null in it."""
    data = b"".join(word.to_bytes(8, "little") for word in words)
    data += data  # some kinds are of 16 bytes
    array = pa.Array.from_buffers(kind, len(words), [pa.py_buffer(b"\xfd"), pa.py_buffer(data)])
    if nest == "list":
        return pa.ListArray.from_arrays(list(range(len(words) + 1)), array)
    if nest == "struct":
        return pa.StructArray.from_arrays([array], names=["inner"])
    if nest == "map":
        names = pa.array([f"k{number}" for number in range(len(words))])
        return pa.MapArray.from_arrays(list(range(len(words) + 1)), names, array)
    return array


@given(
    kind=st.sampled_from(WIDE),
    words=st.lists(WORDS, min_size=1, max_size=4),
    nest=st.sampled_from(["bare", "list", "struct", "map"]),
)
def test_a_row_is_a_sample_that_reads_back_or_is_refused(kind, words: list[int], nest) -> None:
    odd = column(kind, words, nest)
    table = pa.Table.from_arrays([odd, pa.array(range(len(words)))], names=["odd", "n"])
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "t.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
            out.write_table(table)
        source = ArrowRows([str(path)])
        found = [item for part in source.parts() for item in source.read(part)]
    assert len(found) == len(words)
    for number, item in enumerate(found):
        if isinstance(item, Refused):
            assert item.key == f"t/{number:09d}"
            assert "'odd'" in item.reason
            continue
        told = ""
        try:
            ((field, data),) = encode_sample(item).fields
        except SampleError as error:
            told = str(error)
        else:
            back = resolve("default").decode(field, data)
            assert back == json.loads(json.dumps(item["json"]))
            assert back["n"] == number
        assert told == "" or repr(item["__key__"]) in told
