"""Reading by columns equals reading one by one: the same batches in the same order, or errors."""

from __future__ import annotations

import io
import json
import tempfile
import threading
import weakref
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import shardloader as sl
from shardloader.dataset import batches, samples
from shardloader.errors import CacheError
from shardloader.loader import stream
from shardloader.loader.read_ahead import read_ahead
from shardloader.reading.decode import decode_json
from tests.corpora import dataset_of, each_once, kept_corpus, loader_of, valid_of
from tests.shards import tar_bytes


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(width=64) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)
ARRAYS = st.sampled_from(
    [np.arange(n).astype(dtype) for n in (3, 4) for dtype in ("<u2", ">i4", "f4", "<U2", "?")]
    + [np.zeros((2, 0)), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(7)]
)
NEGATIVE = npy(np.zeros(5)).replace(b"(5,), }", b"(-5,),}")
# What a field may hold; mostly one kind of values, so that batches can be joined.
VALUES = {
    "txt": st.text(max_size=8).map(str.encode) | st.sampled_from([b"\xff", b"fine"]),
    "json": st.integers(-5, 5).map(lambda n: b"%d" % n)
    | JSON.map(lambda v: json.dumps(v).encode()),
    "cls": st.integers(-5, 500).map(lambda n: b"%d" % n) | st.sampled_from([b" 7\n", b"x", b"1_0"]),
    "npy": st.sampled_from([npy(np.arange(5, dtype="<u2")), npy(np.array(7, ">i2")), NEGATIVE])
    | ARRAYS.map(npy)
    | st.just(b"\x93NUMPY"),
    "bin": st.binary(min_size=4, max_size=4) | st.binary(max_size=6),
    "own": st.binary(max_size=3),
    "__x__": st.just(b"the loader's own"),
}
NAMES = list(VALUES)


@st.composite
def shards(draw) -> tuple[list[list[tuple[str, bytes]]], ...]:
    """Samples of some shards: mostly with the same fields, in the same order."""
    usual = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    found = []
    good = draw(st.booleans())
    for _ in range(draw(st.integers(1, 3))):
        of_shard = []
        for _ in range(draw(st.integers(0, 5))):
            odd = not good and draw(st.integers(0, 9)) == 0
            fields = draw(st.permutations(NAMES))[:2] if odd else usual
            of_shard.append([(name, draw(VALUES[name])) for name in fields])
        found.append(of_shard)
    return tuple(found)


def write(folder: Path, of_shards: Any) -> None:
    number = 0
    for shard, of_shard in enumerate(of_shards):
        members = []
        for fields in of_shard:
            key = f"é{number}" if number % 7 == 5 else f"k{number}"
            members += [(f"{key}.{name}", data) for name, data in fields]
            number += 1
        (folder / f"shard-{shard}.tar").write_bytes(tar_bytes(members))


def own_decoder(data: bytes) -> int:
    if data == b"\0\0":
        raise KeyError("two zeros")
    return len(data)


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, data: bytes) -> int:
        return len(data)


def transform(sample: Any, rng: Any) -> Any:
    if len(sample) == 3:
        raise ZeroDivisionError(sample["__key__"])
    if sample["__key__"].endswith("6"):
        return None
    return {**sample, "drawn": int(rng.integers(1000))}


def keep_all(of_batch: list[Any]) -> dict[str, Any]:
    return {"samples": [dict(sample) for sample in of_batch]}


@contextmanager
def limits(first: int, samples_at_once: int, bytes_at_once: int, together: int, files: int = 128):
    """How much is looked up, and read, at once; else tiny corpora fit in the first of all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "FIRST_TO_LOCATE", first)
        patch.setattr(batches, "SAMPLES_TO_LOCATE", samples_at_once)
        patch.setattr(batches, "BYTES_TO_LOCATE", bytes_at_once)
        patch.setattr(batches, "BYTES_TOGETHER", together)
        patch.setattr(samples, "WORTH_A_TOUCH", 0)
        patch.setattr(samples, "files_to_keep_open", lambda: files)
        yield


@contextmanager
def one_by_one():
    """Reading without columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples.SampleReader, "locate", lambda *_: None)
        yield


@contextmanager
def away_for(seconds: float):
    """A loop that stays away so long each time: what comes next is read, and joined, meanwhile."""
    looks = count()
    # Before and after a group is taken, and when the loop is back.
    slow = partial(read_ahead, clock=lambda: (next(looks) + 1) // 3 * seconds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "read_ahead", slow)
        yield


def outcome(folder: Path, loader_options: dict[str, Any], options: dict[str, Any]) -> list[Any]:
    """What is delivered, the error that ends it, and what was counted."""
    found: list[Any] = []
    loader: Any = sl.ShardLoader(dataset_of(folder, **options), **loader_options)
    try:
        found += map(plain, loader)
    except Exception as error:
        found.append((type(error), str(error), getattr(error, "__notes__", [])))
    return [*found, loader.stats()]


def plain(value: Any) -> Any:
    """A value with all that could differ, comparable."""
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), tuple(value.shape), value.reshape(-1).tolist())
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, value.flags.writeable, value.tobytes())
    if isinstance(value, dict):
        return [(name, plain(each)) for name, each in value.items()]
    if isinstance(value, list):
        return [plain(each) for each in value]
    return (type(value), repr(value))


@given(
    of_shards=shards(),
    decode=st.sampled_from(
        [
            None,
            "default",
            {"own": own_decoder, "bin": "text"},
            {"bin": sl.RawArray("uint16", (2,)), "own": Unhashable()},
            {"bin": sl.RawArray([("a", "u1"), ("b", "<u2")], ()), "own": None},
        ]
    ),
    fields=st.sampled_from([None, ("txt",), ("json", "cls"), ("npy", "own"), ("bin", "absent")]),
    transformed=st.booleans(),
    collate_fn=st.sampled_from([None, keep_all]),
    meta=st.sampled_from(["all", "mask", "none"]),
    batch_size=st.integers(1, 4),
    window=st.sampled_from([False, 1, 100]),
    even=st.sampled_from(["pad", "join"]),
    on_error=st.sampled_from(["raise", sl.Skip(max_share=1.0)]),
    shards_at_once=st.sampled_from([1, 100]),
    at_once=st.tuples(
        st.integers(1, 9), st.integers(1, 9), st.integers(1, 200), st.integers(1, 100)
    ),
    threads=st.integers(0, 2),
    away_s=st.sampled_from([0.0, 10.0]),
)
def test_columns_are_what_samples_are(
    of_shards,
    decode,
    fields,
    transformed,
    collate_fn,
    meta,
    batch_size,
    window,
    even,
    on_error,
    shards_at_once,
    at_once,
    threads,
    away_s,
):
    options = {
        "decode": decode,
        "fields": fields,
        "transform": transform if transformed else None,
        "shuffle": window and sl.Shuffle(window=window),
        "even": even,
        "on_error": on_error,
    }
    loader_options = {"collate_fn": collate_fn, "meta": meta, "batch_size": batch_size}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), of_shards)
        with limits(shards_at_once * samples.SHARE_OF_A_THREAD, *at_once), away_for(away_s):
            ahead = {**loader_options, "decode_threads": threads}
            by_columns = outcome(Path(folder), ahead, options)
        with one_by_one():
            inline = {**loader_options, "decode_threads": 0}
            assert outcome(Path(folder), inline, options) == by_columns


@given(data=JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=8))
def test_the_fast_json_reads_what_the_standard_library_reads(data):
    try:
        wanted = json.loads(str(data, "utf-8"))
    except ValueError as error:
        with pytest.raises(type(error)):
            decode_json(data)
        return
    assert repr(decode_json(data)) == repr(wanted)


@pytest.mark.parametrize(
    "data",
    [b"NaN", b"[-Infinity]", b"1E400", b'"\\ud800"', b"1" * 40, b"-0.0", b'{"a":1,"a":2}', b" 1 "],
)
def test_the_fast_json_reads_what_it_is_stricter_in(data):
    assert repr(decode_json(data)) == repr(json.loads(data))


@pytest.mark.parametrize("options", [{}, {"decode": None}, {"transform": dict}])
def test_samples_with_the_same_fields_are_read_by_columns(monkeypatch, options):
    """Else the tests here would compare one way with itself."""
    called = []
    monkeypatch.setattr(samples.SampleReader, "load", lambda *_, **__: called.append(1))
    loader: Any = sl.ShardLoader(dataset_of(kept_corpus((9, 8)), **options), batch_size=2)
    assert len(list(loader)) == 9
    assert called == []


@pytest.mark.parametrize("options", [{}, {"decode": {"txt": own_decoder}}])
def test_a_loop_that_stays_away_joins_nothing_itself(monkeypatch, options):
    where = []
    joined = batches.BatchMaker._joined

    def noted(*given: Any) -> Any:
        where.append(threading.current_thread() is threading.main_thread())
        return joined(*given)

    monkeypatch.setattr(batches.BatchMaker, "_joined", noted)
    with limits(4, 4, 200, 1), away_for(10.0):
        loader: Any = sl.ShardLoader(
            dataset_of(kept_corpus((9, 8)), **options), batch_size=2, decode_threads=1
        )
        assert len(list(loader)) == len(where) == 9
    assert not any(where[1:])


def test_a_batch_that_was_given_is_kept_by_nobody():
    """Also where it was joined together with others."""
    loader: Any = sl.ShardLoader(dataset_of(kept_corpus((9, 8))), batch_size=2)
    given_batches = iter(loader)
    for _ in range(3):
        valid = weakref.ref(next(given_batches)["__valid__"])
        assert valid() is None


def test_columns_that_fail_where_the_samples_are_good_are_wondered_at_once(monkeypatch, caplog):
    monkeypatch.setattr(samples.SampleReader, "_column", lambda *_: 1 // 0)
    loader = loader_of(kept_corpus((9, 8)), batch_size=2)
    assert each_once(valid_of(loader), 17)
    wondered = [each for each in caplog.messages if "one by one" in each]
    assert len(wondered) == 1
    assert "raised ZeroDivisionError" in wondered[0]


def test_columns_that_fail_for_want_of_room_are_no_wonder(monkeypatch, caplog):
    def fail(*_):
        raise CacheError("no space left on device")

    monkeypatch.setattr(samples.SampleReader, "_column", fail)
    loader = loader_of(kept_corpus((9, 8)), batch_size=2)
    assert each_once(valid_of(loader), 17)
    assert not caplog.messages


@pytest.mark.parametrize("batch_size", [3, 4, 7, 48])
@pytest.mark.parametrize("together", [1, 100, 1000, 5000])
def test_a_batch_holds_the_samples_that_it_says(batch_size, together):
    """Also where what is read at once is no whole part of what is looked up at once."""
    loader = loader_of(kept_corpus((90, 0, 117)), batch_size=batch_size)
    with limits(128, 16, 50, 2000, together):
        assert each_once(valid_of(loader), 207)
        assert [len(each["txt"]) for each in loader] == [batch_size] * len(loader)


def test_under_join_nothing_is_decoded_that_is_not_delivered():
    decoded = []

    def decode(data: bytes) -> int:
        decoded.append(data)
        return 0

    loader = loader_of(kept_corpus((10,)), batch_size=4, even="join", decode={"txt": decode})
    assert sum(len(batch["__key__"]) for batch in loader) == len(decoded) == 10
