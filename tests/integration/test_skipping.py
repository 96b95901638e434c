"""on_error="skip" in every way to read: workers, threads, plain loaders, damaged shards, limits."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections import Counter
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import shardloader as sl
from shardloader.loader.quarantine import read
from shardloader.reading.catalog import open_catalog
from tests.corpora import (
    contents,
    dataset_of,
    kept_corpus,
    loader_of,
    loaders_of,
    raises_in_worker,
    valid_of,
)
from tests.shards import tar_bytes
from tests.troubled import (
    FailAtSome,
    RefuseSome,
    check_filled,
    plan_of,
    troubled_corpus,
    write_troubled,
)

CASES = Path(__file__).parents[1] / "cases"
COUNTS, BAD, REFUSED = (9, 8, 12), frozenset({3, 10, 11, 12, 28}), frozenset({4, 20})
FAULTY = BAD | REFUSED
ANY = sl.Skip(max_share=1.0)


def troubled_loader(**options):
    source = troubled_corpus(COUNTS, BAD)
    given = {"on_error": ANY, "transform": RefuseSome(REFUSED), "batch_size": 4}
    return loader_of(source, **{**given, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
        {"decode_threads": 2, "decode": {"txt": bytes.decode}},
        {"pin_memory": True},
        {"num_workers": 1, "pin_memory": True},
    ],
)
def test_every_way_of_reading_fills_the_same_slots_and_counts_the_same(options):
    if "multiprocessing_context" in options:
        options = {**options, "transform": RefuseSome(REFUSED)}
    grid = sl.Grid(ranks=1, workers=1, batch=4)
    loader = troubled_loader(grid=grid, **options)
    plain = troubled_loader(grid=grid)
    for _ in range(2):
        plans = plan_of(loader)
        batches = list(loader)
        assert contents(batches) == contents(plain)
        for batch, plan in zip(batches, plans, strict=True):
            check_filled(batch, plan, FAULTY)
            assert not [name for name in batch if name not in KNOWN]
    assert loader.stats() == plain.stats()
    assert loader.stats().to_dict() == {
        "batches": 16,
        "slots": 64,
        "valid": 2 * (29 - 7),
        "padded": 6,
        "refused": 4,
        "bad_decode": 10,
        "bad_field": 0,
        "bad_transform": 0,
        "bad_shard": 0,
        "store_requests": 0,
        "store_received_bytes": 0,
    }


KNOWN = {"txt", "cls", "__valid__", "__global_valid__", "__world_size__", "__index__", "__key__"}


def test_what_was_not_received_is_not_counted():
    loader = troubled_loader(num_workers=2, prefetch_factor=4, batch_size=2)
    next(iter(loader))
    assert loader.stats().batches == 1
    assert loader.stats().slots == 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_plain_stateful_data_loader_resumes_exactly_over_bad_samples(num_workers):
    def made():
        dataset = dataset_of(
            troubled_corpus(COUNTS, BAD),
            on_error=ANY,
            transform=RefuseSome(REFUSED),
            batch_size=2,
        )
        return StatefulDataLoader(dataset, batch_size=None, num_workers=num_workers)

    loader = made()
    iterator = iter(loader)
    before = list(islice(iterator, 4))
    state = loader.state_dict()
    rest = list(iterator)
    resumed = made()
    resumed.load_state_dict(state)
    assert contents(resumed) == contents(rest)
    assert Counter(valid_of(before + rest)) == Counter(set(range(29)) - FAULTY)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_one_by_one_are_filled_by_the_next_good_one_and_marked(num_workers):
    dataset = dataset_of(
        troubled_corpus(COUNTS, BAD),
        on_error=ANY,
        transform=RefuseSome(REFUSED),
        shuffle=False,
    )
    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers)
    samples = sorted((each["__index__"], bool(each["__valid__"])) for each in loader)
    valid = [index for index, is_valid in samples if is_valid]
    assert valid == sorted(set(range(29)) - FAULTY)
    assert len(samples) == 29 + (num_workers == 2)  # a pad
    if num_workers == 0:
        order = [each["__index__"] for each in dataset]
        assert order[3] == 5  # 3 is bad and 4 refused
        assert order[10:13] == [13, 13, 13]
        assert order[28] == 0  # behind the last one the data begins anew


def test_a_map_style_dataset_can_only_raise():
    view = dataset_of(
        troubled_corpus(COUNTS, BAD), on_error="skip", transform=RefuseSome(REFUSED)
    ).as_map()
    with pytest.raises(sl.DecodeError, match="'cls'"):
        _ = view[3]
    with pytest.raises(sl.SampleError, match="refuses the sample") as raised:
        _ = view[4]
    assert "the key '000004'" in raised.value.__notes__[0]


def test_a_refusal_is_no_error_and_needs_no_skip():
    loader = loader_of(kept_corpus(COUNTS), batch_size=4, transform=RefuseSome(REFUSED))
    assert Counter(valid_of(loader)) == Counter(set(range(29)) - REFUSED)
    assert loader.stats().refused == 2
    assert loader.stats().num_bad == 0


@pytest.mark.parametrize("num_workers", [0, 1])
def test_where_all_is_refused_the_run_stops_and_says_so(num_workers):
    loader = loader_of(kept_corpus((9,)), transform=RefuseSome(range(9)), num_workers=num_workers)
    with raises_in_worker(sl.DataError, r"none among the 9 that were tried: 9 refused"):
        list(loader)


def test_the_search_for_a_good_sample_is_bounded(monkeypatch):
    monkeypatch.setattr("shardloader.dataset.skipping.MOST_TRIED", 5)
    loader = loader_of(
        kept_corpus((90,)), transform=FailAtSome(range(80)), on_error=ANY, shuffle=False
    )
    with pytest.raises(sl.DataError, match="none among the 6 that were tried: 6 transform"):
        list(loader)


def test_wrong_use_is_not_skipped():
    def wrong(sample):
        return 7

    with pytest.raises(sl.UsageError, match="returned a int"):
        list(loader_of(kept_corpus((9,)), transform=wrong, on_error=ANY))


def test_a_transform_that_raises_is_a_bad_sample_whose_neighbours_are_transformed_once():
    calls = Counter[str]()

    def counted(sample):
        calls[sample["__key__"]] += 1
        if sample["__key__"] == "000003":
            raise KeyError("label")
        return sample

    loader = loader_of(
        kept_corpus((8,)), transform=counted, on_error=ANY, batch_size=4, shuffle=False
    )
    first, _ = loader
    assert first["__index__"].tolist() == [0, 1, 2, 0]
    assert loader.stats().bad["transform"] == 1
    assert calls.pop("000000") == 2  # once more to fill the slot
    assert set(calls.values()) == {1}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_too_many_bad_samples_stop_the_run_with_a_summary(num_workers):
    loader = loader_of(
        troubled_corpus(COUNTS, BAD),
        on_error=sl.Skip(max_share=0.1, min_samples=12),
        shuffle=False,
        batch_size=4,
        num_workers=num_workers,
    )
    received, state = [], None
    with raises_in_worker(sl.DataError, "3 of 12 are: 3 decode") as messages:
        for batch in loader:
            received.append(batch)
            state = loader.state_dict()
    assert len(received) == 2  # the third has 3 bad ones: 3 of 12
    assert state is not None
    assert state["consumed"] == loader.state_dict()["consumed"] == 8
    assert "sample '000003'" in messages[0]
    assert "field 'cls'" in messages[0]


@pytest.mark.parametrize(("batch_size", "num_received"), [(4, 2), (None, 11)])
def test_bad_samples_at_the_start_stop_the_run_when_there_are_enough_to_judge(
    batch_size, num_received
):
    options: dict[str, Any] = {
        "on_error": sl.Skip(max_share=0.1, min_samples=12),
        "shuffle": False,
    }
    source = troubled_corpus(COUNTS, frozenset({1, 2}))
    reads = (
        loader_of(source, batch_size=4, **options) if batch_size else dataset_of(source, **options)
    )
    received = []
    with pytest.raises(sl.DataError, match="2 of 12 are: 2 decode"):
        received.extend(reads)
    assert len(received) == num_received


def test_refused_samples_do_not_count_against_the_limit():
    loader = loader_of(
        kept_corpus(COUNTS),
        on_error=sl.Skip(max_share=0.01, min_samples=1),
        transform=RefuseSome(range(0, 29, 2)),
        batch_size=4,
    )
    assert len(valid_of(loader)) == 14


def test_a_plain_data_loader_holds_the_limit_too():
    dataset = dataset_of(
        troubled_corpus(COUNTS, BAD), on_error=sl.Skip(max_share=0.1, min_samples=10)
    )
    with pytest.raises(sl.DataError, match=r"at most 0\.1 of a rank's samples may be bad"):
        list(dataset)


def test_a_plain_data_loader_counts_over_epochs(caplog):
    dataset = dataset_of(
        troubled_corpus(COUNTS, BAD),
        on_error=sl.Skip(max_share=0.1, min_samples=40),
        shuffle=False,
    )
    assert len(list(dataset)) == 29
    with pytest.raises(sl.DataError, match="7 of 40 are"):
        list(dataset)
    assert len(caplog.records) == len({record.args for record in caplog.records}) == 3


def test_a_bad_sample_is_logged_once_a_shard(caplog):
    with caplog.at_level(logging.WARNING, logger="shardloader"):
        loader = troubled_loader()
        list(loader)
        list(loader)
    told = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert sorted(told) == ["shard-0000.tar", "shard-0001.tar", "shard-0002.tar"]


def test_the_quarantine_names_each_bad_sample_once_an_epoch(tmp_path):
    loaders = loaders_of(
        troubled_corpus(COUNTS, BAD),
        2,
        on_error=ANY,
        transform=RefuseSome(REFUSED),
        batch_size=3,
        quarantine=tmp_path,
    )
    for loader in loaders:
        state = loader.state_dict()
        list(islice(loader, 2))
        loader.load_state_dict(state)  # what was received comes once more
        list(loader)
    records = list(read(tmp_path))
    assert sorted(record["index"] for record in records) == sorted(BAD)
    assert len(list(tmp_path.iterdir())) == 2
    (of_ten,) = (record for record in records if record["index"] == 10)
    assert of_ten["message"].startswith("shard '")
    del of_ten["message"]
    offset = of_ten.pop("offset")
    assert of_ten == {
        "epoch": 0,
        "pass": 0,
        "shard": "shard-0001.tar",
        "key": "000010",
        "index": 10,
        "field": "cls",
        "kind": "decode",
    }
    shard = troubled_corpus(COUNTS, BAD) / "shard-0001.tar"
    assert shard.read_bytes()[offset : offset + 3] == b"bad"
    for loader in loaders:
        list(loader)
    epochs = Counter(record["epoch"] for record in read(tmp_path))
    assert epochs == {0: len(BAD), 1: len(BAD)}


def test_a_torn_last_line_of_a_quarantine_is_left_out_and_any_other_is_an_error(tmp_path):
    list(troubled_loader(quarantine=tmp_path))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert len(list(read(tmp_path))) == len(BAD) - 1
    path.write_bytes(b"{\n" + whole)
    with pytest.raises(sl.DataError, match="line 1: a line is one record of a quarantine"):
        list(read(tmp_path))


def test_a_quarantine_without_skipping_is_refused(tmp_path):
    with pytest.raises(sl.UsageError, match='give ShardDataset on_error="skip"'):
        loader_of(kept_corpus(COUNTS), quarantine=tmp_path)


def test_a_quarantine_that_cant_be_written_says_so(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(sl.UsageError, match="file is a file"):
        troubled_loader(quarantine=tmp_path / "file")
    with pytest.raises(sl.WorldError, match="can't write the quarantine"):
        list(troubled_loader(quarantine=tmp_path / "file" / "folder"))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("harm", ["missing", "replaced", "no tar", "same size"])
def test_a_shard_that_went_bad_after_it_was_indexed_is_filled_on_all_ranks(
    tmp_path, harm, num_workers
):
    folder = write_troubled(tmp_path, (6, 6, 6), ())
    path = folder / "shard-0001.tar"
    if harm == "missing":
        path.unlink()
    elif harm == "replaced":
        shutil.copy(kept_corpus((30,)) / "shard-0000.tar", path)
    elif harm == "no tar":
        path.write_bytes(b"<html>" * 100)
    else:
        path.write_bytes(path.read_bytes()[::-1])
    loaders = loaders_of(folder, 2, batch_size=2, on_error=ANY, num_workers=num_workers)
    batches = [list(loader) for loader in loaders]
    assert [len(of_rank) for of_rank in batches] == [5, 5]
    valid = [number for of_rank in batches for number in valid_of(of_rank)]
    assert Counter(valid) == Counter([*range(6), *range(12, 18)])
    assert sum(loader.stats().bad["shard"] for loader in loaders) == 6
    if harm != "same size":  # which is found out when it is opened
        with pytest.raises(sl.ManifestError, match=r"shard-0001\.tar"):
            list(loader_of(folder))


@pytest.mark.parametrize("cut", [0, 100, 1024, 1500, 2100, 3100, 4096, 4400, 5000, 6 * 2048])
def test_a_shard_that_was_cut_after_it_was_indexed_gives_its_whole_samples(tmp_path, cut):
    folder = write_troubled(tmp_path, (6, 6, 6), ())
    path = folder / "shard-0001.tar"
    path.write_bytes(path.read_bytes()[:cut])
    whole = cut // 2048  # two members of two blocks each
    loader = loader_of(folder, batch_size=4, on_error=ANY)
    expected = [*range(6 + min(6, whole)), *range(12, 18)]
    assert Counter(valid_of(loader)) == Counter(expected)
    assert loader.stats().bad["shard"] == 18 - len(expected)


def test_a_long_stretch_of_bad_samples_is_filled_by_what_lies_behind_it(tmp_path):
    """More than are tried: those of a shard known to be bad, or cut off, are passed over."""
    folder = write_troubled(tmp_path, (4, 600, 600, 4), ())
    (folder / "shard-0001.tar").unlink()
    cut = folder / "shard-0002.tar"
    cut.write_bytes(cut.read_bytes()[:2048])
    loader = loader_of(folder, batch_size=4, shuffle=False, on_error=ANY)
    batches = list(loader)
    assert batches[1]["__index__"].tolist() == [604] * 4
    assert batches[160]["__index__"].tolist() == [1204] * 4
    assert valid_of(batches) == [0, 1, 2, 3, 604, 1204, 1205, 1206, 1207]


def cases():
    found = []
    for path in sorted(CASES.glob("*.json")):
        case = json.loads(path.read_text())
        if case["error"]:
            found.append(pytest.param(case, id=case["name"]))
    return found


def seen(sample):
    fields = {name: data for name, data in sample.items() if not name.startswith("__")}
    return {
        "__key__": sample["__key__"],
        "fields": {
            name: {"size": len(data), "sha256": sha256(data).hexdigest()}
            for name, data in fields.items()
        },
    }


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("case", cases())
def test_a_damaged_case_gives_exactly_its_samples_and_is_counted(tmp_path, case, as_list):
    for name in case["files"]:
        shutil.copy(CASES / name, tmp_path / name)
    source = [tmp_path / name for name in case["files"]] if as_list else tmp_path

    def loader():
        return loader_of(
            source, decode=None, shuffle=False, on_error="skip", collate_fn=lambda each: {"s": each}
        )

    samples = [seen(batch["s"][0]) for batch in loader()]
    whole = case["samples"]
    expected = [whole, whole[:-1]] if case["last_group_optional"] else [whole]
    if case["prefix_ok"]:
        expected = [whole[:number] for number in range(len(whole) + 1)]
    assert samples in expected
    again = loader()  # from what was remembered
    assert [seen(batch["s"][0]) for batch in again] == samples
    assert sum(again.stats().damaged_shards.values()) == 1
    assert again.stats().damaged_shards == {case["error"]["kind"]: 1}
    for _ in range(2):
        with pytest.raises(sl.ShardError) as raised:
            list(loader_of(source))
        assert raised.value.kind == case["error"]["kind"]


def test_there_are_damaged_cases():
    packings = {case.values[0]["files"][0].endswith(".tar") for case in cases()}
    assert len(cases()) >= 10
    assert packings == {False, True}


def test_a_damaged_shard_is_logged_once_and_the_others_are_whole(tmp_path, caplog):
    folder = write_troubled(tmp_path, (3, 3), ())
    for made in [*folder.glob("*.index"), folder / "manifest.json"]:
        made.unlink()
    path = folder / "shard-0000.tar"
    path.write_bytes(path.read_bytes()[: 2048 + 1024 + 300])  # in the header of its second member
    with caplog.at_level(logging.WARNING, logger="shardloader"):
        assert valid_of_raw(loader_of(folder, on_error="skip", shuffle=False)) == [
            f"{number:06d}" for number in (0, 3, 4, 5)
        ]
    (record,) = caplog.records
    assert "shard-0000.tar: the file ends before" in record.getMessage()
    assert "its 1 samples before the damage are read" in record.getMessage()
    catalog = open_catalog(folder, may_index=False)  # a plan of it can be made
    assert catalog.manifest.counts.tolist() == [1, 3]
    (folder / "shard-0000.tar.index").unlink()
    assert len(list(loader_of(folder, on_error="skip"))) == 4


def test_shards_of_a_list_that_are_missing_have_no_samples_until_they_are_there(tmp_path):
    folder = write_troubled(tmp_path, (3, 3), ())
    shutil.move(folder / "shard-0000.tar", folder / "away")
    (folder / "shard-0000.tar.index").unlink()
    source = [folder / f"shard-{number:04d}.tar" for number in range(2)]
    for _ in range(2):
        loader = loader_of(source, on_error="skip")
        assert loader.stats().damaged_shards == {"unreadable": 1}
        assert sorted(valid_of_raw(loader)) == ["000003", "000004", "000005"]
        assert open_catalog(source, may_index=False).num_shards == 2
        with pytest.raises(sl.WorldError):
            list(loader_of(source))
    shutil.move(folder / "away", folder / "shard-0000.tar")
    os.utime(folder / "shard-0000.tar")
    assert len(list(loader_of(source, on_error="skip"))) == 6
    assert len(list(loader_of(source))) == 6


def valid_of_raw(loader):
    return [key for batch in loader for key in batch["__key__"]]


def test_too_many_damaged_shards_stop_the_run_before_it_begins(tmp_path):
    folder = write_troubled(tmp_path, (200,) * 8, ())
    (folder / "manifest.json").unlink()
    for number in range(2):
        (folder / f"shard-000{number}.tar").write_bytes(b"<html>" * 100)
    with pytest.raises(sl.DataError, match="about 400 of 1600 are lost in 2 damaged shards: 2 not"):
        next(iter(loader_of(folder, on_error="skip")))
    allowed = loader_of(folder, on_error=sl.Skip(max_share=0.3), batch_size=100)
    assert len(list(allowed)) == 12


@pytest.mark.parametrize("name", ["cut_at_member_boundary", "cut_no_padding"])
def test_a_shard_cut_between_two_members_gives_nothing_partial(tmp_path, name):
    """The cases allow either; by default the last sample is given, with a warning."""
    (strict,) = json.loads((CASES / f"{name}.json").read_text())["accept_also"]
    loader = loader_of_case(tmp_path, name)
    assert [seen(batch["s"][0]) for batch in loader] == strict["samples"]
    assert loader.stats().damaged_shards == {strict["error"]["kind"]: 1}
    with pytest.raises(sl.ShardError, match="damaged when it was indexed"):
        list(loader_of(tmp_path))


def test_a_missing_end_alone_takes_no_sample(tmp_path):
    case = json.loads((CASES / "no_end_of_archive.json").read_text())
    loader = loader_of_case(tmp_path, "no_end_of_archive")
    assert [seen(batch["s"][0]) for batch in loader] == case["samples"]
    assert loader.stats().damaged_shards == {}


def loader_of_case(folder, name):
    shutil.copy(CASES / f"{name}.tar", folder)
    return loader_of(
        folder, decode=None, shuffle=False, on_error="skip", collate_fn=lambda each: {"s": each}
    )


def test_a_sample_without_a_field_that_was_asked_for_is_bad(tmp_path):
    members = [("a.txt", b"1"), ("a.cls", b"1"), ("b.txt", b"2"), ("c.txt", b"3"), ("c.cls", b"3")]
    (tmp_path / "x.tar").write_bytes(tar_bytes(members))
    loader = loader_of(
        tmp_path,
        fields=("txt", "cls"),
        on_error=ANY,
        shuffle=False,
        batch_size=3,
        quarantine=tmp_path,
    )
    (batch,) = loader
    assert batch["txt"] == ["1", "1", "3"]
    assert batch["__valid__"].tolist() == [True, False, True]
    assert loader.stats().bad["field"] == 1
    (record,) = read(tmp_path)
    assert (record["kind"], record["key"], record["offset"]) == ("field", "b", None)
    assert "lacks ['cls']" in record["message"]


def test_a_run_of_two_ranks_with_workers_is_taken_up_by_one_without(tmp_path):
    source = troubled_corpus(COUNTS, BAD)
    options = {"on_error": ANY, "transform": RefuseSome(REFUSED)}
    before = loaders_of(source, 2, batch_size=3, num_workers=2, **options)
    received = [batch for loader in before for batch in islice(loader, 2)]
    resumed = loader_of(source, batch_size=5, **options)
    resumed.load_state_dict(before[1].state_dict())
    after = list(resumed)
    assert Counter(valid_of(received + after)) == Counter(set(range(29)) - FAULTY)
    assert resumed.stats().num_bad + sum(each.stats().num_bad for each in before) == len(BAD)


def test_a_long_epoch_of_several_passes_lists_a_bad_sample_once(tmp_path):
    source = troubled_corpus((5, 4), frozenset({2}))
    loader = loader_of(source, on_error=ANY, steps_per_epoch=9, batch_size=3, quarantine=tmp_path)
    list(loader)  # three passes
    assert loader.stats().bad["decode"] == 3
    assert [record["index"] for record in read(tmp_path)] == [2]


def test_a_shard_that_is_back_is_read_in_the_next_epoch(tmp_path):
    folder = write_troubled(tmp_path, (4, 4), ())
    shutil.move(folder / "shard-0001.tar", folder / "away")
    loader = loader_of(folder, on_error=ANY, batch_size=2)
    assert Counter(valid_of(loader)) == Counter(range(4))
    shutil.move(folder / "away", folder / "shard-0001.tar")
    assert Counter(valid_of(loader)) == Counter(range(8))
