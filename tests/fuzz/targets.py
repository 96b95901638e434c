"""What is fuzzed, and what must hold of any input?

A target takes bytes and returns, or raises: AssertionError where a rule is broken, and whatever
else came out of the code under test that should not have. Inputs that were found to break a rule
lie in `seeds/<target>/`, and are tried again by every run of the tests.
"""

from __future__ import annotations

import io
import json
import re
import warnings
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from shardloader.dataset.collate import rows_of
from shardloader.errors import (
    CheckpointError,
    DataError,
    DecodeError,
    IndexFileError,
    ManifestError,
    ShardError,
)
from shardloader.format.index import SampleIndex
from shardloader.format.manifest import Manifest
from shardloader.format.notices import ERROR_KINDS, NOTICE_KINDS
from shardloader.format.samples import group
from shardloader.format.seek_table import parse_seek_table, told_table_bytes
from shardloader.format.tar import Notices, scan
from shardloader.format.zstd_frames import frame_content
from shardloader.order.checkpoint import Checkpoint
from shardloader.reading.columns import Spans, column_of
from shardloader.reading.decode import DEFAULT_DECODERS, DecodeTable
from shardloader.reading.images import decode_rgb
from shardloader.reading.shard import Shard
from tests.corpora import dataset_of, kept_corpus, loader_of
from tests.fuzz import mutators
from tests.fuzz.oracles import Reading, by_gnu_tar, by_tarfile
from tests.packing import seekable
from tests.shards import sample_members, tar_bytes

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping

HERE = Path(__file__).parent
CASES = HERE.parent / "cases"
SHARD = "the-shard.tar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is tried, what to begin with, how to change it."""

    check: Callable[[bytes], None]
    examples: Callable[[], Iterable[bytes]]
    mutate: Callable[[bytes, random.Random], bytes]
    max_bytes: int = 16_384


# Tar archives.


def _check_error(error: ShardError, data: bytes) -> None:
    assert type(error) is ShardError
    assert error.kind in ERROR_KINDS
    assert error.offset is not None
    assert 0 <= error.offset <= len(data)
    assert SHARD in str(error)


def by_us(data: bytes) -> Reading:
    """The files that a scan gives; every member lies in the archive, after the one before it."""
    files: list[tuple[str, bytes]] = []
    notices, end = Notices(), 0
    try:
        for member in scan(data, shard=SHARD, notices=notices):
            assert end <= member.header_offset < member.data_offset
            end = member.data_offset + member.size
            assert member.size >= 0
            assert end <= len(data)
            if member.kind == "file":
                content = data[member.data_offset : end]
                files.append((member.name, content))
    except ShardError as error:
        _check_error(error, data)
        return Reading(files, is_whole=False)
    for notice in notices.freeze():
        assert notice.kind in NOTICE_KINDS
        assert 0 <= notice.offset <= len(data)
    return Reading(files, is_whole=True)


def _as_tarfile_names_them(reading: Reading) -> Reading:
    return reading._replace(files=[(name.rstrip("/"), data) for name, data in reading.files])


def _as_gnu_tar_sorts_them(reading: Reading) -> Reading:
    """To GNU tar a name with a slash at its end is a folder's, whatever its type."""
    return reading._replace(files=[each for each in reading.files if not each[0].endswith("/")])


def agree(ours: Reading, theirs: Reading) -> bool:
    """Whether two readings differ only in how soon one gave up."""
    common = min(len(ours.files), len(theirs.files))
    if ours.files[:common] != theirs.files[:common]:
        return False
    return (len(ours.files) == common or not theirs.is_whole) and (
        len(theirs.files) == common or not ours.is_whole
    )


def _tell_difference(data: bytes, ours: Reading, theirs: Reading, other: Reading | None) -> None:
    """Raise AssertionError, unless the second oracle reads all that we do."""
    if other is not None and ours.files == other.files and (ours.files or other.is_whole):
        return
    raise AssertionError(
        f"{len(data)} bytes are read as\n {_shown(ours)}\nby us, and as\n {_shown(theirs)}\n"
        f"and\n {'nothing' if other is None else _shown(other)}\nby the oracles"
    )


def _shown(reading: Reading) -> str:
    return repr([(name, len(content)) for name, content in reading.files][:8]) + (
        "" if reading.is_whole else " and no more"
    )


def check_tar(data: bytes) -> None:
    """A scan gives the files that tarfile gives, or where that differs GNU tar, or refuses."""
    ours, theirs = _as_tarfile_names_them(by_us(data)), by_tarfile(data)
    if not agree(ours, theirs):
        _tell_difference(data, ours, theirs, by_gnu_tar(data))


def check_gnu_tar(data: bytes) -> None:
    """A scan gives the files that GNU tar gives, or where that differs tarfile, or refuses."""
    ours = by_us(data)
    theirs = by_gnu_tar(data) if ours.is_whole else None
    if theirs is None or not theirs.is_whole or agree(_as_gnu_tar_sorts_them(ours), theirs):
        return
    _tell_difference(data, _as_tarfile_names_them(ours), theirs, by_tarfile(data))


def _outcome(build: Any, data: bytes) -> Any:
    try:
        index, notices = build(data, shard=SHARD)
    except ShardError as error:
        _check_error(error, data)
        return str(error), error.kind, error.offset
    return index.to_bytes(), notices


def check_columns(data: bytes) -> None:
    """Indexing by columns, indexing carefully and a plain scan give the same samples or error."""
    quick, careful = (_outcome(b, data) for b in (SampleIndex.build, SampleIndex.build_carefully))
    assert quick == careful
    if len(quick) == 3:
        return
    index = SampleIndex.from_buffer(quick[0], name="i")
    with Shard(memoryview(data), index, name=SHARD) as shard:
        indexed = [
            (shard.key(number), {field: bytes(raw) for field, raw in shard.fields(number).items()})
            for number in range(index.num_samples)
        ]
    notices = Notices()
    members = scan(data, shard=SHARD, notices=notices)
    scanned = [
        (key, {field: data[start : start + size] for field, start, size in fields})
        for key, fields in group(members, shard=SHARD, notices=notices)
    ]
    assert indexed == scanned
    assert notices.freeze() == quick[1]


def _small_tars() -> Iterable[bytes]:
    for path in sorted(CASES.glob("*.tar")):
        data = path.read_bytes()
        if 0 < len(data) <= 10_240:
            yield data.rstrip(b"\0").ljust(-(-len(data.rstrip(b"\0")) // 512) * 512, b"\0") + bytes(
                1024
            )
            yield data
    yield tar_bytes([*sample_members(3), ("d" * 150 + "/a.txt", b"x"), ("e" * 300 + ".txt", b"y")])


# Compressed shards that are read by frames.


def check_seek_table(data: bytes) -> None:
    """A file has no table, or is refused, or its frames fill it and hold what the table says."""
    try:
        length = told_table_bytes(data, file_bytes=len(data), shard=SHARD)
        if length is None:
            return
        table = parse_seek_table(data[-length:], file_bytes=len(data), shard=SHARD)
    except ShardError as error:
        _check_error(error, data)
        return
    packed, plain = table.packed_edges.tolist(), table.plain_edges.tolist()
    assert packed[-1] == len(data) - length
    assert table.tar_bytes == plain[-1]
    for (start, stop), (begin, end) in zip(pairwise(packed), pairwise(plain), strict=True):
        assert start < stop
        try:
            content = frame_content(
                data[start:stop],
                start=start,
                num_bytes=end - begin,
                shard=SHARD,
                max_window_bytes=1 << 20,
            )
        except ShardError as error:
            _check_error(error, data)
        else:
            assert len(content) == end - begin


def _framed() -> Iterable[bytes]:
    tar = tar_bytes(sample_members(2))
    for edges in ((), (700, 700), range(512, len(tar), 512)):
        yield seekable(tar, edges)
        yield seekable(tar, edges, checksums=True)


# Indexes, manifests, checkpoints.


def check_index(data: bytes) -> None:
    """An index is refused, or every sample of it lies inside the shard."""
    try:
        index = SampleIndex.from_buffer(data, name=SHARD)
    except IndexFileError as error:
        assert SHARD in str(error)
        return
    ends = index.member_offsets + index.member_sizes
    assert not index.num_members or int(index.member_offsets.min()) >= 0
    assert not index.num_members or int(ends.max()) <= index.shard_bytes
    for sample in range(index.num_samples):
        assert isinstance(index.key(sample), str)
        start, stop = (int(n) for n in index.sample_starts[sample : sample + 2])
        assert 0 <= start < stop <= index.num_members
        assert all(index.fields[n] is not None for n in index.member_fields[start:stop])
    again = SampleIndex.from_buffer(index.to_bytes(), name="i")
    assert again.digest == index.digest


def _indexes() -> Iterable[bytes]:
    for data in _small_tars():
        try:
            yield SampleIndex.build(data, shard=SHARD)[0].to_bytes()
        except DataError:
            continue


_TOLD_DIGEST = re.compile(r"its shards have '([0-9a-f]{32})'")


def check_manifest(data: bytes) -> None:
    """A manifest is refused, or can be written and read again; also with its digest mended."""
    try:
        manifest = Manifest.from_json_bytes(data, name=SHARD)
    except ManifestError as error:
        assert SHARD in str(error)
        told = _TOLD_DIGEST.search(str(error))
        if told is None:
            return
        document = json.loads(data)
        document["digest"] = told[1]
        manifest = Manifest.from_json_bytes(json.dumps(document).encode(), name=SHARD)
    assert manifest.num_samples == sum(manifest.counts.tolist()) < 2**63
    for name in manifest.names:
        parts = name.split("/")
        assert not {"", ".", ".."} & set(parts)
        assert "\0" not in name
    again = Manifest.from_json_bytes(manifest.to_json_bytes(), name="m")
    assert again.digest == manifest.digest


def _manifests() -> Iterable[bytes]:
    for shards in (0, 1, 3):
        columns: dict[str, Any] = {
            "names": tuple(f"a/{n}.tar" for n in range(shards)),
            "sizes": np.arange(shards) * 512,
            "counts": np.arange(shards),
            "index_digests": ("0" * 32,) * shards,
        }
        yield Manifest(**columns).to_json_bytes()
        yield Manifest(**columns, content_digests=("1" * 32,) * shards).to_json_bytes()


COUNTS = (4, 5, 4)
NUM_SAMPLES = sum(COUNTS)


def _loader() -> Any:
    return loader_of(kept_corpus(COUNTS), batch_size=2, seed=3, decode_threads=0)


@lru_cache(maxsize=1)
def _kept_loader() -> Any:
    return _loader()


def _plain() -> Any:
    return dataset_of(kept_corpus(COUNTS), batch_size=2, seed=3)


def _numbers(batches: Iterable[Any]) -> list[int]:
    return [
        number
        for batch in batches
        for number, is_valid in zip(batch["__index__"].tolist(), batch["__valid__"], strict=True)
        if is_valid
    ]


def check_checkpoint(data: bytes) -> None:
    """A state is refused in words, or the rest of its epoch follows, each sample once."""
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        state = data
    if isinstance(state, dict) and "taken" in state:
        _check_state_of_dataset(state)
        return
    kept = _kept_loader()
    before = kept.state_dict()
    try:
        kept.load_state_dict(state)
    except CheckpointError:
        assert kept.state_dict() == before  # what was refused changed nothing
        return
    kept.load_state_dict(before)
    checkpoint = Checkpoint.from_state(state)
    assert Checkpoint.from_state(checkpoint.to_state()) == checkpoint
    loader = _loader()
    loader.load_state_dict(state)
    at = loader.state_dict()
    moved_on = (at["epoch"], at["consumed"]) == (checkpoint.epoch + 1, 0)
    assert moved_on or (at["epoch"], at["consumed"]) == (checkpoint.epoch, checkpoint.consumed)
    numbers = _numbers(loader)
    assert len(numbers) == len(set(numbers)) == NUM_SAMPLES - at["consumed"]
    assert loader.state_dict()["epoch"] == at["epoch"] + 1


def _check_state_of_dataset(state: dict[str, Any]) -> None:
    dataset = _plain()
    dataset.load_state_dict(dataset.state_dict())
    try:
        dataset.load_state_dict(state)
        numbers = _numbers(dataset)
    except CheckpointError:
        return
    taken = min(2 * state["taken"], NUM_SAMPLES)
    assert len(numbers) == len(set(numbers)) == NUM_SAMPLES - taken


def _states() -> Iterable[bytes]:
    loader, dataset = _loader(), _plain()
    for items in (loader, dataset):
        yield json.dumps(items.state_dict()).encode()
        for _ in zip(range(3), items, strict=False):
            pass
        yield json.dumps(items.state_dict()).encode()
        for _ in items:
            pass
        yield json.dumps(items.state_dict()).encode()
    grid = {**loader.state_dict(), "grid": [3, 2, 1], "consumed": 5, "global_batch": 12}
    yield json.dumps(grid).encode()


# Fields.

FIELDS = (*sorted(DEFAULT_DECODERS), "rgb", "unknown", "a.JSON", "x.seg.png")
_TABLE = DecodeTable({**DEFAULT_DECODERS, "rgb": decode_rgb})


def same(left: Any, right: Any) -> bool:
    """Whether two decoded values are one value; a NaN is itself."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return (
            type(left) is type(right)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    return type(left) is type(right) and repr(left) == repr(right)


def _rows(column: Any) -> list[Any]:
    return list(rows_of(column)) if isinstance(column, np.ndarray) else column


def check_decode(data: bytes) -> None:
    """A field gives a value or a DecodeError, and by columns what it gives by itself."""
    field, content = FIELDS[(data[0] if data else 0) % len(FIELDS)], data[1:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = _TABLE.decode(field, content)
        except DecodeError as error:
            assert field in str(error)
            assert not isinstance(error.__cause__, MemoryError)
            value = error
        try:
            column = column_of(_TABLE.decoder(field))(
                Spans([content, content], [0, 1], [0, 0], [len(content)] * 2)
            )
        except Exception:  # read again one by one, which says what is wrong
            return
    assert not isinstance(value, DecodeError)
    assert all(same(each, value) for each in _rows(column))
    if field.lower().endswith("json"):
        assert same(value, json.loads(content.decode()))


def _fields() -> Iterable[bytes]:
    contents: dict[str, list[bytes]] = {"txt": ["ä b".encode()], "cls": [b"7", b" -12 \n"]}
    contents["json"] = [b'{"a": [1, 2.5, null], "b": "\\u00e9"}', b"[NaN]", b'"\\ud800"', b"1e999"]
    arrays: list[Any] = [np.arange(6, dtype="<i4").reshape(2, 3), np.zeros((0, 4)), np.float32(1)]
    contents["npy"] = []
    for array in [*arrays, np.array([("a", 1)], dtype=[("x", "U1"), ("é", "i8")])]:
        stream = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            np.save(stream, array)
        contents["npy"].append(stream.getvalue())
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        stream = io.BytesIO()
        Image.new(mode, (3, 2)).save(stream, "PNG")
        for field in ("png", "seg.png", "rgb"):
            contents.setdefault(field, []).append(stream.getvalue())
    for mode in ("L", "RGB", "CMYK"):
        stream = io.BytesIO()
        Image.new(mode, (3, 2)).save(stream, "JPEG")
        contents.setdefault("jpg", []).append(stream.getvalue())
    for field, examples in contents.items():
        for example in examples:
            yield bytes((FIELDS.index(field),)) + example


def _any(data: bytes, rng: random.Random) -> bytes:
    """What libFuzzer does by itself serves here."""
    del rng
    return data


TARGETS: Mapping[str, Target] = {
    "tar": Target(check=check_tar, examples=_small_tars, mutate=mutators.tar),
    "gnu_tar": Target(check=check_gnu_tar, examples=_small_tars, mutate=mutators.tar),
    "columns": Target(check=check_columns, examples=_small_tars, mutate=mutators.tar),
    "seek_table": Target(check=check_seek_table, examples=_framed, mutate=_any),
    "index": Target(check=check_index, examples=_indexes, mutate=mutators.after_length),
    "manifest": Target(check=check_manifest, examples=_manifests, mutate=mutators.json_value),
    "checkpoint": Target(check=check_checkpoint, examples=_states, mutate=mutators.json_value),
    "decode": Target(check=check_decode, examples=_fields, mutate=_any, max_bytes=4096),
}
