"""What every kind of source keeps, so that it can be written by anybody and taken up again."""

from __future__ import annotations

import random
import shutil

import pytest

from shardloader.errors import WorldError
from shardloader.writing.destination import Destination
from shardloader.writing.encode import encode_sample
from shardloader.writing.sources.base import Refused
from shardloader.writing.write import write_shards
from tests.writing.inputs import EXPECTED, MAKERS, cut_small
from tests.writing.reading_back import read_dataset, visible

KINDS = sorted(MAKERS)


@pytest.fixture(params=KINDS)
def source(request, make):
    return make(request.param)


@pytest.fixture
def make(tmp_path, monkeypatch):
    cut_small(monkeypatch)
    place = tmp_path / "input"
    place.mkdir()
    return lambda kind: MAKERS[kind](place)


def encoded(items):
    found = []
    for item in items:
        assert not isinstance(item, Refused)
        key, fields = encode_sample(item)
        found.append((key, dict(fields)))
    return found


def test_the_parts_together_are_the_samples_in_order(source):
    samples = encoded(item for part in source.parts() for item in source.read(part))
    assert samples == EXPECTED


def test_a_part_is_read_alike_whoever_reads_it_and_when(source):
    parts = list(source.parts())
    assert [part.number for part in parts] == list(range(len(parts)))
    assert list(source.parts()) == parts
    in_order = [encoded(source.read(part)) for part in parts]
    shuffled = list(enumerate(parts))
    random.Random(0).shuffle(shuffled)
    for number, part in shuffled:
        assert encoded(source.read(part)) == in_order[number]


def test_an_outline_has_the_same_keys_and_sizes(source):
    for part in source.parts():
        whole, outline = encoded(source.read(part)), encoded(source.read(part, outline=True))
        for (key, fields), (same, sizes) in zip(whole, outline, strict=True):
            assert key == same
            assert {name: len(data) for name, data in fields.items()} == {
                name: len(data) for name, data in sizes.items()
            }


def test_the_survey_knows_the_bytes_that_the_parts_count(source):
    survey = source.survey()
    assert 0 < sum(part.num_bytes for part in source.parts()) <= 1.05 * survey.num_bytes + 5000
    assert survey.fingerprint == source.survey().fingerprint
    assert all(source.where(part) for part in source.parts())


OPTIONS = [
    {"max_bytes": "20kB"},
    {"max_samples": 7},
    {"max_samples": 11, "compression": "zstd", "frame_samples": 4},
    {"max_bytes": 1500, "compression": "zstd", "frame_samples": 3},
    {"max_samples": 13, "shuffle": 5},
    {"max_samples": 13, "shuffle": 5, "compression": "zstd", "frame_samples": 4},
]
# Every kind with two of the options, and one kind with all.
CASES = [
    (kind, options)
    for at, kind in enumerate(KINDS)
    for number, options in enumerate(OPTIONS)
    if kind == "shards" or (number - at) % len(OPTIONS) in {0, 3}
]
each_case = pytest.mark.parametrize(("kind", "options"), CASES, ids=repr)


@each_case
def test_any_number_of_workers_writes_the_same_bytes(make, tmp_path, kind, options):
    source = make(kind)
    write_shards(source, tmp_path / "1", **options)
    for workers in (2, 5) if kind == "shards" else (2,):
        write_shards(source, tmp_path / str(workers), workers=workers, **options)
        assert visible(tmp_path / "1") == visible(tmp_path / str(workers))
        shutil.rmtree(tmp_path / str(workers))
    samples = read_dataset(tmp_path / "1")
    assert (sorted(samples) if "shuffle" in options else samples) == EXPECTED
    assert ("shuffle" in options) == (samples != EXPECTED)


@each_case
def test_a_write_that_broke_off_is_finished_without_writing_a_shard_twice(
    make, tmp_path, monkeypatch, kind, options
):
    source = make(kind)
    write_shards(source, tmp_path / "whole", **options)
    published: list[str] = []
    publish = Destination.publish_shard

    def failing(destination, sealed, line=None, **options):
        if len(published) % 2 == 1:
            published.append("broken off")
            raise WorldError("the disk is full")
        publish(destination, sealed, line, **options)
        published.append(sealed.finished.name)

    monkeypatch.setattr(Destination, "publish_shard", failing)
    for _ in range(100):
        try:
            write_shards(source, tmp_path / "again", **options)
            break
        except WorldError:
            assert not (tmp_path / "again" / "manifest.json").exists()
    assert visible(tmp_path / "again") == visible(tmp_path / "whole")
    names = [name for name in published if name != "broken off"]
    assert len(set(names)) == len(names)
    assert len(names) >= 3
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )
