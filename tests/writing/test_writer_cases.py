"""The cases of tests/cases/writers: trouble that people reported, each run as its file says."""

from __future__ import annotations

import base64
import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardloader.errors import SampleError, UsageError
from shardloader.format.index import SampleIndex
from shardloader.format.manifest import Manifest
from shardloader.reading.decode import resolve
from shardloader.reading.source import UNFINISHED_NAME
from shardloader.writing.write import write_shards
from shardloader.writing.writer import ShardWriter

CASES = Path(__file__).parents[1] / "cases" / "writers"
ROOT = Path(__file__).parents[2]
MISSING = object()


def case(name: str) -> dict[str, Any]:
    described: dict[str, Any] = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))
    return described


def value_of(described: dict[str, Any]) -> Any:
    kind = described["type"]
    if kind == "bytes":
        return base64.b64decode(described["b64"])
    if kind == "blob":
        return hashlib.shake_128(described["tag"].encode()).digest(described["n"])
    if kind == "set":
        return set(described["value"])
    if kind == "float_nan":
        return float("nan")
    assert kind in {"str", "int", "dict", "list", "NoneType", "float"}, kind
    return described["value"]


def sample_of(described: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value_of(value) for name, value in described["fields"].items()}
    key = described.get("__key__", MISSING)
    return fields if key is MISSING else {"__key__": key, **fields}


def writer_for(described: dict[str, Any], folder: Path) -> ShardWriter:
    options = described["options"]
    return ShardWriter(folder, pattern=options["pattern"], max_samples=options["maxcount"])


def shards(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".tar"))


def read(folder: Path) -> list[tuple[str, dict[str, bytes]]]:
    samples = []
    for name in shards(folder):
        data = (folder / name).read_bytes()
        index, notices = SampleIndex.build(data, shard=name)
        assert not {notice.kind for notice in notices} - {"unsafe_path"}
        for number in range(index.num_samples):
            members = range(*index.sample_starts[number : number + 2].tolist())
            samples.append(
                (
                    index.key(number),
                    {
                        index.fields[index.member_fields[m]]: data[
                            index.member_offsets[m] : index.member_offsets[m]
                            + index.member_sizes[m]
                        ]
                        for m in members
                    },
                )
            )
    return samples


def write_all(described: dict[str, Any], folder: Path) -> dict[int, SampleError]:
    """Write each sample, going on after what is refused; returns what was, by its place."""
    refused = {}
    with writer_for(described, folder) as writer:
        for place, sample in enumerate(described["samples"]):
            try:
                writer.write(sample_of(sample))
            except SampleError as error:
                refused[place] = error
    return refused


def test_a_value_that_cannot_be_encoded_leaves_nothing_of_its_sample(tmp_path: Path) -> None:
    described = case("bad_types")
    refused = write_all(described, tmp_path)
    assert [key for key, _ in read(tmp_path)] == described["expect"]["readable_keys"]
    keys = [sample["__key__"] for sample in described["samples"]]
    assert [keys[place] for place in refused] == [
        error["key"] for error in described["expect"]["errors"]
    ]
    for place, error in refused.items():
        fields = described["samples"][place]["fields"]
        field, bad = next(item for item in fields.items() if item[0] != "aaa")
        kind = {"float_nan": "float"}.get(bad["type"], bad["type"])
        for part in (repr(keys[place]), repr(field), f"type {kind}:"):
            assert part in str(error)


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    described = case("deterministic_twice")
    for folder in ("one", "two"):
        write_all(described, tmp_path / folder)
        for sample in described["samples"]:
            sample["fields"] = dict(reversed(sample["fields"].items()))
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
        for folder in ("one", "two")
    )
    assert one == two
    assert set(one) == {"out-000000.tar", "out-000000.tar.index", "manifest.json"}


def test_a_key_that_comes_again_is_refused(tmp_path: Path) -> None:
    described = case("duplicate_keys")
    refused = write_all(described, tmp_path)
    expected = described["expect"]
    assert list(refused) == expected["must_raise_at"] + expected["raise_or_warn_at"]
    assert all("'000'" in str(error) for error in refused.values())
    assert [key for key, _ in read(tmp_path)] == ["000", "001"]


def test_an_exception_leaves_only_finished_shards_and_no_manifest(tmp_path: Path, caplog) -> None:
    described = case("interrupted_exception")

    def interrupted() -> None:
        with writer_for(described, tmp_path) as writer:
            for sample in described["samples"]:
                if "raise" in sample:
                    raise RuntimeError("as the case says")
                writer.write(sample_of(sample))

    with pytest.raises(RuntimeError, match="as the case says"):
        interrupted()
    final = described["expect"]["final_files"]
    assert shards(tmp_path) == final
    left = {path.name for path in tmp_path.iterdir()} - {UNFINISHED_NAME}
    assert sorted(left) == sorted(final + [f"{name}.index" for name in final])
    assert "no manifest" in caplog.text
    assert len(read(tmp_path)) == 4


KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[1], os.getcwd()
from test_writer_cases import case, sample_of, writer_for
from pathlib import Path
described = case("interrupted_sigkill")
writer = writer_for(described, Path(sys.argv[2]))
for sample in described["samples"]:
    if "kill" in sample:
        os.kill(os.getpid(), signal.SIGKILL)
    writer.write(sample_of(sample))
"""


def test_a_killed_writer_leaves_only_finished_shards(tmp_path: Path) -> None:
    described = case("interrupted_sigkill")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path)],
        cwd=ROOT,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert shards(tmp_path) == described["expect"]["final_files"]
    assert len(read(tmp_path)) == 4
    assert (tmp_path / ".out-000002.tar.partial").exists()
    with pytest.raises(UsageError, match="overwrite=True"):
        writer_for(described, tmp_path).write({"__key__": "0", "txt": ""})
    with ShardWriter(tmp_path, pattern="out-%06d.tar", max_samples=2, overwrite=True) as writer:
        for sample in described["samples"][:-1]:
            writer.write(sample_of(sample))
    assert shards(tmp_path) == ["out-000000.tar", "out-000001.tar", "out-000002.tar"]
    assert not list(tmp_path.glob(".*"))


def test_without_samples_there_is_no_shard(tmp_path: Path) -> None:
    described = case("no_samples")
    write_all(described, tmp_path)
    assert shards(tmp_path) == described["expect"]["final_files"]
    manifest = Manifest.from_json_bytes((tmp_path / "manifest.json").read_bytes(), name="m")
    assert manifest.num_shards == 0


def test_a_writer_that_is_never_closed_warns_and_leaves_no_shard(tmp_path: Path) -> None:
    described = case("not_closed")
    writer = writer_for(described, tmp_path)
    for sample in described["samples"]:
        writer.write(sample_of(sample))
    assert shards(tmp_path) == []
    writers = [writer]
    del writer
    with pytest.warns(ResourceWarning, match="never closed"):
        writers.clear()
    assert list(tmp_path.iterdir()) == []


def test_odd_fields_are_refused_or_read_back(tmp_path: Path) -> None:
    check_odd(case("odd_fields"), tmp_path, tolerated="raise_or_document")


def test_odd_keys_are_refused_or_read_back(tmp_path: Path) -> None:
    check_odd(case("odd_keys"), tmp_path, tolerated="raise_or_round_trip")


def check_odd(described: dict[str, Any], folder: Path, *, tolerated: str) -> None:
    refused = write_all(described, folder)
    expected = described["expect"]
    keys = [sample.get("__key__") for sample in described["samples"]]
    refused_keys = [keys[place] for place in refused]
    assert set(expected["must_raise"]) <= set(refused_keys)
    assert not set(expected["must_round_trip"]) & set(refused_keys)
    assert set(refused_keys) <= set(expected["must_raise"] + expected[tolerated])
    for place, error in refused.items():
        assert keys[place] is None or repr(keys[place]) in str(error)
    written = [
        (sample["__key__"], sample_of(sample))
        for place, sample in enumerate(described["samples"])
        if place not in refused
    ]
    table = resolve({"png": "bytes"})  # the case's png is none
    back = [
        (key, {"__key__": key, **{f: table.decode(f, data) for f, data in fields.items()}})
        for key, fields in read(folder)
    ]
    assert back == written


@pytest.mark.parametrize("pattern", ["out.tar", "out-{}-%d.tar", "out-%06d", "a/%d.tar", "%s.tar"])
def test_a_bad_pattern_is_refused_before_anything_is_written(tmp_path: Path, pattern: str) -> None:
    assert case("pattern_without_number")["options"]["pattern"] == "out.tar"
    with pytest.raises(UsageError, match="shard pattern"):
        ShardWriter(tmp_path / "new", pattern=pattern, max_samples=2)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["rollover_exact", "rollover_remainder"])
def test_shards_roll_over_exactly(tmp_path: Path, name: str) -> None:
    described = case(name)
    write_all(described, tmp_path)
    assert shards(tmp_path) == described["expect"]["final_files"]
    manifest = Manifest.from_json_bytes((tmp_path / "manifest.json").read_bytes(), name="m")
    assert manifest.counts.tolist() == described["expect"]["counts"]
    assert [key for key, _ in read(tmp_path)] == [s["__key__"] for s in described["samples"]]


def test_text_is_utf8_and_decodes_back(tmp_path: Path) -> None:
    described = case("unicode_text")
    assert write_all(described, tmp_path) == {}
    table = resolve({"cls": "text"})  # class names, not numbers
    for (key, fields), sample in zip(read(tmp_path), described["samples"], strict=True):
        back = {name: table.decode(name, data) for name, data in fields.items()}
        assert {"__key__": key, **back} == sample_of(sample)


def test_a_tree_is_packed_by_key_in_byte_order(tmp_path: Path) -> None:
    described = case("pack_tree")
    source = tmp_path / "source"
    for item in described["samples"]:
        path = source / item["path"]
        if item.get("dir"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(item["b64"]))
    options = described["options"]
    packed = write_shards(
        source, tmp_path / "out", pattern=options["pattern"], max_samples=options["maxcount"]
    )
    expected = described["expect"]
    back = read(tmp_path / "out")
    assert [key for key, _ in back] == expected["keys_in_order"]
    fields = {key: list(found) for key, found in back}
    assert fields.items() >= expected["fields"].items()
    assert [skipped.path for skipped in packed.survey.skipped] == expected["skipped"]
    assert dict(back)["a/UP"]["txt"] == b"up"
    assert packed.manifest.counts.tolist() == [4, 4]


def test_every_case_has_a_test() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.stem for path in CASES.glob("*.json") if f'"{path.stem}"' not in text] == []
